"""The view of one turn of the loop, made from what was gathered before."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.checks.host import UUID, gpu, host, points, progress
from tests.unit.core.world import make_beat, make_policy, make_run
from watchdog.collectors.run import RunWatch
from watchdog.core.facts import Absent, Device, Driver, Facts, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.history import Event, History, fold
from watchdog.core.phase import Phase
from watchdog.core.seen import Seen, Shim
from watchdog.core.state import State
from watchdog.core.view import CollectorView, DeviceView, FindingView, RunView, StatusView
from watchdog.folders import RunFolder
from watchdog.hostwatch import HostWatch
from watchdog.opening import OpenJob
from watchdog.places import folders_of
from watchdog.settings import load
from watchdog.statusview import label_of, make_view, said_of


class Clock:
    def monotonic(self) -> float:
        return 50.0

    def wall(self) -> float:
        return 1000.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits here")


@pytest.mark.parametrize(
    ("kind", "data", "label"),
    [
        ("gap", {}, "watchdog"),
        ("hold", {}, "HOLD"),
        ("run_ended", {"number": 4}, "run 4"),
        ("run_stopping", {}, "run 9"),
    ],
)
def test_the_label_of_a_line(kind: str, data: dict[str, int], label: str) -> None:
    launch = {"number": 9, "run_id": "9-a", "baseline_step": -1}
    history = fold([Event(seq=1, wall_s=1.0, kind="run_launching", sentence="", data=launch)])
    assert label_of(kind, data, history) == label


def test_what_stood_before_is_the_hosts_and_no_runs() -> None:
    """A process that the kernel killed before this job began is told, and is no warning about it."""
    lives = History(last_number=3, open_run={"number": 3, "run_id": "3-c"})
    assert label_of("finding", {"stood_before": True}, lives) == "host"
    assert label_of("finding", {}, lives) == "run 3"
    assert label_of("finding", {}, History(last_number=3)) == "host"
    assert label_of("finding_over", {}, History()) == "host"
    old = {"check": "oom-kill", "stood_before": True}
    assert said_of("finding", "memory · oom-kill · 4 killed", old).startswith("for information, from before this job")
    for data in ({"check": "oom-kill"}, {"check": "memory", "stood_before": True}):
        assert said_of("finding", "as it is", data) == "as it is"


def test_a_view_without_a_run() -> None:
    """In backoff: when the next launch is due; what nobody measured is not made up."""
    settings = load(environ={}, home=Path("/home/none"), cwd=Path("/home/none"), command=["true"], job="x")
    job = cast(OpenJob, SimpleNamespace(folders=folders_of(settings)))
    entry = {"step": 5, "digest": "d", "run_id": "1-a"}
    verified = Event(seq=1, wall_s=980.0, kind="checkpoint_verified", sentence="step 5", data=entry)
    history = fold([verified, dataclasses.replace(verified, seq=2, wall_s=995.0)])  # at a relaunch it is verified anew
    state = State(phase=Phase.BACKOFF, since_s=40.0, retry_at_s=53.0, failures=2)
    view = make_view(settings, job, state, history, Clock())
    assert (view.state, view.since_wall_s, view.next_launch_s, view.failures) == ("backoff", 990.0, 3.0, 2)
    assert (view.checkpoint_step, view.checkpoint_age_s) == (5, 20.0)
    assert view.supervisor_pid == os.getpid()
    assert view.run is None
    assert (view.memory_available_bytes, view.metrics_url, dict(view.collectors)) == (None, None, {})
    view = make_view(settings, job, State(phase=Phase.HOLD, since_s=40.0, hold="why"), history, Clock())
    assert (view.hold_reason, view.next_launch_s, view.checkpoint_age_s) == ("why", None, 20.0)
    early = dataclasses.replace(verified, wall_s=2000.0)  # the clock was set back since
    assert make_view(settings, job, state, fold([early]), Clock()).checkpoint_age_s == 0.0
    nothing = make_view(settings, job, state, fold([]), Clock())
    assert (nothing.checkpoint_step, nothing.checkpoint_age_s) == (None, None)


# --- the host beside it -------------------------------------------------------------------------------------
MEMORY = CollectorView(duration_s=0.1, success=True, last_success_wall_s=1.0)


def view_of(facts: Facts, *findings: Finding) -> StatusView:
    settings = load(environ={}, home=Path("/home/none"), cwd=Path("/home/none"), command=["true"], job="x")
    job = cast(OpenJob, SimpleNamespace(folders=folders_of(settings)))
    need = {"memory_need_bytes": 7, "memory_learned": None}
    watch = SimpleNamespace(facts=facts, findings=findings, views=lambda: {"memory": MEMORY}, **need)
    state = State(phase=Phase.GATING, since_s=40.0)
    return make_view(settings, job, state, fold([]), Clock(), host=cast(HostWatch, watch))


def device_view(**changes: Any) -> DeviceView:
    (found,) = view_of(host(devices=(gpu(**changes),))).devices
    return found


def test_findings_are_shown_from_a_warning_on_and_the_worst_first() -> None:
    warning, critical = (
        Finding(check="ecc", severity=severity, subject="card", reason=f"is {severity.name}", remedy=Remedy.REPLACE)
        for severity in (Severity.WARNING, Severity.CRITICAL)
    )
    view = view_of(host(), fine("memory", "memory", "20 GiB"), unknown("xid", "xid", "?"), warning, critical)
    assert view.findings == (
        FindingView(check="ecc", severity="critical", subject="card", reason="is CRITICAL", next=Remedy.REPLACE.value),
        FindingView(check="ecc", severity="warning", subject="card", reason="is WARNING", next=Remedy.REPLACE.value),
    )


def test_what_the_host_shows() -> None:
    view = view_of(host())
    assert (view.memory_available_bytes, view.memory_need_bytes) == (20 * 1024**3, 7)
    assert view.collectors == {"memory": MEMORY}
    assert view.driver_silent_s == 0.0
    assert view_of(host(memory=Unknown("hangs"))).memory_available_bytes is None


def test_a_device_as_it_was_sampled_last() -> None:
    assert device_view(xid_counts={79: 2}) == DeviceView(
        uuid=UUID,
        name="NVIDIA GeForce RTX 3060",
        power_watts=151.0,
        power_limit_watts=170.0,
        utilization_ratio=0.97,
        memory_used_bytes=10 * 1024**3,
        memory_total_bytes=12 * 1024**3,
        temperature_celsius=71,
        sm_clock_hertz=1837e6,
        xids={"79": 2},
    )


@pytest.mark.parametrize("fact", [Unknown("code 999"), Absent("N/A")], ids=str)
def test_what_a_device_does_not_say_is_none_and_never_nought(fact: Any) -> None:
    of_sample = ("power_watts", "utilization_percent", "memory_used_bytes", "temperature_celsius", "sm_clock_mhz")
    of_device = ("name", "power_limit_watts", "memory_total_bytes", "xid_counts")
    found = device_view(**dict.fromkeys((*of_sample, *of_device), fact))
    assert found == DeviceView(uuid=UUID, name="")
    idle = device_view(utilization_percent=0, power_watts=0.0, sm_clock_mhz=0)
    assert (idle.utilization_ratio, idle.power_watts, idle.sm_clock_hertz) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("driver", "devices", "silent_s", "count"),
    [
        (Absent("no driver"), Absent("no driver"), None, 0),
        (Unknown("nonsense"), Unknown("nonsense"), None, 0),
        (Driver(version="560", silent_s=33.0), Unknown("hangs"), 33.0, 0),
        (Driver(version="560"), (gpu(), gpu(uuid="GPU-2", index=1)), 0.0, 2),
    ],
)
def test_a_driver_that_is_silent_says_how_long(
    driver: Any, devices: tuple[Device, ...], silent_s: float | None, count: int
) -> None:
    view = view_of(host(driver=driver, devices=devices))
    assert (view.driver_silent_s, len(view.devices)) == (silent_s, count)


# --- the run ------------------------------------------------------------------------------------------------
def run_view(seen: Seen, *, printed: bool = True) -> RunView:
    settings = load(environ={}, home=Path("/home/none"), cwd=Path("/home/none"), command=["true"], job="x")
    job = cast(OpenJob, SimpleNamespace(folders=folders_of(settings)))
    record = SimpleNamespace(started_wall_s=990.0, run_id="1-a")
    watch = SimpleNamespace(start=None, record=record, adopted=False, folder=RunFolder(path=Path("/r")))
    view = make_view(
        settings, job, State(phase=Phase.RUNNING, since_s=40.0, run=make_run()), fold([]), Clock(),
        seen=seen, watch=cast(RunWatch, watch), policy=make_policy(),
        progress=progress(points=points(3, gradient_norm=1.5)) if printed else None,
    )  # fmt: skip
    assert view.run is not None
    return view.run


def test_without_beats_the_run_shows_what_it_prints() -> None:
    newest = points(3)[-1]
    run = run_view(Seen(now_s=50.0, shim=Shim.ALIVE))
    assert (run.step, run.tokens, run.loss, run.gradient_norm) == (newest.step, newest.tokens, newest.loss, 1.5)
    assert (run.phase, run.target_step, run.learning_rate, run.beat_age_s, run.beat_pid) == (None,) * 5
    assert run_view(Seen(now_s=50.0, shim=Shim.ALIVE), printed=False).step is None


def test_a_beat_is_believed_before_what_is_printed() -> None:
    run = run_view(Seen(now_s=50.0, shim=Shim.ALIVE, beat=make_beat(48.0, step=5, loss=2.5)))
    assert (run.step, run.loss, run.tokens, run.gradient_norm) == (5, 2.5, None, None)
    assert (run.phase, run.beat_age_s, run.beat_pid) == ("train", 2.0, 501)


def test_a_beat_of_another_run_is_none_of_this() -> None:
    run = run_view(Seen(now_s=50.0, shim=Shim.ALIVE, beat=make_beat(48.0, run_id="0-z", step=5)), printed=False)
    assert (run.step, run.phase, run.beat_age_s) == (None, None, None)
