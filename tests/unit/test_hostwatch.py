"""The host beside the run: gates from facts that were read, and chores that delete only what is old."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.campaign_bed import wait_for
from tests.host.bed import CLOCK, folders_in
from watchdog.core.facts import Absent, Unknown
from watchdog.core.seen import Gate
from watchdog.hostwatch import HostWatch, absent_or, drop_old_runs
from watchdog.settings import load


def host(tmp_path: Path, **needs: object) -> HostWatch:
    overrides = {"memory.need": "1MiB", "disk.need": "0", **needs}
    settings = load(environ={}, home=tmp_path, cwd=tmp_path, overrides=overrides)
    return HostWatch(settings, folders_in(tmp_path), CLOCK)


def gates(watch: HostWatch, *, lock_intact: bool = True) -> dict[str, Gate]:
    found = wait_for(lambda: watch.gates(lock_intact=lock_intact), "the first answers", timeout_s=10)
    return {gate.name: gate for gate in found}


def test_the_gates_of_this_host(tmp_path: Path) -> None:
    watch = host(tmp_path)
    assert watch.gates(lock_intact=True) == (), "nothing was read yet, so nothing is said"
    found = gates(watch)
    assert all(gate.open for gate in found.values()), found
    assert {"lock", "memory", "disk of state", "disk of checkpoints"} <= found.keys()
    views = watch.views()
    assert views["memory"].success
    assert views["memory"].duration_s >= 0


@pytest.mark.parametrize(
    ("needs", "lock_intact", "closed"),
    [
        ({"memory.need": "60TiB"}, True, {"memory"}),
        ({"disk.need": "1000TiB"}, True, {"disk of state", "disk of checkpoints"}),
        ({}, False, {"lock"}),
    ],
)
def test_a_gate_that_is_closed_says_why(
    needs: dict[str, str], lock_intact: bool, closed: set[str], tmp_path: Path
) -> None:
    found = gates(host(tmp_path, **needs), lock_intact=lock_intact)
    assert {name for name, gate in found.items() if not gate.open} == closed
    for name in closed:
        assert "free" in found[name].words or "unlinked" in found[name].words


def test_after_a_gap_nothing_old_is_believed(tmp_path: Path) -> None:
    watch = host(tmp_path)
    gates(watch)
    watch.ask_afresh()
    assert all(not gate.open or gate.name == "lock" for gate in watch.gates(lock_intact=True))
    assert all(gate.open for gate in gates(watch).values())


def test_run_folders_beyond_the_newest_are_dropped(tmp_path: Path) -> None:
    """By number, not by name or time; what is not a run's stays, links are not followed."""
    for name in ("1-a", "2-b", "9-c", "10-d", "11-e", "notes", "x-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "output.log").write_text(name)
    (tmp_path / "3-link").symlink_to(tmp_path / "notes")
    (tmp_path / "4-file").write_text("")
    drop_old_runs(tmp_path, 3)
    assert sorted(os.listdir(tmp_path)) == ["10-d", "11-e", "3-link", "4-file", "9-c", "notes", "x-1"]
    assert (tmp_path / "notes" / "output.log").exists()
    drop_old_runs(tmp_path, 3)
    drop_old_runs(tmp_path / "none", 3)
    assert len(os.listdir(tmp_path)) == 7


def test_a_host_without_a_driver_is_told_once() -> None:
    assert absent_or(Absent("no driver")) == "no NVIDIA driver: GPU checks are absent, not passed"
    assert absent_or(Unknown("hangs")) is None
