"""Disks: figures of this host, and a child for what may hang."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.handclock import HandClock
from watchdog.clock import SystemClock
from watchdog.collectors import disks
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Disk, Known, Unknown


def host_with(tmp_path: Path, *mounts: str) -> Roots:
    folder = tmp_path / "host/proc/self"
    folder.mkdir(parents=True)
    lines = ["22 1 254:0 / / rw - ext4 /dev/vda rw", *mounts]
    (folder / "mountinfo").write_text("\n".join(lines) + "\n")
    return Roots(str(tmp_path / "host"))


def read(path: Path, roots: Roots, deadline_s: float = 10.0) -> Disk:
    fact = disks.DiskReader(str(path), "state", roots, SystemClock()).read(deadline_s)
    assert isinstance(fact, Known), fact
    return fact.value


def test_a_folder_that_does_not_exist_yet_is_its_parents_disk(tmp_path: Path) -> None:
    disk = read(tmp_path / "not/yet", Roots())
    figures = os.statvfs(tmp_path)
    assert disk.total_bytes == figures.f_frsize * figures.f_blocks
    assert 0 <= disk.free_bytes <= disk.total_bytes
    assert (disk.path, disk.purpose) == (str(tmp_path / "not/yet"), "state")


def test_no_inodes_counted_is_none_and_none_left_is_zero() -> None:
    assert disks.room(4096, 100, 50, 0, 0).free_inodes is None
    assert disks.room(4096, 100, 50, 10, 0).free_inodes == 0
    assert disks.parse_room("4096 100 50 10 7\n") == disks.Room(free_bytes=204800, total_bytes=409600, free_inodes=7)


def test_a_file_system_that_may_hang_is_asked_by_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = tmp_path / "mnt"
    remote.mkdir()
    roots = host_with(tmp_path, f"30 22 0:40 / {remote} rw - 9p C: rw,aname=drvfs")

    def never(path: str) -> os.statvfs_result:
        raise AssertionError(f"statvfs of {path} in this process")

    monkeypatch.setattr(disks.os, "statvfs", never)
    disk = read(remote / "not/yet", roots)
    assert (disk.filesystem, disk.true_flock, disk.drvfs) == ("9p", False, True)
    assert disk.total_bytes > 0


def test_a_child_that_hangs_is_a_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = tmp_path / "mnt"
    roots = host_with(tmp_path, f"30 22 0:40 / {remote} rw - nfs4 server:/x rw")
    monkeypatch.setattr(disks, "_CHILD", disks._CHILD.replace("s = os.statvfs(path)", "signal.pause()"))
    fact = disks.DiskReader(str(remote), "state", roots, SystemClock()).read(0.5)
    assert isinstance(fact, Unknown)
    assert "did not answer within 0.5 s" in fact.why
    assert "nfs4" in fact.why


def test_read_only_is_told(tmp_path: Path) -> None:
    assert read(tmp_path, host_with(tmp_path, f"30 22 0:40 / {tmp_path} ro - ext4 /dev/sdb rw")).read_only


DRIVE = "{id} 22 0:40 {root} {point} rw,noatime - {kind} {source} {options}"


def drive(point: str, kind: str = "9p", source: str = "C:\\134", options: str = "", root: str = "/") -> str:
    return DRIVE.format(id=30, root=root, point=point, kind=kind, source=source, options=options or "rw")


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        ([], None),
        ([drive("/mnt/wsl", "tmpfs", "none"), drive("/init", "9p", "none", "rw,aname=wsl2")], None),
        ([drive("/mnt/d", options=r"rw,aname=drvfs;path=D:\;uid=0"), drive("/mnt/c", options="rw,aname=x")], None),
        (
            [
                drive("/mnt/d", source="D:", options=r"rw,aname=drvfs;path=D:\134;uid=1000,trans=fd"),
                drive("/mnt/c", options=r"rw,aname=drvfs;path=C:\134;uid=1000;symlinkroot=/mnt/,cache=5,trans=fd"),
            ],
            "/mnt/c",
        ),
        ([drive("/win\\040drives/c", options=r"rw,aname=drvfs;path=C:\;uid=0")], "/win drives/c"),
        # Docker Desktop binds folders of C: everywhere; the usual place goes first
        (
            [
                drive("/app", options=r"rw,aname=drvfs;path=C:\;uid=0", root="/src"),
                drive("/mnt/c", options=r"rw,aname=drvfs;path=C:\;uid=0"),
            ],
            "/mnt/c",
        ),
        ([drive("/mnt/d", "virtiofs", "drvfsD1"), drive("/mnt/c", "virtiofs", "drvfsaC0")], "/mnt/c"),
        ([drive("/run/wsl/x", "virtiofs", "drvfsa"), drive("/mnt/c", "virtiofs", "drvfsa", root="/0f2b")], "/mnt/c"),
        ([drive("/mnt/c", "drvfs", "C:")], "/mnt/c"),
        ([drive("/srv/c", "virtiofs", "share")], None),
    ],
)
def test_the_drive_behind_windows(tmp_path: Path, mounts: list[str], found: str | None) -> None:
    assert disks.windows_drive(host_with(tmp_path, *mounts)) == found


def test_looks_are_kept_a_second_apart_and_this_one_is_not_among_them(tmp_path: Path) -> None:
    clock = HandClock(100.0)
    reader = disks.DiskReader(str(tmp_path), "state", Roots(), clock)

    def earlier_at(now_s: float) -> list[float]:
        clock.now_s = now_s
        fact = reader.read()
        assert isinstance(fact, Known)
        assert fact.at_s == now_s
        return [at_s for at_s, free_bytes in fact.value.earlier if free_bytes > 0]

    assert earlier_at(100.0) == []
    assert earlier_at(100.5) == [100.0]
    assert earlier_at(101.0) == [100.0]
    assert earlier_at(102.5) == [100.0, 101.0]
    reader.forget()
    assert earlier_at(104.0) == []
    assert earlier_at(105.0) == [104.0]


def test_a_day_of_looks_is_a_window_of_hours() -> None:
    looks = disks._Looks()
    for second in range(86_400):
        earlier = looks.before(float(second), 1000, (8, 1))
        assert len(earlier) <= 120
    times = [at_s for at_s, _ in earlier]
    gaps = {after - before for before, after in itertools.pairwise(times)}
    assert 2 * 3600 <= times[-1] - times[0] <= 5 * 3600
    assert len(gaps) == 1  # evenly apart, or a rate would be that of the last minute
    assert 86_400 - times[-1] <= 2 * max(gaps)
    assert looks.before(86_401.0, 1000, (8, 2)) == ()  # another file system on the same path


def block(roots: Roots, number: str, path: str, *, partition: bool = False, slaves: tuple[str, ...] = ()) -> None:
    """A block device in sysfs: `/sys/dev/block/MAJOR:MINOR` leads to its folder."""
    folder = Path(roots.sys, "devices", path)
    folder.mkdir(parents=True, exist_ok=True)
    if partition:
        (folder / "partition").write_text("1\n")
    for slave in slaves:
        (folder / "slaves").mkdir(exist_ok=True)
        (folder / "slaves" / Path(slave).name).symlink_to(Path(roots.sys, "devices", slave))
    link = Path(roots.sys, "dev/block", number)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)


def test_the_devices_behind_a_path_and_behind_the_root_are_told(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    roots = host_with(tmp_path, f"30 22 253:0 / {data} rw - ext4 /dev/mapper/x rw")
    assert read(data, roots).devices == ()  # no sysfs
    block(roots, "254:0", "virtio0/block/vda")
    block(roots, "8:17", "ata2/block/sdb/sdb1", partition=True)
    block(roots, "253:0", "virtual/block/dm-0", slaves=("ata2/block/sdb/sdb1",))
    assert read(data, roots).devices == ("dm-0", "sdb", "sdb1", "vda")
    assert read(tmp_path, roots).devices == ("vda",)


@pytest.mark.parametrize("number", ["7:0", "0:41"])
def test_what_lies_on_a_file_or_on_devices_unnamed_is_not_told(tmp_path: Path, number: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    roots = host_with(tmp_path, f"30 22 {number} / {data} rw - btrfs /dev/loop0 rw")
    block(roots, "254:0", "virtio0/block/vda")
    block(roots, "7:0", "virtual/block/loop0")
    assert read(data, roots).devices == ()
