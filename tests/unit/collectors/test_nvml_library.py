"""What of NVIDIA's is on the host, found by looking at files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchdog.collectors.nvml_library import LIBRARY, device_node, find_library, nothing_here
from watchdog.collectors.roots import Roots


@pytest.fixture
def bare(tmp_path: Path) -> Roots:
    """A host with nothing of NVIDIA on it."""
    (tmp_path / "host/dev").mkdir(parents=True)
    return Roots(str(tmp_path / "host"))


def test_the_library_is_found_where_the_loader_would(bare: Roots, tmp_path: Path) -> None:
    assert find_library(bare, {}) is None
    cached = Path(bare.base, "opt/odd place")
    cached.mkdir(parents=True)
    Path(bare.base, "etc").mkdir()
    Path(bare.base, "etc/ld.so.cache").write_bytes(
        b"glibc-ld.so.cache1.1\0/gone/libnvidia-ml.so.1\0libnvidia-ml.so.1\0/opt/odd place/libnvidia-ml.so.1\0"
    )
    assert find_library(bare, {}) is None  # a cache may be older than what it names
    (cached / LIBRARY).touch()
    assert find_library(bare, {}) == "/opt/odd place/libnvidia-ml.so.1"
    wsl = Path(bare.base, "usr/lib/wsl/lib")
    wsl.mkdir(parents=True)
    (wsl / LIBRARY).touch()
    assert find_library(bare, {}) == "/usr/lib/wsl/lib/libnvidia-ml.so.1"
    (tmp_path / LIBRARY).touch()
    assert find_library(bare, {"LD_LIBRARY_PATH": f":{tmp_path}"}) == str(tmp_path / LIBRARY)


def mounted(tmp_path: Path, point: Path, kind: str) -> str:
    """A /proc of a host on which that folder is a mount of that kind."""
    file = tmp_path / "proc/self/mountinfo"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"25 1 8:1 / / rw - ext4 /dev/sda1 rw\n31 25 0:40 / {point} rw - {kind} server:/x rw\n")
    return str(tmp_path / "proc")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "autofs", "fuse.sshfs", "9p", "lustre"])
def test_what_may_hang_is_not_touched(bare: Roots, tmp_path: Path, kind: str) -> None:
    """Neither on the way there nor behind a symbolic link: a lookup on a dead mount never comes back."""
    far = tmp_path / "far"
    far.mkdir()
    (far / LIBRARY).touch()
    (tmp_path / "link").symlink_to(far)
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / LIBRARY).symlink_to(far / LIBRARY)
    dead = mounted(tmp_path, far, kind)
    for folder in (far, tmp_path / "link", tmp_path / "near"):
        assert find_library(bare, {"LD_LIBRARY_PATH": str(folder)}) == f"{folder}/{LIBRARY}"
        assert find_library(bare, {"LD_LIBRARY_PATH": str(folder)}, proc=dead) is None
    (tmp_path / LIBRARY).touch()
    both = f"{far}:{tmp_path}"
    assert find_library(bare, {"LD_LIBRARY_PATH": both}, proc=dead) == str(tmp_path / LIBRARY)
    cache = Path(bare.base, "etc/ld.so.cache")
    cache.parent.mkdir()
    cache.write_bytes(b"\0/far/libnvidia-ml.so.1\0")
    Path(bare.base, "far").symlink_to(far)
    assert find_library(bare, {}) == "/far/libnvidia-ml.so.1"
    assert find_library(bare, {}, proc=dead) is None


def test_where_no_mount_can_be_told_nothing_is_touched(bare: Roots, tmp_path: Path) -> None:
    (tmp_path / LIBRARY).touch()
    assert find_library(bare, {"LD_LIBRARY_PATH": str(tmp_path)}, proc=str(tmp_path / "none")) is None


def test_dxg_proves_a_driver_only_beside_the_library_that_windows_brings(bare: Roots) -> None:
    Path(bare.dev, "dxg").touch()
    assert device_node(bare, "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1") is None
    assert device_node(bare, "/usr/lib/wsl/lib/libnvidia-ml.so.1") == "/dev/dxg"
    Path(bare.dev, "nvidiactl").touch()
    assert device_node(bare, None) == "/dev/nvidiactl"


@pytest.mark.parametrize("node", ["nvidiactl", "dxg"])
def test_nothing_is_here_only_without_library_and_nodes(bare: Roots, node: str) -> None:
    assert nothing_here(bare, None) == "no libnvidia-ml.so.1, no /dev/nvidiactl, no /dev/dxg"
    assert nothing_here(bare, "/usr/lib/libnvidia-ml.so.1") is None
    Path(bare.dev, node).touch()
    assert nothing_here(bare, None) is None
