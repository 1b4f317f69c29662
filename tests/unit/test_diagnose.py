"""The one look: from real collectors to an exit code and to words."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from watchdog import diagnose as module
from watchdog.clock import SystemClock
from watchdog.collectors.roots import Roots
from watchdog.core.diagnosis import Diagnosis, exit_code
from watchdog.core.facts import Absent, Driver, Fact, Facts, Known, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits
from watchdog.diagnose import Targets, diagnose
from watchdog.render_diagnose import human, listing, printable, to_json, wants_colour

LITTLE = Limits(memory_need_bytes=1, disk_need_bytes=1, inodes_least=1)
NO_RUN = Absent("no run of this job is alive")


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every host: no NVIDIA driver, and no child for it."""

    def read(reader: object, deadline_s: float) -> Fact[Driver]:
        return Absent("no libnvidia-ml.so.1")

    monkeypatch.setattr(module.DriverReader, "read", read)


def look(targets: Targets, limits: Limits = LITTLE, deadline_s: float = 10.0) -> Diagnosis:
    return diagnose(targets, limits, roots=Roots(), clock=SystemClock(), beat=NO_RUN, deadline_s=deadline_s)


def made_of(*severities: Severity) -> Diagnosis:
    findings = tuple(
        Finding(
            check=f"check-{severity.name.lower()}",
            severity=severity,
            subject="card",
            reason=f"it is {severity.name.lower()}",
            evidence=("seen 5 of 5 times",),
            remedy=Remedy.NONE if severity is Severity.OK else Remedy.RELAUNCH,
        )
        for severity in severities
    )
    facts = Facts(at_s=0.0, memory=Absent(), disks=(), locks=(), driver=Absent(), beat=Absent())
    return Diagnosis(
        findings=findings, exit_code=exit_code(findings), absent=(), taken_wall_s=5.0, facts=facts, collectors={}
    )


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


def test_a_host_in_order(tmp_path: Path) -> None:
    targets = Targets(
        disks=[(str(tmp_path / "state"), "state"), (str(tmp_path), "checkpoints")],
        locks=[(str(tmp_path / "supervisor.lock"), "supervisor"), (str(tmp_path / "run.lock"), "run")],
    )
    diagnosis = look(targets)
    assert diagnosis.exit_code == 0, human(diagnosis)
    assert {finding.check for finding in diagnosis.findings} == {
        "locks", "lock-path", "beat-stale", "memory", "disk-space", "disk-inodes", "disk-read-only", "driver"
    }  # fmt: skip
    assert set(diagnosis.absent) == {"driver", "beat-stale", "beat-process"}
    assert set(diagnosis.collectors) == {
        "driver", "memory", "disk_state", "disk_checkpoints", "lock_supervisor", "lock_run"
    }  # fmt: skip
    assert all(view.success for view in diagnosis.collectors.values())
    assert list(tmp_path.iterdir()) == []  # looking leaves nothing behind


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

    def hang(roots: Roots, clock: SystemClock) -> Fact[object]:
        return Known(fifo.read_text(), 0.0)

    monkeypatch.setattr(module, "read_memory", hang)
    started = time.monotonic()
    diagnosis = look(Targets(disks=[(str(tmp_path), "state")]), deadline_s=0.2)
    took_s = time.monotonic() - started
    fifo.write_text("let it go")
    assert took_s < 5
    (finding,) = [finding for finding in diagnosis.findings if finding.check == "memory"]
    assert finding.severity is Severity.UNKNOWN
    assert finding.reason.startswith("memory has not answered for")
    assert diagnosis.exit_code == 3
    assert isinstance(diagnosis.facts.disks[0], Known)


def test_an_unreadable_proc_is_unknown_and_no_traceback(tmp_path: Path) -> None:
    diagnosis = diagnose(
        Targets(disks=[(str(tmp_path), "state")], locks=[(str(tmp_path / "l"), "run")]),
        LITTLE,
        roots=Roots(str(tmp_path / "nothing")),
        clock=SystemClock(),
        beat=Unknown("the beat file cannot be read"),
    )
    assert diagnosis.exit_code == 3
    unknown = [finding for finding in diagnosis.findings if finding.severity is Severity.UNKNOWN]
    assert len(unknown) == 4  # memory, disk, lock, beat
    assert all(finding.reason for finding in unknown)


def test_a_purpose_names_a_collector_so_it_is_there_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        Targets(disks=[("/a", "state"), ("/b", "state")])


def test_it_needs_neither_the_metrics_nor_nvml_nor_psutil() -> None:
    """The price of a start: what a look does not need is not imported."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import watchdog.diagnose, watchdog.render_diagnose;"
        "names = ('prometheus_client', 'pynvml', 'psutil', 'subprocess', 'asyncio', 'msgspec');"
        "print([name for name in names if name in sys.modules])"
    )
    argv = [sys.executable, "-P", "-c", program, str(Path(__file__).parents[2])]
    assert subprocess.run(argv, check=True, capture_output=True, text=True).stdout == "[]\n"


def test_the_loudest_comes_first_and_what_is_fine_is_counted() -> None:
    text = human(made_of(Severity.OK, Severity.WARNING, Severity.OK, Severity.CRITICAL, Severity.UNKNOWN))
    assert text.splitlines() == [
        "CRITICAL  card · it is critical",
        "  seen 5 of 5 times",
        "  next    watchdog relaunch",
        "WARNING   card · it is warning",
        "  seen 5 of 5 times",
        "  next    watchdog relaunch",
        "unknown   card · it is unknown",
        "  seen 5 of 5 times",
        "  next    watchdog relaunch",
        "ok        2 more findings   (--all to see them)",
    ]
    assert human(made_of(Severity.OK)) == "ok        1 finding   (--all to see them)"
    assert human(made_of(Severity.OK), everything=True).splitlines()[0] == "ok        card · it is ok"


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
        "reason": "it is warning",
        "evidence": ["seen 5 of 5 times"],
        "remedy": "relaunch",
        "next": "watchdog relaunch",
    }
    assert record["findings"][1]["next"] is None


def test_json_of_a_real_look_tells_absent_from_ok(tmp_path: Path) -> None:
    record = json.loads(json.dumps(to_json(look(Targets(disks=[(str(tmp_path), "state")])))))
    absent = {finding["check"]: finding["absent"] for finding in record["findings"]}
    assert absent["driver"] is True
    assert absent["memory"] is False
    assert record["collectors"]["memory"]["success"] is True


def test_the_listing_names_every_check_with_what_it_proves() -> None:
    lines = listing().splitlines()
    assert len(lines) == 9
    assert lines[0].startswith("locks  ")
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)
