"""Who holds a device: a fixture tree for the nodes, since a host under test has none, and real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from watchdog.collectors import nvml_child
from watchdog.collectors.holders import has_device, read_holders
from watchdog.collectors.roots import Roots
from watchdog.core.facts import DeviceHolder

STAT = "{pid} ({command}) S 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0"


class Tree:
    """A host made of files."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.roots = Roots(str(base))
        for folder in ("dev", "proc"):
            (base / folder).mkdir()

    def nodes(self, *names: str) -> None:
        for name in names:
            (self.base / "dev" / name).touch()

    def process(self, pid: int, command: str, *files: str, flags: int = 0) -> None:
        folder = self.base / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "stat").write_text(STAT.format(pid=pid, command=command, flags=flags))
        for number, target in enumerate(files):
            (folder / "fd" / str(number)).symlink_to(target)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


ALL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")


def test_a_holder_is_named_with_its_nodes(tree: Tree) -> None:
    tree.nodes("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm")
    tree.process(10, "python", "/dev/null", *ALL, "/dev/nvidia0")
    tree.process(11, "python", "/dev/nvidia1 (deleted)")  # udev has made the node anew; it is held all the same
    tree.process(12, "bash", "/dev/null", "socket:[17]")
    assert read_holders(tree.roots, run={10}).holders == (
        DeviceHolder(
            pid=10, command="python", nodes=("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"), of_run=True
        ),
        DeviceHolder(pid=11, command="python", nodes=("/dev/nvidia1",), of_run=False),
    )


def test_whoever_only_asks_is_no_holder(tree: Tree) -> None:
    tree.nodes("nvidia0")
    tree.process(10, "python", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap1")
    tree.process(11, "nvidia-persiste", *ALL)
    tree.process(12, "nv-hostengine", *ALL)
    tree.process(13, "python", *ALL)  # our own sampling child
    tree.process(15, nvml_child.COMM.decode(), *ALL)  # another supervisor's, or that of a diagnosis
    tree.process(14, "nvtop", *ALL)  # a member of the run that calls itself so
    found = read_holders(tree.roots, run={14}, leave_out={13}).holders
    assert [(holder.pid, holder.of_run) for holder in found] == [(14, True)]


def test_on_wsl_the_node_is_dxg_and_the_desktop_is_left_out(tree: Tree) -> None:
    tree.nodes("dxg")
    tree.process(10, "python", "/dev/dxg")
    tree.process(11, "Xwayland", "/dev/dxg")
    assert [(each.pid, each.nodes) for each in read_holders(tree.roots).holders] == [(10, ("/dev/dxg",))]


def test_without_a_device_nothing_is_scanned(tree: Tree) -> None:
    tree.nodes("nvidiactl", "nvidia-uvm", "null")
    (tree.base / "proc").rmdir()  # a scan would raise
    assert not has_device(tree.roots)
    found = read_holders(tree.roots)
    assert (found.holders, found.unreadable) == ((), 0)


def test_files_that_are_hidden_are_counted(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root sees everything, so the kernel's refusal is played; a kernel thread has no files to hide."""
    tree.nodes("nvidia0")
    tree.process(10, "python", *ALL)
    tree.process(11, "kworker", flags=0x00200000)
    tree.process(12, "python", *ALL)
    really = os.listdir

    def listdir(path: str) -> list[str]:
        if path.endswith(("/10/fd", "/11/fd")):
            raise PermissionError(13, "Permission denied", path)
        return really(path)

    monkeypatch.setattr(os, "listdir", listdir)
    found = read_holders(tree.roots)
    assert ([each.pid for each in found.holders], found.unreadable) == ([12], 1)
