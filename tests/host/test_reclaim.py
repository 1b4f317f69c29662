"""Asking the kernel for memory: the real child and real files, a real memory cgroup, and the command.

Nothing here drops the page cache of this host: what would is aimed at a fixture tree, or run dry.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.host.test_memory import FILL_THE_CACHE, MIB, Group, group  # noqa: F401  (a fixture)
from tests.unit.collectors.test_memory import Tree
from watchdog.actuators.reclaim import Outcome, Reclaimer, _said, outcome_record, outcome_words
from watchdog.clock import SystemClock
from watchdog.collectors.filesystems import filesystem_of
from watchdog.collectors.memory import memory_total
from watchdog.collectors.reclaimable import HELPER
from watchdog.collectors.roots import Roots
from watchdog.core.reclaiming import Goal, How, Step, Switch
from watchdog.errors import EXIT_FAILURE, EXIT_HELD, EXIT_HOLD, EXIT_OK, EXIT_USAGE, HeldError, SettingsError
from watchdog.folders import JobFolders
from watchdog.places import folders_of
from watchdog.reclaiming import Report, reclaim_by_hand
from watchdog.settings import Settings, load

GIB = 1024**3


class Host(Tree):
    """A host of files, 1,000 MiB of it unused and 2,000 in the page cache."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.free(1000)
        self.write("/proc/sys/vm/drop_caches", "")
        self.write("/proc/sys/vm/compact_memory", "")
        self.write("/proc/self/mountinfo", self.mounts[0] + "\n")
        self.roots = Roots(str(base))

    def free(self, mib: int) -> None:
        figures = {"MemTotal": 8192, "MemFree": mib, "MemAvailable": mib + 1500, "Cached": 2000}
        self.write("/proc/meminfo", "".join(f"{name}: {value * 1024} kB\n" for name, value in figures.items()))

    def v2_group(self) -> Path:
        """A group of 900 MiB, 500 of them used, 300 of those by files."""
        self.mount("/sys/fs/cgroup", "cgroup2", "rw")
        self.write("/proc/self/mountinfo", "\n".join(self.mounts) + "\n")
        self.write("/proc/self/cgroup", "0::/job\n")
        self.v2("/sys/fs/cgroup/job", limit=str(900 * MIB), usage=500 * MIB, files=300 * MIB)
        control = self.base / "sys/fs/cgroup/job/memory.reclaim"
        control.write_text("")
        return control

    def text(self, name: str) -> str:
        return (self.base / "proc/sys/vm" / name).read_text()

    def act(self, target_bytes: int, *, run_lives: Callable[[], bool] | None = None, **changes: Any) -> Outcome:
        reclaimer = Reclaimer(self.roots, SystemClock(), sync=[self.base], **changes)
        goal = Goal(target_bytes=target_bytes, free=True)
        return reclaimer.act(goal, reclaimer.look(), run_lives=run_lives, step_s=5.0)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


# --- the child, on files ------------------------------------------------------------------------------------
def test_a_group_of_v2_is_asked_for_what_it_lacks_and_for_no_swap(host: Host) -> None:
    control = host.v2_group()
    outcome = host.act(600 * MIB)
    assert control.read_text() == f"{200 * MIB} swappiness=0"
    assert host.text("drop_caches") == "", "the host has room"
    assert [(done.step.how, done.failed, done.words) for done in outcome.done] == [(How.RECLAIM, False, "done")]
    assert not outcome.met, "the figures decide, not the kernel's word"


def test_a_kernel_without_the_key_is_asked_without_it(host: Host) -> None:
    """A real file that takes a number and answers EINVAL to anything behind it."""
    control = host.v2_group()
    control.unlink()
    control.symlink_to("/proc/self/oom_score_adj")
    outcome = host.act(400 * MIB + 700)
    assert [done.words for done in outcome.done] == ["done, without swappiness=0, which this kernel does not know"]
    outcome = host.act(400 * MIB + 7000)
    (done,) = outcome.done
    assert done.failed
    assert "EINVAL" in done.words


def test_less_than_was_asked_for_is_no_failure() -> None:
    step = Step(how=How.RECLAIM, path="/x", where="cgroup /a", expected_bytes=GIB, amount_bytes=GIB)
    failed, words = _said(step, {"errno": 11, "asked": 5, "plain": False})
    assert not failed
    assert words.startswith("partly")


def test_the_caches_of_the_host_come_last_and_pages_are_put_together_on_wsl(host: Host) -> None:
    control = host.v2_group()
    host.write("/proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n")
    outcome = host.act(2000 * MIB)
    assert control.read_text()
    assert (host.text("drop_caches"), host.text("compact_memory")) == ("3", "1")
    assert [done.step.how for done in outcome.done] == [How.RECLAIM, How.DROP_CACHES, How.COMPACT]


def test_it_stops_as_soon_as_there_is_room(host: Host) -> None:
    host.v2_group()
    looks = []

    def run_lives() -> bool:
        looks.append(1)
        if len(looks) == 1:  # what the first step frees, seen by the look after it
            host.free(3000)
            host.v2("/sys/fs/cgroup/job", limit=str(4000 * MIB), usage=100 * MIB)
        return False

    outcome = host.act(2000 * MIB, run_lives=run_lives)
    assert [done.step.how for done in outcome.done] == [How.RECLAIM]
    assert outcome.met
    assert outcome.freed_bytes == 2000 * MIB
    assert host.text("drop_caches") == ""
    assert "the guest freed 2.0 GiB" in outcome_words(outcome)


def test_a_run_that_began_meanwhile_ends_it(host: Host) -> None:
    host.v2_group()
    answers = iter([False, True])
    outcome = host.act(2000 * MIB, run_lives=lambda: next(answers))
    assert [done.step.how for done in outcome.done] == [How.RECLAIM]
    assert host.text("drop_caches") == ""


def test_what_hangs_in_the_kernel_is_given_up_and_said(host: Host) -> None:
    control = host.v2_group()
    control.unlink()
    os.mkfifo(control)  # nobody reads: opening it never returns
    reclaimer = Reclaimer(host.roots, SystemClock(), sync=[])
    started_s = SystemClock().monotonic()
    outcome = reclaimer.act(Goal(target_bytes=600 * MIB, free=True), reclaimer.look(), step_s=0.5)
    assert SystemClock().monotonic() - started_s < 5
    (done,) = outcome.done
    assert done.failed
    assert "did not answer within 0.5 s" in done.words


def test_after_its_time_no_step_is_begun(host: Host) -> None:
    control = host.v2_group()
    reclaimer = Reclaimer(host.roots, SystemClock(), sync=[])
    outcome = reclaimer.act(Goal(target_bytes=600 * MIB, free=True), reclaimer.look(), all_s=-1.0)
    assert (outcome.done, control.read_text()) == ((), "")
    assert "no step was begun" in outcome.note


def test_without_the_right_the_file_is_named_and_nothing_is_tried(host: Host) -> None:
    reclaimer = Reclaimer(host.roots, SystemClock(), sync=[])
    seen = reclaimer.look()
    assert seen.drop_caches is not None
    before = _with(seen, drop_caches=Switch(path=seen.drop_caches.path, writable=False))
    outcome = reclaimer.act(Goal(target_bytes=2000 * MIB, free=True), before, step_s=5.0)
    (done,) = outcome.done
    assert done.failed
    assert seen.drop_caches.path in done.words
    assert outcome.refused == (done.step,)
    assert host.text("drop_caches") == ""
    assert outcome_record(outcome)["steps"][0]["failed"] is True


@pytest.mark.parametrize(("answer", "failed"), [("echo done", False), ("exit 1", True)])
def test_the_helper_is_run_by_sudo_without_asking(host: Host, tmp_path: Path, answer: str, failed: bool) -> None:
    sudo = tmp_path / "sudo"
    sudo.write_text(f'#!/bin/sh\nprintf "%s" "$*" > {tmp_path / "asked"}\n{answer}\n')
    sudo.chmod(0o755)
    reclaimer = Reclaimer(host.roots, SystemClock(), sync=[host.base], helper="/opt/helper", sudo=str(sudo))
    before = _with(reclaimer.look(), drop_caches=Switch(path=str(tmp_path / "none"), writable=True))
    outcome = reclaimer.act(Goal(target_bytes=2000 * MIB, free=True), before, step_s=5.0)
    assert (tmp_path / "asked").read_text() == "-n /opt/helper drop_caches"
    assert outcome.done[0].failed is failed
    assert ("sudoers" in outcome.done[0].words) is failed


def _with(layout: Any, **changes: Any) -> Any:
    from msgspec.structs import replace

    return replace(layout, **changes)


# --- a real cgroup ------------------------------------------------------------------------------------------
def test_a_real_group_gives_its_page_cache_back(group: Group, tmp_path: Path) -> None:  # noqa: F811
    """40 MiB of a file in a group of 96 MiB; so little is asked for that the host itself has it."""
    if filesystem_of(tmp_path) in ("tmpfs", "ramfs"):
        pytest.skip("the test's folder is in memory: its pages have no file to go back to")
    argv = [sys.executable, "-I", "-S", "-c", FILL_THE_CACHE, group.members, str(tmp_path / "cached")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "filled\n"
        reclaimer = Reclaimer(group.roots, SystemClock(), sync=[tmp_path])
        before = reclaimer.look()
        own = before.groups[0]
        assert own.path == group.path
        assert own.file_bytes >= 30 * MIB
        if not own.control or own.swaps:
            process.communicate("")
            pytest.skip("this kernel gives no group's cache back, or would swap for it")
        used = group.usage()
        assert own.limit_bytes is not None
        assert before.host_free_bytes > own.limit_bytes, "too little memory on this host for this test"
        outcome = reclaimer.act(Goal(target_bytes=own.limit_bytes - 20 * MIB, free=True), before)
        after = group.usage()
        process.communicate("")
    assert [done.step.path for done in outcome.done] == [own.control], "the group alone, not the host"
    assert not outcome.done[0].failed, outcome.done[0].words
    assert used - after >= 25 * MIB, f"{used / MIB:.0f} to {after / MIB:.0f} MiB"
    assert outcome.met
    assert outcome.after.groups[0].file_bytes < own.file_bytes


FILL_THE_SLAB = """
import os, sys
group, folder, *command = sys.argv[1:]
open(group, 'w').write(str(os.getpid()))
for number in range(700_000):  # each name that is not there leaves a negative dentry of 192 bytes, charged to the group
    try:
        os.stat(f'{folder}/{number}')
    except OSError:
        pass
os.execv(command[0], command)
"""


def test_a_launch_waits_for_room_that_is_made(group: Group, tmp_path: Path) -> None:  # noqa: F811
    """Slab that the kernel can give up counts as held: the gate is closed, one try opens it, and the run starts."""
    if filesystem_of(tmp_path) in ("tmpfs", "ramfs"):
        pytest.skip("the test's folder is in memory, where no negative dentries are kept")
    limit = next(each for each in ("memory.max", "memory.limit_in_bytes") if (group.folder / each).exists())
    (group.folder / limit).write_text(str(512 * MIB))
    seen = Reclaimer(group.roots, SystemClock(), sync=[]).look()
    if not seen.groups[0].control or seen.groups[0].swaps or seen.host_free_bytes < 2 * GIB:
        pytest.skip("this kernel gives no group's cache back without swapping, or the host itself is short of memory")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUHOST")}
    environment |= {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    environment |= {f"GPUHOST_WATCHDOG_{name}": value for name, value in _CLOSE_TO_THE_LIMIT.items()}
    empty = tmp_path / "empty"
    empty.mkdir()
    argv = [sys.executable, "-I", "-S", "-c", FILL_THE_SLAB, group.members, str(empty)]
    argv += [sys.executable, "-P", "-c", "from watchdog.cli import main; main()", "run", "--", "sleep", "0.1"]
    ran = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=90, check=False, cwd=tmp_path)
    assert ran.returncode == EXIT_OK, ran.stdout + ran.stderr
    (ledger,) = (tmp_path / "state").glob("gpuhost-watchdog/*/ledger.jsonl")
    events = [json.loads(line) for line in ledger.read_text().splitlines()]
    told = [event for event in events if event["event"] in ("reclaiming", "reclaimed", "run_launching")]
    assert [event["event"] for event in told] == ["reclaiming", "reclaimed", "run_launching"], ran.stdout
    before, after = told[1]["data"]["before"], told[1]["data"]["after"]
    assert before["available_bytes"] < 430 * MIB <= after["available_bytes"]
    assert told[1]["data"]["met"] is True
    assert [os.path.dirname(step["path"]) for step in told[1]["data"]["steps"]] == [str(group.folder)]


_CLOSE_TO_THE_LIMIT = {"MEMORY__NEED": "430MiB", "DISK__NEED": "0", "METRICS__PORT": "0", "JOB__DEVICES": "[]"}


# --- by hand ------------------------------------------------------------------------------------------------
@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    return load(environ={}, home=home, cwd=home, overrides={"state.folder": str(home / "state")})


def by_hand(settings: Settings, host: Host, target: str | None = "3GiB", **changes: Any) -> Report:
    values: dict[str, Any] = {"dry_run": False, "beside_run": False}
    return reclaim_by_hand(settings, target=target, roots=host.roots, **(values | changes))


def ledger_of(settings: Settings) -> list[dict[str, Any]]:
    path = settings.state.folder / "reclaims.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_by_hand_it_is_recorded_before_and_after(settings: Settings, host: Host) -> None:
    report = by_hand(settings, host)
    assert host.text("drop_caches") == "3"
    before, after = ledger_of(settings)
    assert (before["event"], after["event"]) == ("reclaiming", "reclaimed")
    assert before["data"]["before"]["host_free_bytes"] == 1000 * MIB
    assert after["data"]["steps"][0]["result"] == "done"
    assert report.exit_code == EXIT_FAILURE, "the files of this host free nothing"
    assert report.record["met"] is False
    assert any(line.startswith("freed") for line in report.lines)
    json.dumps(report.record, allow_nan=False)


def test_a_dry_run_says_the_steps_and_touches_nothing(settings: Settings, host: Host) -> None:
    report = by_hand(settings, host, dry_run=True)
    assert report.exit_code == EXIT_OK
    assert any("drop_caches of the host: up to 2.0 GiB" in line for line in report.lines)
    assert report.lines[-1] == "nothing was done (dry run)"
    assert report.record["steps"][0]["permitted"] is True
    assert host.text("drop_caches") == ""
    assert not settings.state.folder.exists()


def test_with_room_enough_nothing_is_done(settings: Settings, host: Host) -> None:
    assert by_hand(settings, host, "900MiB").exit_code == EXIT_OK
    assert (ledger_of(settings), host.text("drop_caches")) == ([], "")


def test_without_a_target_the_jobs_need_is_meant(settings: Settings, host: Host) -> None:
    assert by_hand(settings, host, None).record["target_bytes"] == settings.memory.need_bytes


def test_more_than_the_host_has_is_refused_before_anything_is_dropped(settings: Settings, host: Host) -> None:
    with pytest.raises(SettingsError, match=r"--target 9GiB: this host has 8\.0 GiB of memory in all"):
        by_hand(settings, host, "9GiB")
    assert (ledger_of(settings), host.text("drop_caches")) == ([], "")
    assert by_hand(settings, host, "8GiB", dry_run=True).record["met"] is False


@pytest.mark.parametrize("target", ["much", "0", "-1GiB"])
def test_a_target_that_is_none(settings: Settings, host: Host, target: str) -> None:
    with pytest.raises(SettingsError, match="--target"):
        by_hand(settings, host, target)


def locked_run(folders: JobFolders) -> int:
    folders.run_lock.parent.mkdir(parents=True)
    fd = os.open(folders.run_lock, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def test_beside_a_living_run_only_when_asked(settings: Settings, host: Host) -> None:
    fd = locked_run(folders_of(settings))
    try:
        report = by_hand(settings, host)
        assert report.exit_code == EXIT_HOLD
        assert f"pid {os.getpid()}" in "\n".join(report.lines)
        assert "--beside-run" in report.lines[-1]
        assert host.text("drop_caches") == ""
        by_hand(settings, host, beside_run=True)
        assert host.text("drop_caches") == "3"
    finally:
        os.close(fd)


def test_one_at_a_time(settings: Settings, host: Host) -> None:
    settings.state.folder.mkdir(parents=True)
    fd = os.open(settings.state.folder / "reclaims.lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(HeldError) as failure:
            by_hand(settings, host)
        assert failure.value.exit_code == EXIT_HELD
    finally:
        os.close(fd)


def test_the_command_on_this_very_host_run_dry(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUHOST")}
    environment |= {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}

    def reclaim(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-P", "-c", "from watchdog.cli import main; main()", "reclaim", *words]
        return subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=60, check=False)

    total = str(memory_total(Roots()))  # all of it is never free
    dry = reclaim("--target", total, "--dry-run", "--json")
    assert dry.returncode in (EXIT_OK, EXIT_FAILURE, EXIT_HOLD), dry.stderr
    record = json.loads(dry.stdout)
    assert record["dry_run"] is True
    assert record["exit_code"] == dry.returncode
    assert record["met"] is False
    assert not (tmp_path / "state").exists()
    enough = reclaim("--target", "1MiB")
    assert (enough.returncode, enough.stdout.splitlines()[-1]) == (EXIT_OK, "nothing   there is room enough")
    wrong = reclaim("--target", "a lot")
    assert wrong.returncode == EXIT_USAGE
    assert "a lot" in wrong.stderr
    for more in ((), ("--dry-run",)):
        too_much = reclaim("--target", "99999TiB", *more)
        assert (too_much.returncode, too_much.stdout) == (EXIT_USAGE, "")
        assert "--target 99999TiB: this host has" in too_much.stderr


# The Python of whoever runs the tests may be closed to others: a dry run imports all before the user is changed.
AS_NOBODY = """
import os, sys
sys.argv[0] = 'watchdog'
from watchdog.cli import main
asked = list(sys.argv)
sys.argv.append('--dry-run')
try:
    main()
except SystemExit:
    print('---')
sys.argv[:] = asked
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
main()
"""


def test_without_root_it_says_what_was_not_permitted_and_the_one_command() -> None:
    """Really as another user, and not dry: the kernel refuses, so this host keeps its cache."""
    if os.geteuid() != 0 or os.path.exists(HELPER):
        pytest.skip("needs root to become another user, and no helper that would let that one drop caches")
    total = f"{memory_total(Roots()) // MIB}MiB"
    home = Path(tempfile.mkdtemp(prefix="gpuhost-watchdog-", dir="/tmp"))
    try:
        home.chmod(0o777)
        command = [sys.executable, "-P", "-c", AS_NOBODY, "reclaim", "--target", total]
        environment = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "PATH": os.environ["PATH"]}
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment, cwd="/")
        assert ran.returncode == EXIT_HOLD, ran.stdout + ran.stderr
        assert "uid 65534 may not write /proc/sys/vm/drop_caches" in ran.stdout
        assert ran.stdout.splitlines()[-1].startswith("next      sudo "), ran.stdout
        assert f"reclaim --target {total}" in ran.stdout.splitlines()[-1]
        kept = [json.loads(line) for line in (home / "state/gpuhost-watchdog/reclaims.jsonl").read_text().splitlines()]
        assert [event["event"] for event in kept] == ["reclaiming", "reclaimed"]
    finally:
        shutil.rmtree(home)
