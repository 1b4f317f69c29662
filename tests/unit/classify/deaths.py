"""Real deaths of programs that use torch, for the classifiers: each in a process of its own, with what it printed.

    python deaths.py FOLDER     writes FOLDER/<name>.log for each case, and FOLDER/ends.json: name -> [code, signal]

torch is imported once, and each case is a fork of that. Limits are those of the kernel (RLIMIT_AS, /dev/full), no
exception is made up, except the ENOMEM of a `read` that a program cannot provoke at will.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(sys.argv[1])
BIG, GOOD = FOLDER / "big.pt", FOLDER / "good.pt"


def short_of_memory(more_mib: int = 32) -> None:
    """From now on this process gets no more than that."""
    status = Path("/proc/self/status").read_text()
    size = int(re.search(r"VmSize:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]
    resource.setrlimit(resource.RLIMIT_AS, (size + more_mib * 2**20, size + more_mib * 2**20))


class Sick:
    """A file whose large reads are refused, as the kernel refuses them under pressure."""

    def __init__(self) -> None:
        self.file = BIG.open("rb")
        self.seek, self.tell = self.file.seek, self.file.tell

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self.file.read(size)

    def readinto(self, buffer: Any) -> int:
        if len(buffer) > 2**20:
            raise OSError(12, "Cannot allocate memory")
        return self.file.readinto(buffer)


class Items(Dataset):
    def __init__(self, item: Callable[[], Any]) -> None:
        self.item = item

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.item()


def host_memory_load() -> None:
    short_of_memory()
    torch.load(BIG, map_location="cpu")


def host_memory_mmap() -> None:
    short_of_memory()
    torch.load(BIG, map_location="cpu", mmap=True)


def host_memory_python() -> None:
    short_of_memory()
    bytearray(2**30)


def host_memory_numpy() -> None:
    import numpy

    short_of_memory()
    numpy.zeros((2**31,))


def host_memory_masked() -> None:
    torch.load(Sick())  # type: ignore[arg-type]


def host_memory_masked_behind_another() -> None:
    """`raise ... from`: the reason is the second link of the chain."""
    try:
        torch.load(Sick())  # type: ignore[arg-type]
    except OSError as error:
        raise RuntimeError("the checkpoint cannot be loaded") from error


def host_memory_native() -> None:
    import ctypes

    library = ctypes.CDLL("libstdc++.so.6")
    library._Znwm.argtypes = [ctypes.c_size_t]
    short_of_memory()
    library._Znwm(2**33)


def host_memory_threads() -> None:
    short_of_memory()
    for _ in range(50):
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()


def disk_full_save_by_name() -> None:
    torch.save({"w": torch.zeros(2**20)}, "/dev/full")


def disk_full_save_by_file() -> None:
    with open("/dev/full", "wb") as file:
        torch.save({"w": torch.zeros(2**20)}, file)


def disk_full_log() -> None:
    with open("/dev/full", "w") as file:
        file.write("x" * 100_000)


def checkpoint_truncated() -> None:
    path = FOLDER / "cut.pt"
    path.write_bytes(BIG.read_bytes()[:100_000])
    torch.load(path)


def checkpoint_empty() -> None:
    path = FOLDER / "empty.pt"
    path.write_bytes(b"")
    torch.load(path)


def checkpoint_zeros() -> None:
    path = FOLDER / "zeros.pt"
    path.write_bytes(bytes(100_000))
    torch.load(path)


def checkpoint_of_another_model() -> None:
    torch.nn.Linear(2, 3).load_state_dict(torch.nn.Linear(4, 5).state_dict())


def numeric_anomaly() -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        x = torch.zeros(2, requires_grad=True)
        (torch.sqrt(x) * 0).sum().backward()


def numeric_clip() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([float("nan"), 1.0])
    torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


def data_text() -> None:
    b"\xff\xfe\x00abc".decode("utf-8")


def data_json() -> None:
    json.loads('{"text": ')


def code_type() -> None:
    print("step " + 1)  # type: ignore[operator]


def code_assertion() -> None:
    assert GOOD.stat().st_size < 0, "the loss is negative"


def code_import() -> None:
    import no_such_module_anywhere  # noqa: F401


def code_shape() -> None:
    torch.nn.Linear(4, 4)(torch.zeros(2, 3))


def code_in_a_worker() -> None:
    for _ in DataLoader(Items(lambda: {}["x"]), num_workers=1):
        pass


def killed_worker() -> None:
    for _ in DataLoader(Items(lambda: os.kill(os.getpid(), signal.SIGKILL)), num_workers=1):
        pass


def killed_by_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)


def run(case: Callable[[], None]) -> list[int | None]:
    pid = os.fork()
    if pid == 0:
        fd = os.open(FOLDER / f"{case.__name__}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = 0
        try:
            case()
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            code = 1
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return [None, os.WTERMSIG(status)]
    return [os.WEXITSTATUS(status), None]


def main() -> None:
    torch.set_num_threads(1)
    torch.save({"w": torch.zeros(16 * 2**20)}, BIG)
    torch.save({"w": torch.zeros(2)}, GOOD)
    kinds = ("host_", "disk_", "checkpoint_", "numeric_", "data_", "code_", "killed_")
    cases = [value for name, value in globals().items() if name.startswith(kinds)]
    (FOLDER / "ends.json").write_text(json.dumps({case.__name__: run(case) for case in cases}))
    BIG.unlink()


if __name__ == "__main__":
    main()
