"""Disks: figures of this host, and a child for what may hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
    assert (disk.filesystem, disk.true_flock) == ("9p", False)
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
