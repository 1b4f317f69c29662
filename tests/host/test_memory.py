"""Memory, pressure, OOM kills and the kernel log, as the real kernel tells them.

Makes one memory cgroup of its own, with a limit, and removes it again. A line is written to the kernel log as user
space: it must not be believed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from watchdog.clock import SystemClock
from watchdog.collectors import cgroups
from watchdog.collectors.filesystems import filesystem_of
from watchdog.collectors.kernel_log import KernelLogReader, parse_record
from watchdog.collectors.memory import read_memory
from watchdog.collectors.oom import OomReader
from watchdog.collectors.pressure import PressureReader
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Known
from watchdog.core.kernel import KernelKind

MIB = 1024**2
LIMIT = 96 * MIB
Wait = Callable[..., object]

JOIN = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()))\n"
FILL_THE_CACHE = (
    JOIN
    + """
with open(sys.argv[2], 'wb') as file:
    for _ in range(40):
        file.write(os.urandom(1 << 20))
    file.flush()
    os.fsync(file.fileno())
print('filled', flush=True)
sys.stdin.read()
"""
)
TAKE_TOO_MUCH = JOIN + "taken = bytearray(os.urandom(1 << 20)) * 400\nprint('alive', flush=True)\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """A cgroup with a limit, and the host as one of its processes sees it."""

    folder: Path
    path: str
    roots: Roots

    @property
    def members(self) -> str:
        return str(self.folder / "cgroup.procs")

    def usage(self) -> int:
        names = ("memory.current", "memory.usage_in_bytes")
        return next(int((self.folder / name).read_text()) for name in names if (self.folder / name).exists())


def _limit(folder: Path) -> bool:
    for name, swap in (("memory.max", "memory.swap.max"), ("memory.limit_in_bytes", "memory.swappiness")):
        if (folder / name).exists():
            (folder / name).write_text(str(LIMIT))
            with contextlib.suppress(OSError):  # a host with swap would swap instead of killing
                (folder / swap).write_text("0")
            return True
    return False


@pytest.fixture
def group(tmp_path: Path, wait_until: Wait) -> Iterator[Group]:
    if os.geteuid() != 0:
        pytest.skip("only root can make a memory cgroup")
    controller = cgroups.own_controller(Roots())
    if controller is None:
        pytest.skip("no memory cgroup is mounted here")
    name = f"gpuhost-watchdog-test-{os.getpid()}"
    for parent in cgroups.ancestors(
        controller.path
    ):  # in v2 a group with processes gives no controller to its children
        folder = Path(controller.folder(parent, Roots())) / name
        try:
            folder.mkdir()
        except OSError:
            continue
        if _limit(folder):
            break
        folder.rmdir()
    else:
        pytest.skip("no memory cgroup with a limit can be made here")
    path = f"{parent.rstrip('/')}/{name}"
    try:
        yield Group(folder=folder, path=path, roots=_seen_from(controller, path, tmp_path / "host"))
    finally:
        wait_until(lambda: _removed(folder), "the test's cgroup to be empty and removed")


def _removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def _seen_from(controller: cgroups.Controller, path: str, base: Path) -> Roots:
    """The real host, but for what `/proc/self` says of our group."""
    (base / "proc/self").mkdir(parents=True)
    for name in ("meminfo", "vmstat"):
        (base / "proc" / name).symlink_to(f"/proc/{name}")
    point = base / controller.point.lstrip("/")
    point.parent.mkdir(parents=True)
    point.symlink_to(controller.point)
    kind, options, line = ("cgroup2", "rw", "0::") if controller.version == 2 else ("cgroup", "rw,memory", "4:memory:")
    mount = f"30 22 0:26 / {controller.point} rw - {kind} {kind} {options}\n"
    (base / "proc/self/mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mount)
    (base / "proc/self/cgroup").write_text(line + path + "\n")
    return Roots(str(base))


def test_file_pages_are_used_but_not_held(group: Group, tmp_path: Path) -> None:
    """40 MiB of a file fill the cache of a group of 96 MiB: used, and to be had all the same."""
    if filesystem_of(tmp_path) in ("tmpfs", "ramfs"):
        pytest.skip("the test's folder is in memory: its pages have no file to go back to")
    argv = [sys.executable, "-I", "-S", "-c", FILL_THE_CACHE, group.members, str(tmp_path / "cached")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "filled\n"
        used = group.usage()
        fact = read_memory(group.roots, SystemClock())
        process.communicate("")
    assert isinstance(fact, Known)
    limit = fact.value.limits[0]
    assert (limit.cgroup, limit.limit_bytes) == (group.path, LIMIT)
    assert used > 40 * MIB
    assert 0 < limit.held_bytes < used - 35 * MIB
    assert fact.value.available_bytes > LIMIT - 40 * MIB
    assert fact.value.cached_bytes > 35 * MIB


def test_a_real_oom_kill_is_counted_and_in_the_log(group: Group, wait_until: Wait) -> None:
    counters = OomReader(group.roots, SystemClock())
    log = KernelLogReader(Roots(), SystemClock())
    first = counters.read()
    assert isinstance(first, Known)
    assert (first.value.cgroup_path, first.value.since_cgroup) == (group.path, 0)
    argv = [sys.executable, "-I", "-S", "-c", TAKE_TOO_MUCH, group.members]
    victim = subprocess.Popen(argv, stdout=subprocess.PIPE)
    output, _ = victim.communicate(timeout=30)
    assert (victim.returncode, output) == (-signal.SIGKILL, b"")

    second = counters.read()
    assert isinstance(second, Known)
    assert second.value.since_cgroup == 1
    assert second.value.since_host >= 1

    def told() -> bool:
        fact = log.read()
        if not isinstance(fact, Known):
            pytest.skip(f"counted, but the log cannot be read here: {fact}")
        kills = [line for line in fact.value.lines if line.kind is KernelKind.OOM_KILL]
        return [line.subject for line in kills if line.number == victim.pid] == [os.path.basename(sys.executable)[:15]]

    try:
        wait_until(told, "exactly one line about the process that was killed")
    finally:
        log.close()


def test_pressure_is_told_one_way_or_the_other() -> None:
    reader = PressureReader(Roots(), SystemClock())
    fact = reader.read()
    assert isinstance(fact, Known)
    try:
        has_psi = Path("/proc/pressure/memory").read_text() != ""
    except OSError:
        has_psi = False
    assert fact.value.from_psi is has_psi
    assert 0.0 <= fact.value.full_avg10_percent <= fact.value.some_avg10_percent + 0.01 <= 100.01


def test_what_user_space_writes_to_the_kernel_log_is_not_believed(wait_until: Wait) -> None:
    if os.geteuid() != 0 or not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("only root can write to the kernel log, and not in every container")
    reader = KernelLogReader(Roots(), SystemClock())
    before = reader.read()
    if not isinstance(before, Known):
        pytest.skip(f"the kernel log cannot be read here: {before}")
    assert 0.0 <= before.value.since_s <= SystemClock().monotonic() + 60.0
    fd = os.open("/dev/kmsg", os.O_RDWR | os.O_NONBLOCK)
    try:
        os.lseek(fd, 0, os.SEEK_END)
        claim = f"INFO: task gpuhost-watchdog-test:{os.getpid()} blocked for more than 120 seconds."
        os.write(fd, f"<3>{claim}\n".encode())  # "<3>": facility 0, as the kernel's own lines have it

        def passed() -> bool:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                record = parse_record(os.read(fd, 8192))
                if record is not None and claim.encode() in record.raw:
                    assert not record.kernel
                    return True
            return False

        wait_until(passed, "our own line in the log (the kernel limits their rate)")
    finally:
        os.close(fd)
    after = reader.read()
    reader.close()
    assert isinstance(after, Known)
    assert not [line for line in after.value.lines if "gpuhost-watchdog-test" in line.text]
