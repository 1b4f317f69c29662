"""The host beside the run: gates from facts that were read, and chores that delete only what is old."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.campaign_bed import wait_for
from tests.host.bed import CLOCK, folders_in
from tests.unit.checks.ghosts import NO_RUN, ghost_gpu
from tests.unit.checks.host import GIB, UUID, disk, gpu, known, memory, process, processes
from tests.unit.checks.host import host as seen
from watchdog.checks import catalogue
from watchdog.core.facts import Absent, Facts, Known, Unknown
from watchdog.core.identity import ProcessId
from watchdog.core.limits import Limits
from watchdog.core.memoryneed import HostMemory
from watchdog.core.seen import Gate
from watchdog.hostwatch import HostWatch, calm, drop_old_runs, used_by_run
from watchdog.lookout import OfRun
from watchdog.settings import load

OTHER = "GPU-77777777-0000-0000-0000-000000000000"


def host(tmp_path: Path, *, used: frozenset[str] | None = None, **needs: object) -> HostWatch:
    overrides = {"memory.need": "1MiB", "disk.need": "0", **needs}
    settings = load(environ={}, home=tmp_path, cwd=tmp_path, overrides=overrides)
    return HostWatch(settings, folders_in(tmp_path), CLOCK, {}, used=used)


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


def test_a_job_that_names_no_device_waits_for_one_once_its_run_had_one_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = host(tmp_path)
    sick = seen(
        driver=Unknown("the driver hangs"), devices=Unknown("it hangs"), processes=processes(run=(), holders=())
    )
    told = [sick]
    monkeypatch.setattr(watch._lookout, "poll", lambda run: told[0])
    assert gates(watch)["devices"].open
    told[0] = seen()
    watch.look()
    told[0] = sick
    assert not gates(watch)["devices"].open
    assert watch.used == {UUID}

    later = host(tmp_path, used=watch.used)
    monkeypatch.setattr(later._lookout, "poll", lambda run: told[0])
    assert not gates(later)["devices"].open, "the same ledger, the same decision"


BESIDE = gpu(uuid=OTHER, index=1, processes=())
CONTAINED = processes(initial_namespace=False)
LISTED_NOWHERE = seen(devices=(gpu(processes=()), BESIDE))


@pytest.mark.parametrize(
    ("facts", "used"),
    [
        (seen(devices=(gpu(), BESIDE)), {UUID}),
        (seen(devices=(gpu(), gpu(uuid=OTHER, index=1))), {UUID, OTHER}),
        (seen(devices=(gpu(processes=(process(pid=99),)), BESIDE)), set()),
        (LISTED_NOWHERE, set()),
        (seen(devices=(gpu(lost_code=15), BESIDE)), set()),  # what it said last is of before
        (seen(processes=CONTAINED), set()),  # the same number there is another process
        (seen(devices=Unknown("hangs")), set()),
        (seen(processes=processes(holders=())), None),
        (seen(processes=Unknown("not read")), None),
        (seen(**NO_RUN), None),
    ],
)
def test_where_the_run_is(facts: Facts, used: set[str] | None) -> None:
    assert used_by_run(facts) == used


def test_where_a_run_was_is_not_forgotten_when_it_is_listed_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = host(tmp_path, used=frozenset({OTHER}))
    told = [LISTED_NOWHERE]
    monkeypatch.setattr(watch._lookout, "poll", lambda run: told[0])
    for facts, used in (seen(**NO_RUN), {OTHER}), (LISTED_NOWHERE, {OTHER}), (seen(), {OTHER, UUID}):
        told[0] = facts
        watch.look()
        assert watch.used == used


def test_a_ghost_is_looked_at_again_before_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first sample on, also while the process table is on its way."""
    watch = host(tmp_path, **{"job.devices": ["0"]})
    unread = {"processes"}
    told = [seen(devices=(ghost_gpu(samples=1),), **(NO_RUN | {"processes": Unknown("not read yet")}))]
    monkeypatch.setattr(watch._lookout, "poll", lambda run: told[0])
    monkeypatch.setattr(watch._lookout, "unread", lambda *names: bool(unread & set(names)))
    assert watch.gates(lock_intact=True) == ()
    unread.clear()
    for samples in (1, 4, 5):
        told[0] = seen(devices=(ghost_gpu(samples=samples),), **NO_RUN)
        assert not gates(watch)["devices"].open
    unread.add("processes")
    told[0] = seen(devices=Absent("no driver"), driver=Absent("no driver"), processes=Unknown("not read yet"))
    assert gates(watch), "without a device nobody waits for the process table"


def test_a_launch_after_a_run_waits_for_a_process_table_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = host(tmp_path, **{"job.devices": ["0"]})
    now_s = CLOCK.monotonic()
    told = [seen(at_s=now_s, processes=Known(processes(), now_s))]
    monkeypatch.setattr(watch._lookout, "poll", lambda run: told[0])
    monkeypatch.setattr(watch._lookout, "unread", lambda *names: False)
    run = OfRun(beat=Absent("none"), progress=Absent("none"))
    watch.judge(run, ProcessId(os.getpid(), 1))
    assert watch.gates(lock_intact=True)
    watch.judge(run, None)
    assert watch.gates(lock_intact=True) == ()
    anew = {"memory": Known(memory(), CLOCK.monotonic()), "disks": (Known(disk(), CLOCK.monotonic()),)}
    for fact in (Known(processes(run=()), CLOCK.monotonic()), Unknown("it hangs")):
        told[0] = seen(at_s=now_s, processes=fact, **anew)
        assert watch.gates(lock_intact=True)


def test_a_launch_after_a_run_waits_for_memory_and_disks_that_were_read_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have died of a disk that filled up between two looks."""
    watch = host(tmp_path, **{"job.devices": []})
    before_s = CLOCK.monotonic()
    told = [seen(memory=Known(memory(), before_s), disks=(Known(disk(), before_s),))]
    monkeypatch.setattr(watch._lookout, "poll", lambda run: told[0])
    monkeypatch.setattr(watch._lookout, "unread", lambda *names: False)
    run = OfRun(beat=Absent("none"), progress=Absent("none"))
    watch.judge(run, ProcessId(os.getpid(), 1))
    assert watch.gates(lock_intact=True)
    watch.judge(run, None)
    assert watch.gates(lock_intact=True) == ()
    now_s = CLOCK.monotonic()
    told[0] = seen(memory=Known(memory(), now_s), disks=(Known(disk(), before_s),))
    assert watch.gates(lock_intact=True) == ()
    told[0] = seen(memory=Known(memory(), now_s), disks=(Known(disk(), now_s),))
    assert watch.gates(lock_intact=True)
    told[0] = seen(memory=Known(memory(), now_s), disks=(Unknown("it hangs"),))
    assert any(not gate.open for gate in watch.gates(lock_intact=True)), "what hangs is told, and waited for no more"


def test_a_misspelt_device_is_told_by_the_supervisor_too(tmp_path: Path) -> None:
    settings = load(environ={}, home=tmp_path, cwd=tmp_path, overrides={"memory.need": "1MiB", "disk.need": "0"})
    watch = HostWatch(settings, folders_in(tmp_path), CLOCK, {"CUDA_VISIBLE_DEVICES": "cuda:0"})
    run = OfRun(beat=Absent("no run is alive"), progress=Absent("no run is alive"))
    try:

        def told() -> list[str]:
            watch.look()
            watch.judge(run, None)
            return [each.reason for each in watch.findings if each.check == "device-missing"]

        (reason,) = wait_for(told, "a finding", timeout_s=15)
        assert "cuda:0 names no device" in reason
    finally:
        watch.close()


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


def test_blindness_is_counted_for_each_fact_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two collectors that fail in turn leave nobody blind; one that fails at every look does."""
    watch = host(tmp_path)
    monkeypatch.setattr(watch._lookout, "poll", lambda run: told)
    for turn in range(20):
        in_turn = {"oom" if turn % 2 else "pressure": Unknown("times out")}
        told = seen(at_s=100.0 * turn, **in_turn)
        assert watch.look().blind_s == 0.0
    for turn in range(20, 24):
        told = seen(at_s=100.0 * turn, **{"driver": Unknown("hangs"), "oom" if turn % 2 else "pressure": Unknown("x")})
        assert watch.look().blind_s == 100.0 * (turn - 20)
    watch.ask_afresh(3.0)
    assert watch.look().blind_s == 0.0


def test_after_a_gap_nothing_old_is_believed(tmp_path: Path) -> None:
    watch = host(tmp_path)
    gates(watch)
    watch.ask_afresh(3.0)
    assert all(not gate.open or gate.name == "lock" for gate in watch.gates(lock_intact=True))
    assert all(gate.open for gate in gates(watch).values())


def make_runs(folder: Path, *names: str) -> None:
    """Folders of runs, oldest first."""
    for age, name in enumerate(names):
        (folder / name).mkdir()
        (folder / name / "output.log").write_text(name)
        os.utime(folder / name, (1000.0 + age, 1000.0 + age))


GHOSTLY = gpu(samples=1, memory_used_bytes=11 << 30, power_watts=61.0, utilization_percent=100)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (seen(), True),
        (seen(devices=known((gpu(xid_counts=Unknown("WSL delivers no events")),))), True),
        (seen(disks=(known(disk(free_bytes=0)),)), True),
        (seen(devices=Unknown("asked")), False),
        (seen(devices=known((gpu(lost_code=15),))), False),
        (seen(devices=known((GHOSTLY,)), processes=known(processes(run=()))), False),
    ],
    ids=["in order", "unknown for good", "another trouble", "unseen", "lost", "one look of a ghost"],
)
def test_calm_is_what_nothing_about_the_devices_speaks_against(facts: Facts, expected: bool) -> None:
    assert calm(facts, catalogue.judge(facts, Limits(devices=(UUID,)))) is expected


def test_run_folders_beyond_the_newest_are_dropped(tmp_path: Path) -> None:
    """By time, not by name or number: numbers begin anew when a ledger is lost. Links are not followed."""
    make_runs(tmp_path, "30-a", "2-b", "9-c", "10-d", "1-e")
    (tmp_path / "3-link").symlink_to(tmp_path / "30-a")
    (tmp_path / "4-file").write_text("")
    drop_old_runs(tmp_path, 3, None)
    assert sorted(os.listdir(tmp_path)) == ["1-e", "10-d", "3-link", "4-file", "9-c"]
    drop_old_runs(tmp_path, 3, None)
    drop_old_runs(tmp_path / "none", 3, None)
    assert len(os.listdir(tmp_path)) == 5


@pytest.mark.parametrize("keep", [1, 2, 4])
@pytest.mark.parametrize("living", ["1-a", "2-b", "3-c"])
def test_the_folder_of_the_living_run_is_spared_however_old_it_is(living: str, keep: int, tmp_path: Path) -> None:
    """Its beat, its acknowledgement and its exit record are there."""
    names = ["1-a", "2-b", "3-c", "30-d"]
    make_runs(tmp_path, *names)
    for _ in range(3):
        drop_old_runs(tmp_path, keep, living)
    assert sorted(os.listdir(tmp_path)) == sorted({living, *names[-keep:]})
    assert (tmp_path / living / "output.log").read_text() == living


def test_what_is_no_run_is_not_dropped_with_them(tmp_path: Path) -> None:
    """A person may keep something there; nobody but a run is ours to delete."""
    make_runs(tmp_path, "notes", "x-1", "1-a", "2-b", "3-c")
    drop_old_runs(tmp_path, 2, "3-c")
    assert sorted(os.listdir(tmp_path)) == ["2-b", "3-c", "notes", "x-1"]


def test_the_gate_takes_what_the_last_run_had_when_memory_ran_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a host with 22.9 GiB to be had; and its finding says the same."""
    watch = host(tmp_path)
    roomy = seen(
        memory=memory(available_bytes=int(22.9 * GIB), host_available_bytes=int(22.9 * GIB), total_bytes=23 * GIB),
        beat=Absent("no run"),
        processes=processes(run=(), holders=()),
    )
    monkeypatch.setattr(watch._lookout, "poll", lambda run: roomy)
    assert gates(watch)["memory"].words == "memory 22.9 GiB ≥ 1.0 MiB"
    ran_out = HostMemory(run_id="1-a", peak_bytes=10 * GIB, ran_out=True)
    watch.remember(ran_out)
    assert gates(watch)["memory"].words == "memory 22.9 ≥ 11.2 GiB (its last run had 10.0 GiB when memory ran out)"
    short = seen(
        memory=memory(available_bytes=8 * GIB, host_available_bytes=8 * GIB, total_bytes=23 * GIB),
        beat=Absent("no run"),
        processes=processes(run=(), holders=()),
    )
    monkeypatch.setattr(watch._lookout, "poll", lambda run: short)
    gate = gates(watch)["memory"]
    assert (gate.open, gate.short, watch.memory_need_bytes) == (False, True, int(10 * GIB * 1.1) + 256 * 1024**2)
    found = catalogue.judge(short, watch.limits)
    reason = next(each.reason for each in found if each.check == "memory")
    assert reason == "8.0 GiB available, 11.2 GiB are needed: its last run had 10.0 GiB when memory ran out"
    watch.remember(HostMemory(run_id="2-b", peak_bytes=10 * GIB))
    assert gates(watch)["memory"].open
