"""Where NVIDIA's library and its device nodes are.

Responsible for saying, by looking at files alone, whether there is anything of NVIDIA on this host. The library is
looked for in the loader's own cache and folders by reading them; `ctypes.util.find_library` would run ldconfig and a
compiler for it. Used by the loop itself: a folder that a person named may lie on a network mount that is dead, so what
may hang is not touched. A library there is then not seen from here; with a device node the child is asked all the same.
Refuses to load the library, and to conclude from a file that a driver answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from watchdog.collectors.filesystems import locate
from watchdog.collectors.roots import Roots

LIBRARY = "libnvidia-ml.so.1"
WSL_FOLDER = "/usr/lib/wsl/lib"
_FOLDERS = (
    WSL_FOLDER,
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/lib",
    "/usr/local/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
)


def find_library(roots: Roots, environ: Mapping[str, str], *, proc: str = "/proc") -> str | None:
    """Where the loader would find NVML: LD_LIBRARY_PATH, its cache, the usual folders. None = nowhere.

    `proc` tells the mounts.
    """
    for folder in environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and _is_there(os.path.join(folder, LIBRARY), proc):
            return os.path.join(folder, LIBRARY)
    for folder in _FOLDERS:
        path = f"{folder}/{LIBRARY}"
        if os.path.exists(roots.host(path)):
            return path
    return _in_loader_cache(roots, proc)


def _is_there(path: str, proc: str) -> bool:
    """False also for what lies where a look may hang, and where mountinfo does not tell."""
    try:
        found = locate(path, proc)
    except (OSError, ValueError):
        return False
    return found.safe and found.existing == found.path


def _in_loader_cache(roots: Roots, proc: str) -> str | None:
    """The cache is a table of NUL-ended strings (ld.so(8)); a path in it may be of a library that is gone."""
    try:
        with open(roots.host("/etc/ld.so.cache"), "rb") as file:
            content = file.read(16 * 1024 * 1024)
    except OSError:
        return None
    for entry in content.split(b"\0"):
        if entry.startswith(b"/") and entry.endswith(b"/" + LIBRARY.encode()):
            path = entry.decode(errors="surrogateescape")
            if _is_there(roots.host(path), proc):
                return path
    return None


def device_node(roots: Roots, library: str | None) -> str | None:
    """The node that proves a driver: `/dev/nvidiactl`; on WSL `/dev/dxg`, if NVML is the one that Windows put there.

    `/dev/dxg` alone proves any maker's card.
    """
    if os.path.exists(f"{roots.dev}/nvidiactl"):
        return "/dev/nvidiactl"
    if library is not None and library.startswith("/usr/lib/wsl/") and os.path.exists(f"{roots.dev}/dxg"):
        return "/dev/dxg"
    return None


def nothing_here(roots: Roots, library: str | None) -> str | None:
    """Why there can be no driver on this host; None: there may be one, and it has to be asked."""
    if library is None and not any(os.path.exists(f"{roots.dev}/{name}") for name in ("nvidiactl", "dxg")):
        return f"no {LIBRARY}, no /dev/nvidiactl, no /dev/dxg"
    return None
