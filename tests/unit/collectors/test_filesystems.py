"""Mounts and paths: which file system, and nothing touched that may hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from watchdog.collectors import filesystems


def proc_with(tmp_path: Path, *lines: str) -> str:
    """A /proc whose mountinfo has these `point kind options super_options` lines, after a root of ext4."""
    text = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
    for number, line in enumerate(lines):
        point, kind, options, super_options = line.split(" ")
        text += f"{30 + number} 22 0:{40 + number} / {point} {options} shared:9 master:1 - {kind} src {super_options}\n"
    folder = tmp_path / "proc/self"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mountinfo").write_text(text)
    return str(tmp_path / "proc")


def test_octal_escapes_are_decoded() -> None:
    assert filesystems.decode(r"/mnt/my\040disk\134x\011y") == "/mnt/my disk\\x\ty"


def test_a_line_that_is_no_mount_is_an_error() -> None:
    with pytest.raises(ValueError, match="mountinfo"):
        filesystems.parse_mountinfo("22 1 254:0 / / rw\n")


def test_fields_are_where_they_should_be() -> None:
    (mount,) = filesystems.parse_mountinfo(
        r"44 27 0:39 /sub /mnt/c\040d ro,noatime shared:1 - 9p C:\134 rw,aname=drvfs;path=C:\134,trans=fd" + "\n"
    )
    assert (mount.device, mount.root, mount.point, mount.kind) == ((0, 39), "/sub", "/mnt/c d", "9p")
    assert mount.source == "C:\\"
    assert "ro" in mount.options
    assert "rw" in mount.super_options


def test_the_longest_prefix_wins_by_whole_components(tmp_path: Path) -> None:
    proc = proc_with(tmp_path, "/data xfs rw rw", "/data/fast btrfs rw rw")
    kinds = [filesystems.filesystem_of(path, proc) for path in ("/data/x", "/data/fast/x", "/data/faster", "/database")]
    assert kinds == ["xfs", "btrfs", "xfs", "ext4"]


def test_of_two_mounts_on_one_point_the_later_is_on_top(tmp_path: Path) -> None:
    assert filesystems.filesystem_of("/data", proc_with(tmp_path, "/data xfs rw rw", "/data nfs4 rw rw")) == "nfs4"


def test_a_path_that_does_not_exist_yet_has_a_nearest_parent(tmp_path: Path) -> None:
    found = filesystems.locate(tmp_path / "a/b/c")
    assert found.existing == str(tmp_path)
    assert found.path == str(tmp_path / "a/b/c")


def test_symbolic_links_and_dots_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/deep")
    assert filesystems.locate(tmp_path / "link/../x").path == str(tmp_path / "real/x")
    assert filesystems.locate(tmp_path / "link").existing == str(tmp_path / "real/deep")


def test_a_relative_path_is_taken_from_where_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert filesystems.locate("new").path == str(tmp_path / "new")


def test_a_circle_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        filesystems.locate(tmp_path / "a")


@pytest.mark.parametrize("kind", ["9p", "drvfs", "nfs4", "cifs", "fuse.sshfs", "virtiofs", "neverheard"])
def test_nothing_is_touched_on_a_mount_that_may_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    remote = tmp_path / "mnt"
    (remote / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(remote / "sub")
    proc = proc_with(tmp_path, f"{remote} {kind} rw rw")
    touched: list[str] = []
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        touched.append(str(path))
        return real(path)

    monkeypatch.setattr(filesystems.os, "lstat", lstat)
    for path in (remote / "sub/x", tmp_path / "link/x"):
        found = filesystems.locate(path, proc)
        assert (found.kind, found.true_flock, found.safe) == (kind, False, False)
        assert found.path == str(remote / "sub/x")
    assert touched
    assert not [path for path in touched if path.startswith(str(remote))]


def test_a_root_of_virtiofs_does_not_condemn_the_volumes_on_it(tmp_path: Path) -> None:
    proc = proc_with(tmp_path, "/ virtiofs rw rw", f"{tmp_path} ext4 rw rw")
    assert filesystems.locate(tmp_path / "x", proc).true_flock
    on_root = filesystems.locate("/etc", proc)
    assert (on_root.kind, on_root.true_flock, on_root.safe) == ("virtiofs", False, True)


@pytest.mark.parametrize(("options", "super_options"), [("ro", "rw"), ("rw", "ro")])
def test_read_only_is_seen_on_the_mount_and_on_the_file_system(
    tmp_path: Path, options: str, super_options: str
) -> None:
    assert filesystems.locate("/data", proc_with(tmp_path, f"/data ext4 {options} {super_options}")).read_only


@pytest.mark.parametrize(
    ("kind", "true"),
    [
        ("ext4", True),
        ("btrfs", True),
        ("tmpfs", True),
        ("overlay", True),
        ("9p", False),
        ("nfs", False),
        ("fuseblk", False),
        ("squashfs", False),
        ("", False),
    ],
)
def test_flock_is_true_only_where_it_is_known_to_be(kind: str, true: bool) -> None:
    assert filesystems.has_true_flock(kind) is true


@pytest.mark.parametrize(
    ("kind", "source", "options", "drvfs"),
    [
        ("9p", r"C:\134", r"rw,aname=drvfs;path=C:\134;uid=1000;symlinkroot=/mnt/,trans=fd", True),
        ("9p", "C:", "rw,aname=drvfs", True),
        ("virtiofs", "drvfsC0", "rw", True),
        ("virtiofs", "drvfsa", "rw", True),  # one share for every drive, bound to its place
        ("drvfs", "C:", "rw,case=off", True),
        ("9p", "none", "rw,aname=wsl2;fd=3", False),
        ("9p", "drvfs", "rw,trans=virtio", False),
        ("virtiofs", "myfs", "rw", False),
        ("ext4", "/dev/sdc", "rw", False),
    ],
)
def test_windows_drives_are_told_from_others_of_their_kind(
    tmp_path: Path, kind: str, source: str, options: str, drvfs: bool
) -> None:
    folder = tmp_path / "proc/self"
    folder.mkdir(parents=True)
    text = f"22 1 254:0 / / rw - ext4 /dev/vda rw\n30 22 0:40 / /data rw - {kind} {source} {options}\n"
    (folder / "mountinfo").write_text(text)
    assert filesystems.locate("/data/x", str(tmp_path / "proc")).drvfs is drvfs


def test_no_mount_at_all_is_an_unknown_kind(tmp_path: Path) -> None:
    folder = tmp_path / "proc/self"
    folder.mkdir(parents=True)
    (folder / "mountinfo").write_text("")
    assert filesystems.filesystem_of("/etc", str(tmp_path / "proc")) == ""


def test_this_host_agrees_with_its_kernel(tmp_path: Path) -> None:
    assert filesystems.filesystem_of("/proc/self") == "proc"
    status = os.stat(tmp_path)
    found = filesystems.locate(tmp_path)
    if found.kind not in ("btrfs", "overlay"):  # whose device numbers differ from stat's
        assert found.device == (os.major(status.st_dev), os.minor(status.st_dev))
