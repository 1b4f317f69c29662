"""The one look: from real collectors to an exit code and to words."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from tests.scenarios.world import World, scenario_files
from tests.unit.checks.host import host as healthy
from watchdog import lookout as module
from watchdog.checks.catalogue import CATALOGUE
from watchdog.clock import SystemClock
from watchdog.collectors.roots import Roots
from watchdog.core.diagnosis import Diagnosis, JobSeen, exit_code
from watchdog.core.facts import Absent, Device, Fact, Facts, Known, Probed, Unknown
from watchdog.core.findings import Finding, Remedy, Severity, next_step
from watchdog.core.limits import Limits
from watchdog.diagnose import Measure, OfRun, Targets, diagnose, needs_of
from watchdog.measuring import needed
from watchdog.render_diagnose import explanation, human, listing, printable, to_json, wants_colour
from watchdog.render_limits import key_of

LITTLE = Limits(memory_need_bytes=1, disk_need_bytes=1, inodes_least=1)
NO_RUN = Absent("no run of this job is alive")
# Of this host nothing else is known beforehand: it may have been short of memory a minute ago.
STEADY = ("memory", "disk-space", "disk-inodes", "disk-read-only", "lock-holder", "lock-path", "beat-stale", "driver")
SCHEMA = json.loads((Path(__file__).parents[2] / "docs/diagnose.schema.json").read_text(encoding="utf-8"))


def look(
    targets: Targets,
    limits: Limits = LITTLE,
    deadline_s: float = 10.0,
    *names: str,
    roots: Roots | None = None,
    beat: Fact[Any] = NO_RUN,
) -> Diagnosis:
    checks = tuple(check for check in CATALOGUE if not names or check.name in names)
    return diagnose(
        targets,
        limits,
        roots=roots or Roots(),
        clock=SystemClock(),
        environ={},
        run=OfRun(beat=beat, progress=NO_RUN),
        checks=checks,
        deadline_s=deadline_s,
    )


def made_of(*severities: Severity, job: JobSeen | None = None) -> Diagnosis:
    findings = tuple(
        Finding(
            check=f"check-{severity.name.lower()}",
            severity=severity,
            subject="card",
            reason=f"it is {severity.name.lower()}",
            evidence=("seen 5 of 5 times",),
            cause="" if severity is Severity.OK else "a ghost",
            remedy=Remedy.NONE if severity is Severity.OK else Remedy.RELAUNCH,
        )
        for severity in severities
    )
    return Diagnosis(
        findings=findings,
        exit_code=exit_code(findings, (), job),
        absent=(),
        taken_wall_s=5.0,
        facts=healthy(),
        collectors={},
        job=job,
    )


HELD = JobSeen(
    name="big",
    state="hold",
    severity=Severity.CRITICAL,
    reason="3 runs in a row ended without a new checkpoint",
    evidence=("last error: Memory\x1bError",),
    next="remove the reason, then: watchdog relaunch --job big",
)
RUNNING = JobSeen(name="big", state="running", severity=Severity.OK, reason="run 7 is alive, at step 180")


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ((Severity.OK,), 0),
        ((Severity.OK, Severity.UNKNOWN), 3),
        ((Severity.UNKNOWN, Severity.WARNING), 1),
        ((Severity.WARNING, Severity.CRITICAL, Severity.UNKNOWN), 2),
        ((), 3),
    ],
)
def test_the_worst_finding_is_the_exit_code(severities: tuple[Severity, ...], code: int) -> None:
    assert made_of(*severities).exit_code == code


def test_another_job_on_hold_is_critical_and_stands_in_the_head() -> None:
    assert exit_code(made_of(Severity.OK).findings, (), RUNNING, (HELD,)) == 2
    diagnosis = replace(made_of(Severity.OK, job=RUNNING), others=(HELD,))
    assert human(diagnosis).startswith("HOLD      job big · 3 runs in a row")
    assert [each["state"] for each in to_json(diagnosis)["others"]] == ["hold"]


def test_a_job_on_hold_is_as_critical_as_a_finding() -> None:
    assert made_of(Severity.OK, job=HELD).exit_code == 2
    assert made_of(Severity.OK, job=RUNNING).exit_code == 0
    assert made_of(Severity.WARNING, job=RUNNING).exit_code == 1
    assert made_of(job=RUNNING).exit_code == 3


def test_a_host_in_order(tmp_path: Path) -> None:
    targets = Targets(
        disks=[(str(tmp_path / "state"), "state"), (str(tmp_path), "checkpoints")],
        locks=[(str(tmp_path / "supervisor.lock"), "supervisor"), (str(tmp_path / "run.lock"), "run")],
    )
    diagnosis = look(targets, LITTLE, 10.0, *STEADY)
    assert diagnosis.exit_code == 0, human(diagnosis)
    assert {finding.check for finding in diagnosis.findings} == set(STEADY)
    assert set(diagnosis.absent) == {"driver", "beat-stale"}
    collectors = {"memory", "disk_state", "disk_checkpoints", "locks", "processes", "wsl"}
    assert set(diagnosis.collectors) == collectors
    assert all(view.success for view in diagnosis.collectors.values())
    assert list(tmp_path.iterdir()) == []  # looking leaves nothing behind


def test_with_all_checks_every_collector_answers(tmp_path: Path) -> None:
    diagnosis = look(Targets(disks=[(str(tmp_path), "state")]))
    assert set(diagnosis.collectors) == {"memory", "pressure", "oom", "kernel", "wsl", "processes", "disk_state"}
    assert {finding.check for finding in diagnosis.findings} >= {"memory", "driver", "suspended", "blind"}


def test_without_any_target_it_still_looks_at_the_host() -> None:
    checks = {finding.check for finding in look(Targets()).findings}
    assert {"memory", "driver"} <= checks


def test_too_little_is_found(tmp_path: Path) -> None:
    huge = Limits(memory_need_bytes=2**60, disk_need_bytes=2**60)
    diagnosis = look(Targets(disks=[(str(tmp_path), "state")]), huge)
    by_check = {finding.check: finding.severity for finding in diagnosis.findings}
    assert by_check["memory"] is Severity.WARNING
    assert by_check["disk-space"] is Severity.CRITICAL
    assert diagnosis.exit_code == 2


def test_a_collector_that_hangs_is_unknown_and_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def hang(roots: Roots, clock: SystemClock) -> Fact[Any]:
        return Known(fifo.read_text(), 0.0)

    monkeypatch.setattr(module, "read_memory", hang)
    started = time.monotonic()
    diagnosis = look(Targets(disks=[(str(tmp_path), "state")]), LITTLE, 0.2, "memory", "disk-space")
    took_s = time.monotonic() - started
    fifo.write_text("let it go")
    assert took_s < 5
    (finding,) = [finding for finding in diagnosis.findings if finding.check == "memory"]
    assert finding.severity is Severity.UNKNOWN
    assert finding.reason.startswith("memory has not answered for")
    assert diagnosis.exit_code == 3
    assert isinstance(diagnosis.facts.disks[0], Known)


def test_an_unreadable_proc_is_unknown_and_no_traceback(tmp_path: Path) -> None:
    targets = Targets(disks=[(str(tmp_path), "state")], locks=[(str(tmp_path / "l"), "run")])
    diagnosis = look(targets, roots=Roots(str(tmp_path / "nothing")), beat=Unknown("the beat file cannot be read"))
    assert diagnosis.exit_code == 3
    unknown = [finding for finding in diagnosis.findings if finding.severity is Severity.UNKNOWN]
    assert {finding.check for finding in unknown} == {
        "memory", "memory-pressure", "oom-kill", "disk-space", "lock-holder", "beat-stale", "run-stuck", "suspended",
        "wsl-settings",
    }  # fmt: skip
    assert all(finding.reason for finding in unknown)


def test_it_looks_again_where_one_look_proves_nothing(tmp_path: Path) -> None:
    """And no more often than a check wants it: an idle device is looked at once."""
    said: list[str] = []
    ghost = World(Path(__file__).parents[1] / "scenarios/ghost_diary.toml", tmp_path)

    def seen(names: tuple[str, ...], host: str | None = None) -> tuple[Diagnosis, float]:
        world = ghost if host is None else World(Path(__file__).parents[1] / "scenarios" / host, tmp_path / "other")
        started_s = world.clock.now_s
        diagnosis = diagnose(
            world.targets(),
            world.limits,
            roots=world.roots,
            clock=world.clock,
            environ=world.environ,
            run=world.run(),
            checks=tuple(check for check in CATALOGUE if check.name in names),
            say=said.append,
        )
        return diagnosis, world.clock.now_s - started_s

    diagnosis, took_s = seen(("ghost-context",))
    assert [finding.severity for finding in diagnosis.findings] == [Severity.CRITICAL]
    assert took_s == pytest.approx(4.0)  # five looks, a second apart: closer ones would be one, said twice
    again = "one look does not prove what it saw"
    assert said == [f"looking again, {number} of 5: {again}" for number in (2, 3, 4, 5)]
    assert seen(("driver",))[1] == 0.0
    said.clear()
    assert seen(tuple(check.name for check in CATALOGUE), host="idle_geforce.toml")[1] == 0.0
    assert not said


def test_looking_again_ends_by_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow each look is: a driver that hangs in the midst of them costs no multiple of its own deadline."""
    ghost = World(Path(__file__).parents[1] / "scenarios/ghost_diary.toml", tmp_path)
    gathered = module.Lookout.gather
    given: list[float] = []

    def slowly(lookout: module.Lookout, run: OfRun, deadline_s: float) -> Facts:
        given.append(deadline_s)
        ghost.clock.now_s += min(6.0, deadline_s)
        return gathered(lookout, run, 5.0)

    monkeypatch.setattr(module.Lookout, "gather", slowly)
    diagnose(
        ghost.targets(), ghost.limits, roots=ghost.roots, clock=ghost.clock, environ=ghost.environ, run=ghost.run(),
        checks=tuple(check for check in CATALOGUE if check.name == "ghost-context"), deadline_s=6.0,
    )  # fmt: skip
    assert given == [6.0, 6.0]  # the second took all that the further ones had: 8 s, with the pause before it


def test_only_what_may_be_measured_is_measured(tmp_path: Path) -> None:
    idle = World(Path(__file__).parents[1] / "scenarios/idle_geforce.toml", tmp_path)
    asked: list[tuple[Device, ...]] = []

    def measure(facts: Facts, devices: tuple[Device, ...]) -> Fact[tuple[Probed, ...]]:
        asked.append(devices)
        return Unknown("torch is not here")

    def run(measure: Measure | None, *names: str) -> Diagnosis:
        return diagnose(
            idle.targets(),
            idle.limits,
            roots=idle.roots,
            clock=idle.clock,
            environ=idle.environ,
            run=idle.run(),
            checks=tuple(check for check in CATALOGUE if check.name in names),
            measure=measure,
        )

    assert run(measure, "compute-floor").exit_code == 3
    assert [device.uuid for devices in asked for device in devices] == [idle.devices[0]]
    run(measure, "driver")
    (finding,) = run(None, "compute-floor").findings
    assert finding.severity is Severity.OK
    assert "not measured" in finding.reason
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["compute-floor", "wrong-product"])
def test_whoever_measures_looks_at_who_must_not_be_disturbed(name: str) -> None:
    """By hand or in a diagnosis, for whichever check the probe is made."""
    (check,) = (check for check in CATALOGUE if check.name == name)
    assert needs_of((check,)) >= needed() - {"probe"}
    (other,) = (check for check in CATALOGUE if check.name == "driver")
    assert not needs_of((other,)) & {"beat", "locks"}


@pytest.mark.parametrize("name", ["compute-floor", "wrong-product"])
def test_a_diagnosis_says_what_it_did_not_measure(tmp_path: Path, name: str) -> None:
    scenarios = Path(__file__).parents[1] / "scenarios"

    def run(scenario: str, folder: str, measure: Measure) -> Diagnosis:
        world = World(scenarios / f"{scenario}.toml", tmp_path / folder)
        return diagnose(
            world.targets(),
            world.limits,
            roots=world.roots,
            clock=world.clock,
            environ=world.environ,
            run=world.run(),
            checks=tuple(check for check in CATALOGUE if check.name == name),
            measure=measure,
        )

    def never(facts: Facts, devices: tuple[Device, ...]) -> Fact[tuple[Probed, ...]]:
        raise AssertionError(devices)

    (tmp_path / "a").mkdir()
    diagnosis = run("wsl_bridge_held", "a", never)
    assert isinstance(diagnosis.facts.probe, Absent)
    assert diagnosis.facts.probe.why.startswith("not measured: ")
    assert diagnosis.facts.probe.why.endswith("is in use by pid 8123 (python), which has /dev/dxg open")
    assert diagnosis.exit_code == 0


@pytest.mark.parametrize(
    "path", [path for path in scenario_files() if "nvml" in path.read_text()], ids=lambda p: p.stem
)
def test_the_json_of_every_scenario_is_what_the_schema_says(path: Path, tmp_path: Path) -> None:
    world = World(path, tmp_path)
    diagnosis = diagnose(
        world.targets(),
        world.limits,
        roots=world.roots,
        clock=world.clock,
        environ=world.environ,
        run=world.run(),
        deadline_s=float(world.told.get("deadline_s", 5.0)),
    )
    record = json.loads(json.dumps(to_json(diagnosis), allow_nan=False))
    jsonschema.validate(record, SCHEMA)
    assert human(diagnosis, everything=True)


def test_a_purpose_names_a_collector_so_it_is_there_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        Targets(disks=[("/a", "state"), ("/b", "state")])


def test_it_needs_neither_the_metrics_nor_nvml_nor_psutil() -> None:
    """The price of a start: what a look does not need is not imported."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import watchdog.diagnose, watchdog.render_diagnose;"
        "names = ('prometheus_client', 'pynvml', 'psutil', 'subprocess', 'asyncio', 'torch', 'tenacity');"
        "print([name for name in names if name in sys.modules])"
    )
    argv = [sys.executable, "-P", "-c", program, str(Path(__file__).parents[2])]
    assert subprocess.run(argv, check=True, capture_output=True, text=True).stdout == "[]\n"


def test_the_loudest_comes_first_and_what_is_fine_is_counted() -> None:
    text = human(made_of(Severity.OK, Severity.WARNING, Severity.OK, Severity.CRITICAL, Severity.UNKNOWN))
    assert text.splitlines() == [
        "CRITICAL  card · check-critical · it is critical",
        "  seen 5 of 5 times",
        "  cause   a ghost",
        "  next    watchdog relaunch",
        "WARNING   card · check-warning · it is warning",
        "  seen 5 of 5 times",
        "  cause   a ghost",
        "  next    watchdog relaunch",
        "unknown   card · check-unknown · it is unknown",
        "  seen 5 of 5 times",
        "  cause   a ghost",
        "  next    watchdog relaunch",
        "ok        2 more findings   (--all to see them)",
    ]
    assert human(made_of(Severity.OK)) == "ok        1 finding   (--all to see them)"
    assert human(made_of(Severity.OK), everything=True).splitlines()[0] == "ok        card · check-ok · it is ok"


def test_the_job_comes_before_everything() -> None:
    lines = human(made_of(Severity.CRITICAL, job=HELD), colour=True).splitlines()
    assert lines[:4] == [
        "\x1b[1;31mHOLD\x1b[0m      job big · 3 runs in a row ended without a new checkpoint",
        "  last error: Memory\\x1bError",
        "  next    remove the reason, then: watchdog relaunch --job big",
        "\x1b[1;31mCRITICAL\x1b[0m  card · check-critical · it is critical",
    ]


@pytest.mark.parametrize(
    ("state", "severity", "line"),
    [
        ("finished", Severity.OK, "finished  job big · why"),
        ("stopped", Severity.OK, "stopped   job big · why"),
        ("backoff", Severity.OK, "job       job big · backoff · why"),
        ("unsupervised", Severity.WARNING, "WARNING   job big · unsupervised · why"),
        ("unknown", Severity.UNKNOWN, "unknown   job big · unknown · why"),
    ],
)
def test_a_job_that_does_not_run_is_a_line(state: str, severity: Severity, line: str) -> None:
    job = JobSeen(name="big", state=state, severity=severity, reason="why")
    assert human(made_of(Severity.OK, job=job)).splitlines()[0] == line


def test_a_job_that_runs_is_told_only_when_asked() -> None:
    assert "job big" not in human(made_of(Severity.OK, job=RUNNING))
    told = human(made_of(Severity.OK, job=RUNNING), everything=True)
    assert told.splitlines()[0] == "job       job big · running · run 7 is alive, at step 180"


def test_what_is_absent_is_said_although_all_is_well() -> None:
    text = human(look(Targets()))
    assert "absent    driver · no NVIDIA driver: GPU checks are absent, not passed" in text


def test_colour_only_repeats_the_word() -> None:
    diagnosis = made_of(Severity.CRITICAL, Severity.WARNING, Severity.UNKNOWN, Severity.OK)
    coloured = human(diagnosis, colour=True)
    assert "\x1b[1;31mCRITICAL\x1b[0m  card" in coloured
    stripped = coloured
    for code in ("\x1b[1;31m", "\x1b[33m", "\x1b[36m", "\x1b[0m"):
        stripped = stripped.replace(code, "")
    assert stripped == human(diagnosis)
    assert "\x1b" not in stripped


def test_colour_is_for_terminals() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert wants_colour(Terminal(), {"TERM": "xterm"})
    assert not wants_colour(io.StringIO(), {"TERM": "xterm"})
    assert not wants_colour(Terminal(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert not wants_colour(Terminal(), {"TERM": "dumb"})
    assert not wants_colour(Terminal(), {})


def test_what_others_wrote_cannot_drive_the_terminal() -> None:
    assert printable("a\x1b[2Jb\nc\x9b\udcffé…") == "a\\x1b[2Jb\\nc\\x9b\\udcffé…"


def test_json_has_every_field_and_survives_the_trip() -> None:
    record = json.loads(json.dumps(to_json(made_of(Severity.WARNING, Severity.OK))))
    assert record["format"] == 1
    assert record["exit_code"] == 1
    assert record["findings"][0] == {
        "check": "check-warning",
        "severity": "warning",
        "absent": False,
        "subject": "card",
        "device": None,
        "reason": "it is warning",
        "evidence": ["seen 5 of 5 times"],
        "cause": "a ghost",
        "remedy": "relaunch",
        "next": "watchdog relaunch",
    }
    assert record["findings"][1]["next"] is None
    assert record["job"] is None
    assert to_json(made_of(Severity.WARNING), " --job large")["findings"][0]["next"] == "watchdog relaunch --job large"
    assert to_json(made_of(job=RUNNING))["job"] == {
        "name": "big",
        "state": "running",
        "severity": "ok",
        "reason": "run 7 is alive, at step 180",
        "evidence": [],
        "next": None,
    }
    jsonschema.validate(to_json(made_of(Severity.OK, job=HELD)), SCHEMA)


def test_json_of_a_real_look_tells_absent_from_ok(tmp_path: Path) -> None:
    record = json.loads(json.dumps(to_json(look(Targets(disks=[(str(tmp_path), "state")])))))
    absent = {finding["check"]: finding["absent"] for finding in record["findings"]}
    assert absent["driver"] is True
    assert absent["memory"] is False
    assert record["collectors"]["memory"]["success"] is True


def test_the_next_step_names_the_job() -> None:
    text = human(made_of(Severity.CRITICAL), options=" --job large")
    assert text.splitlines()[-1] == "  next    watchdog relaunch --job large"


@pytest.mark.parametrize(
    ("remedy", "device", "words"),
    [
        (Remedy.WAIT, None, "wait: the supervisor acts by itself; where none runs: watchdog run --job large"),
        (
            Remedy.ASK_HOLDER,
            None,
            "see who holds the job: watchdog status --job large; "
            "a run that nobody watches is adopted by: watchdog run --job large",
        ),
        (Remedy.WAIT_LONGER, None, "watchdog diagnose --wait 70 --job large"),
        (Remedy.PROBE, None, "measure the device: watchdog probe --job large"),
        (Remedy.PROBE, "GPU-3f1c0a52-11", "measure the device: watchdog probe --job large --device GPU-3f1c0a52"),
        (Remedy.PROBE, "no UUID, index 1", "measure the device: watchdog probe --job large"),
        (
            Remedy.RESET_DEVICE,
            "GPU-3f1c0a52-11",
            "end what uses the device, then reset it: sudo nvidia-smi --gpu-reset -i GPU-3f1c0a52-11, or reboot",
        ),
        (
            Remedy.RESET_DEVICE,
            "no UUID, index 1",
            "end what uses the device, then reset it: sudo nvidia-smi --gpu-reset -i 1, or reboot",
        ),
        (Remedy.ASK_OWNER, None, Remedy.ASK_OWNER.value),  # "the watchdog ends nothing" is no command
    ],
)
def test_the_next_step_is_what_a_person_types(remedy: Remedy, device: str | None, words: str) -> None:
    finding = Finding(check="x", severity=Severity.WARNING, subject="s", reason="r", remedy=remedy, device=device)
    assert next_step(finding, " --job large") == words


def test_a_next_step_that_starts_the_job_names_its_trainer() -> None:
    start = "cd /a && watchdog run --job big -- sh"
    finding = Finding(check="x", severity=Severity.WARNING, subject="s", reason="r", remedy=Remedy.WAIT)
    job = replace(RUNNING, start=start)
    diagnosis = replace(made_of(Severity.OK, job=job), findings=(finding,))
    words = f"wait: the supervisor acts by itself; where none runs: {start}"
    assert human(diagnosis, options=" --job big").splitlines()[-1] == f"  next    {words}"
    assert to_json(diagnosis, " --job big")["findings"][0]["next"] == words


def test_the_listing_names_every_check_with_what_it_proves() -> None:
    lines = listing().splitlines()
    assert [line.split()[0] for line in lines] == [check.name for check in CATALOGUE]
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


@pytest.mark.parametrize("check", CATALOGUE, ids=lambda check: check.name)
def test_every_check_is_explained_with_its_limits_and_remedies(check: Any) -> None:
    text = explanation(check, replace(Limits(), off=frozenset({check.name})))
    assert "Proves: " in text
    assert "Near misses: " in text
    assert "switched off" in text
    for name in check.limits:
        assert f"{key_of(name)} = " in text
    for remedy in check.remedies:
        assert remedy.value in text
