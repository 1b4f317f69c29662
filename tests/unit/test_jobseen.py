"""The job at the head of a diagnosis: of every state a line, the next step, and how loud it is."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.host.bed import CLOCK, SLEEPER, folders_in, make_bed, strict_json
from watchdog.checks.catalogue import CATALOGUE
from watchdog.collectors.processes import this_host
from watchdog.core.findings import Severity
from watchdog.core.view import FindingView, RunView, StatusView
from watchdog.diagnosing import chosen, diagnose_job
from watchdog.folders import JobFolders
from watchdog.jobseen import NEVER, job_seen, of_view
from watchdog.opening import open_ledger
from watchdog.settings import Settings, load

START = "watchdog run --job big"
LEFT = "stopped on request, the job is not finished: step 180 is verified"
RUN = RunView(number=7, run_id="7-a", alive=True, step=1180)

LEDGER = FindingView(check="ledger", severity="critical", subject="ledger", reason="it is no ledger", next="mend it")


def view(state: str, **more: Any) -> StatusView:
    base = StatusView(job="big", state=state, since_wall_s=1.0, now_wall_s=9.0, sentence="run 7 counts as exited")
    return dataclasses.replace(base, supervisor_pid=4700, options=" --job big", **more)


def alone(state: str, **more: Any) -> StatusView:
    return dataclasses.replace(view(state, **more), supervisor_pid=None)


@pytest.mark.parametrize(
    ("seen", "severity", "reason", "next_step"),
    [
        (view("running", run=RUN), Severity.OK, "run 7 is alive, at step 1,180", ""),
        (view("running", run=dataclasses.replace(RUN, step=None)), Severity.OK, "run 7 is alive", ""),
        (view("gating", waiting_for="memory 2 < 3 GiB"), Severity.OK, "the next run waits for: memory 2 < 3 GiB", ""),
        (view("backoff", next_launch_s=29.6), Severity.OK, "the next run starts in 30 s", ""),
        (view("stopping", run=RUN), Severity.OK, "run 7 counts as exited", ""),
        (alone("finished", checkpoint_step=6000), Severity.OK, "step 6,000 is its newest verified checkpoint", ""),
        (alone("finished"), Severity.OK, "its last run ended with exit 0", ""),
        (alone("stopped", sentence=LEFT), Severity.OK, LEFT, START),
        (alone("unsupervised", run=RUN), Severity.OK, "run 7 lives, and no supervisor watches it", START),
        (
            view("unsupervised"),
            Severity.OK,
            "its supervisor, pid 4700, is another user's or has another state folder",
            "",
        ),
        (alone("unsupervised"), Severity.WARNING, "no supervisor watches it: nothing brings it back", START),
        (
            alone("unsupervised", run=dataclasses.replace(RUN, alive=None, status="it left no start record")),
            Severity.WARNING,
            "no supervisor watches it, and run 7 may be alive: it left no start record",
            START,
        ),
        (
            view("unanswered", silence="supervisor pid 4700 does not answer", run=RUN),
            Severity.WARNING,
            "supervisor pid 4700 does not answer",
            "",
        ),
        (
            alone("unsupervised", silence="whether one lives cannot be told", run=dataclasses.replace(RUN, alive=None)),
            Severity.UNKNOWN,
            "whether one lives cannot be told",
            "",
        ),
        (
            view("running", run=RUN, findings=(LEDGER,)),
            Severity.UNKNOWN,
            "run 7 is alive, at step 1,180",
            "",
        ),
        (
            view("hold", hold_reason="3 runs ended without a new checkpoint"),
            Severity.CRITICAL,
            "3 runs ended without a new checkpoint",
            "remove the reason, then: watchdog relaunch --job big",
        ),
    ],
)  # fmt: skip
def test_each_state_in_a_line(seen: StatusView, severity: Severity, reason: str, next_step: str) -> None:
    job = of_view(seen, START)
    assert (job.name, job.state, job.severity, job.reason, job.next) == ("big", seen.state, severity, reason, next_step)


def test_what_else_is_to_be_known_is_evidence() -> None:
    silent = "supervisor pid 4700 does not answer"
    assert of_view(view("unanswered", silence=silent, run=RUN), START).evidence == ("run 7 is alive",)
    assert of_view(view("finished", silence=silent), START).evidence == (silent,)
    assert of_view(view("finished", silence=silent), START).severity is Severity.UNKNOWN
    assert of_view(view("running", run=RUN, findings=(LEDGER,)), START).evidence == ("it is no ledger",)


def test_a_hold_tells_the_last_error_and_a_run_that_could_not_be_ended() -> None:
    job = of_view(view("hold", hold_reason="pid 4711 cannot be killed", last_error="MemoryError", run=RUN), START)
    assert job.evidence == ("last error: MemoryError", "run 7 is alive")
    assert of_view(alone("unsupervised"), START).evidence == ("the last that was said: run 7 counts as exited",)


# --- from a job's folders ------------------------------------------------------------------------------------
@pytest.fixture
def folders(tmp_path: Path) -> JobFolders:
    return folders_in(tmp_path)


@pytest.fixture
def settings(tmp_path: Path, folders: JobFolders) -> Settings:
    overrides = {
        "job.name": "bed",
        "job.checkpoints": str(folders.checkpoints),
        "state.folder": str(tmp_path / "state"),
    }
    return load(environ={}, home=tmp_path, cwd=tmp_path, command=SLEEPER, overrides=overrides)


def record(folders: JobFolders, *events: tuple[str, str, dict[str, object]]) -> None:
    with contextlib.closing(open_ledger(folders, CLOCK, this_host())) as ledger:
        ledger.record_all(events)


LAUNCHED = ("run_launching", "x", {"number": 1, "run_id": "1-a", "baseline_step": -1, "command": SLEEPER})
ENDED = (
    "run_ended",
    "x",
    {"number": 1, "run_id": "1-a", "cause": "exited", "words": "exit 1", "baseline_step": -1, "error": "no data"},
)
WEIGHED = ("run_weighed", "run 1 counts as exited", {"run_id": "1-a", "cause": "exited", "failures": 1})


def test_a_job_that_never_was(settings: Settings) -> None:
    assert (job_seen(settings).state, job_seen(settings).severity) == (NEVER, Severity.OK)


def test_a_hold_without_a_supervisor(settings: Settings, folders: JobFolders) -> None:
    record(folders, LAUNCHED, ENDED, ("hold", "HOLD: why", {"reason": "why"}), WEIGHED)
    job = job_seen(settings)
    assert (job.state, job.reason, job.evidence) == ("hold", "why", ("last error: no data",))
    assert job.next == "remove the reason, then: watchdog relaunch --job bed"
    diagnosis = diagnose_job(settings, checks=CATALOGUE, probe=False, wait_s=10.0)
    assert (diagnosis.job, diagnosis.exit_code) == (job, 2)
    # Who asks for one check is told of that one.
    asked = diagnose_job(settings, checks=chosen(["lock-path"]), probe=False, wait_s=10.0)
    assert (asked.job, asked.exit_code) == (None, 0)


def test_stopped_is_told_from_left_alone(settings: Settings, folders: JobFolders) -> None:
    """A person asked for the one; the other is a supervisor that was killed between two runs."""
    record(folders, ("supervisor_started", "x", {}), LAUNCHED, ENDED, WEIGHED)
    assert (job_seen(settings).state, job_seen(settings).severity) == ("unsupervised", Severity.WARNING)
    record(folders, ("supervisor_leaving", LEFT, {}), WEIGHED)
    job = job_seen(settings)
    assert (job.state, job.severity, job.reason) == ("stopped", Severity.OK, LEFT)
    assert job.next.startswith("watchdog run")
    record(folders, ("supervisor_started", "x", {}))
    assert job_seen(settings).state == "unsupervised"


def test_a_ledger_that_cannot_be_read_is_unknown(settings: Settings, folders: JobFolders) -> None:
    folders.ledger.mkdir(parents=True)
    job = job_seen(settings)
    assert (job.state, job.severity) == ("unknown", Severity.UNKNOWN)
    assert str(folders.ledger) in job.reason
    assert job.next == "watchdog status --job bed"


def test_a_hold_under_a_supervisor_as_people_and_programs_read_it(tmp_path: Path) -> None:
    with make_bed(tmp_path / "bed", ["false"], level=0, relaunch={"failures": 1, "backoff": "0.1s"}) as bed:
        bed.start("--on-hold", "wait")
        bed.wait_status(state="hold")
        answer = bed.call("diagnose", "--no-probe")
        head = answer.stdout.splitlines()[:2]
        assert answer.returncode == 2, answer
        assert head[0].startswith("HOLD      job "), head
        assert "exit 1" in head[0]
        assert head[1].startswith("  next    remove the reason, then: watchdog relaunch"), head
        told = strict_json(bed.call("diagnose", "--no-probe", "--json").stdout)
        assert (told["job"]["state"], told["job"]["severity"], told["exit_code"]) == ("hold", "critical", 2)
