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
