"""A stand-in for the CUDA driver's library at the C ABI, for what tests/gpu/workloads/devices.py calls of it.

Responsible for compiling cuda.c, for the folder that is the card (cuda.c says what is in it), and for asking the real
cuda.h, where a toolkit is installed, whether the functions in it are declared as NVIDIA declares them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

LIBRARY = "libcuda.so.1"
_SOURCE = Path(__file__).with_name("cuda.c")
_COMPILE = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]


def build(folder: Path) -> Path:
    """The library in that folder. Raises RuntimeError with the compiler's words."""
    library = folder / LIBRARY
    words = [*_COMPILE, "-fPIC", "-shared", f"-Wl,-soname,{LIBRARY}", "-o", str(library), str(_SOURCE)]
    made = subprocess.run(words, capture_output=True, text=True)
    if made.returncode:
        raise RuntimeError(f"the CUDA stand-in does not compile:\n{made.stderr}")
    return library


def card(folder: Path, total_mib: int) -> Path:
    """An empty card of so much memory, in that folder, which is made."""
    folder.mkdir()
    (folder / "total").write_text(str(total_mib))
    return folder


def holders(card: Path) -> Iterator[tuple[int, int, int]]:
    """(pid, MiB, utilization) of each living process that holds memory of the card."""
    for name in sorted(filter(str.isdigit, os.listdir(card))):
        ticks, mib, utilization = map(int, (card / name).read_text().split())
        if ticks_of(int(name)) == ticks:
            yield int(name), mib, utilization


def hold(card: Path, mib: int) -> None:
    """This very process holds so much from now on."""
    (card / str(os.getpid())).write_text(f"{ticks_of(os.getpid())} {mib} 0")


def ticks_of(pid: int) -> int | None:
    """The start time of a living process; None for a dead one, one that is not reaped among them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def environment(library: Path, card: Path, **more: str) -> dict[str, str]:
    """`more`: FAKE_CUDA_LOG, FAKE_CUDA_REFUSES, as cuda.c has them."""
    others = os.environ.get("LD_LIBRARY_PATH")
    folders = f"{library.parent}:{others}" if others else str(library.parent)
    return {"LD_LIBRARY_PATH": folders, "FAKE_CUDA_CARD": str(card), **more}


def header_folder() -> Path | None:
    """Where a toolkit's cuda.h is."""
    for folder in (Path("/usr/local/cuda/include"), *sorted(Path("/usr/local").glob("cuda-*/include"))):
        if (folder / "cuda.h").exists():
            return folder
    return None


def disagreement(headers: Path) -> str:
    """What the compiler says about the stand-in's functions beside NVIDIA's own declarations; "": they agree."""
    words = [*_COMPILE, "-fsyntax-only", "-DCHECK=1", f"-I{headers}", str(_SOURCE)]
    return subprocess.run(words, capture_output=True, text=True).stderr
