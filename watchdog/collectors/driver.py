"""Is there an NVIDIA driver, and does it answer?

Responsible for the version and the number of devices, asked of NVML by a disposable child: NVML calls can hang in
the kernel for ever. Run as a program (`python -P -m watchdog.collectors.driver DEADLINE_S`) this file is that child.
Refuses to load NVML into the asking process, and to start a child where there plainly is no driver.

The library is looked for in the loader's own cache and folders by reading them; `ctypes.util.find_library` would run
ldconfig and a compiler for it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from watchdog.clock import Clock
from watchdog.collectors.child import DisposableChild, end_after
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Absent, Driver, Fact, Known, Unknown

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
# Return codes of nvml.h that mean "no driver", as far as no device node says otherwise.
_DRIVER_NOT_LOADED = 9
_LIBRARY_NOT_FOUND = 12


def find_library(roots: Roots, environ: Mapping[str, str]) -> str | None:
    """Where the loader would find NVML: LD_LIBRARY_PATH, its cache, the usual folders. None = nowhere."""
    for folder in environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and os.path.exists(os.path.join(folder, LIBRARY)):
            return os.path.join(folder, LIBRARY)
    for folder in _FOLDERS:
        path = f"{folder}/{LIBRARY}"
        if os.path.exists(roots.host(path)):
            return path
    return _in_loader_cache(roots)


def _in_loader_cache(roots: Roots) -> str | None:
    """The cache is a table of NUL-ended strings (ld.so(8)); a path in it may be of a library that is gone."""
    try:
        with open(roots.host("/etc/ld.so.cache"), "rb") as file:
            content = file.read(16 * 1024 * 1024)
    except OSError:
        return None
    for entry in content.split(b"\0"):
        if entry.startswith(b"/") and entry.endswith(b"/" + LIBRARY.encode()):
            path = entry.decode(errors="surrogateescape")
            if os.path.exists(roots.host(path)):
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


def parse_answer(line: str, *, node: str | None, at_s: float) -> Fact[Driver]:
    """The child's JSON line as a fact. `node` tells "no driver" from "a driver that NVML cannot reach"."""
    try:
        answer = json.loads(line)
        if "version" in answer:
            return Known(Driver(version=str(answer["version"]), devices=int(answer["devices"])), at_s)
        code, text = int(answer["code"]), str(answer["text"])
    except (ValueError, TypeError, KeyError):
        return Unknown(f"the child that asked NVML answered {line[:200]!r}, which is no answer")
    if code in (_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND):
        meaning = "the driver is not loaded" if code == _DRIVER_NOT_LOADED else "its library cannot be loaded"
        if node is None:
            return Absent(f"NVML says that {meaning} (code {code}), and there is no device node")
        return Unknown(f"{node} is there, but NVML says that {meaning} (code {code}): {text}")
    return Unknown(f"NVML answers with code {code}: {text}" if code >= 0 else text)


class DriverReader:
    """Asks again and again; keeps the child that did not come back."""

    def __init__(self, roots: Roots, clock: Clock, environ: Mapping[str, str] | None = None) -> None:
        self._roots = roots
        self._clock = clock
        self._environ = os.environ if environ is None else environ
        self._child = DisposableChild("NVML", clock)

    def read(self, deadline_s: float = 10.0) -> Fact[Driver]:
        """The driver as it is now; blocks for `deadline_s` and a little at most. Raises OSError."""
        library = find_library(self._roots, self._environ)
        nodes = [name for name in ("nvidiactl", "dxg") if os.path.exists(f"{self._roots.dev}/{name}")]
        if library is None and not nodes:
            return Absent(f"no {LIBRARY}, no /dev/nvidiactl, no /dev/dxg")
        # -P: a folder called `watchdog` where the user happens to be is not ours.
        argv = [sys.executable, "-P", "-m", "watchdog.collectors.driver", repr(deadline_s)]
        answer = self._child.ask(argv, deadline_s)
        if isinstance(answer, Unknown):
            return answer
        return parse_answer(answer, node=device_node(self._roots, library), at_s=self._clock.monotonic())


def _ask_nvml() -> dict[str, object]:
    try:
        import pynvml
    except ImportError as error:
        return {"code": -1, "text": f"nvidia-ml-py cannot be imported ({error}): install it to see the driver"}
    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return {
            "version": version.decode(errors="replace") if isinstance(version, bytes) else version,
            "devices": pynvml.nvmlDeviceGetCount(),
        }
    except pynvml.NVMLError as error:
        return {"code": error.value, "text": str(error)}
    # No nvmlShutdown: the process ends here, and shutdown is one more call that can hang.


def main(argv: list[str]) -> NoReturn:
    """The child: alarm first, then NVML, one line of JSON, and out without any library's exit handlers."""
    end_after(float(argv[1]))
    print(json.dumps(_ask_nvml()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
