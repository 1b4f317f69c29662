"""The probe: one matrix product, timed and checked, on one device. Says with figures whether a device computes.

Responsible for a figure in TFLOP/s that can be compared with this device's own earlier ones (the size is a fixed step
of a ladder, the data always the same), and for noticing a wrong product. Stands alone: torch and the standard library,
nothing of ours. Ends itself by an alarm that is set before torch is loaded, whatever library hangs.
Refuses to judge the figure (its caller knows floor and baseline), to touch another device than the one it was told,
and to turn a failed measurement into a result: exit 0 = measured and right, 1 = measured and wrong, 2 = not measured.
Each of these comes with one line of JSON; a death without that line (the alarm, a native abort) is neither.

    python -P -m bench.matmul --device cuda:0 | GPU-3f1c... | cpu
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import re
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import torch

FORMAT = 1
RIGHT, WRONG, NOT_MEASURED = 0, 1, 2
MIB = 1 << 20
# What host memory beyond the matrices is set aside before anything is computed. OpenMP's threads have 8 MiB stacks,
# and libgomp leaves with exit 1 and no answer when it cannot have one; oneDNN and the check take the rest.
HOST_RESERVE_BYTES, STACK_BYTES = 64 * MIB, 8 * MIB
CPU_SIZES = (256, 512, 1024, 2048)
GPU_SIZES = (1024, 2048, 4096, 8192)
CPU_LONG_ENOUGH_S = 0.020  # at 20 ms a product, a busy scheduler's slice no longer decides
MOST_S = 1.0
LEAST_REPEATS = 3
SEED = 20_240_229
SEGMENT = 128  # columns that one checksum of the product covers
ROWS = 16  # rows of the product that are recomputed element by element
SIGMAS = 8.0


class NotMeasuredError(Exception):
    """No figure: `kind` is one of no-torch, no-cuda, no-device, out-of-memory, cuda-error, cpu-error, usage."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What became of comparing a product with the reference.

    `worst_error` is in units of a typical element of the product (its standard deviation), `row` and `column` say
    where. It is infinite where the product is infinite or not a number.
    """

    correct: bool
    worst_error: float
    row: int
    column: int


def verify(a: torch.Tensor, b: torch.Tensor, product: torch.Tensor, *, seed: int = 0) -> Check:
    """Compare `product` with `a` @ `b`, recomputed in fp64 on the CPU. The operands must be random and centred.

    Two looks. Some random rows element by element; and every element by Freivalds' check, in segments: with random
    signs v, `product` @ v must be `a` @ (`b` @ v), for each row and each 128 columns.

    Tolerance. An element of the product has the typical size t = |row of a| |column of b| / sqrt(K). Rounding it to
    its own dtype errs by up to eps/2 of it, by 0.29 eps t (= eps/sqrt(12)) or less on the average of squares. Adding K
    terms in fp32 errs at worst like a random walk of sqrt(K) roundings. Errors of a segment of 128 add up as
    sqrt(128). Eight standard deviations are allowed; the worst of 20,000 honest products had 5.1.

    So any one wrong element is seen from an error of about 0.2 t on in bf16, 0.03 t in fp16, 0.0003 t in fp32 with
    K = 8192 (finer in the rows looked at closely): every flip of the sign or of the exponent's highest bit, unless the
    element was itself smaller than that. Not seen: smaller errors; two errors of exactly equal size in one row and
    segment, one time in two (a wrong tile has many rows, hence many chances); operands that were damaged before both
    sides used them.
    """
    import torch

    out, smallest = torch.finfo(product.dtype).eps, torch.finfo(product.dtype).smallest_normal
    a, b, product = a.detach().cpu(), b.detach().cpu(), product.detach().cpu()
    (m, k), n = a.shape, b.shape[1]
    adding = torch.finfo(torch.float32).eps * math.sqrt(k)
    draw = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (n,), generator=draw).double() * 2 - 1
    rows = torch.randperm(m, generator=draw)[:ROWS]
    a_rows = a[rows].double()
    a_norms = torch.cat([part.double().norm(dim=1) for part in a.split(1024)])
    worst, at, correct = -1.0, (0, 0), True

    folded_b, folded_product, segment_norms = [], [], []
    for start in range(0, n, SEGMENT):
        these = slice(start, start + SEGMENT)
        b_part, product_part = b[:, these].double(), product[:, these].double()
        reference = a_rows @ b_part
        typical = torch.outer(a_norms[rows], b_part.norm(dim=0)) / math.sqrt(k)
        error = (product_part[rows] - reference).abs()
        # The last term is for subnormals: they have fewer digits, and some units round them to zero.
        allowed = out * reference.abs() + SIGMAS * 0.29 * adding * typical + smallest
        relative = (error / typical.clamp_min(1e-300)).nan_to_num(nan=math.inf, posinf=math.inf)
        correct = correct and bool((error <= allowed).all())  # a NaN is not <= anything
        if float(relative.max()) > worst:
            worst = float(relative.max())
            row, column = divmod(int(relative.argmax()), relative.shape[1])
            at = int(rows[row]), start + column
        folded_b.append(b_part @ signs[these])
        folded_product.append(product_part @ signs[these])
        segment_norms.append(b_part.norm())

    expected = torch.cat([part.double() @ torch.stack(folded_b, dim=1) for part in a.split(1024)])
    found = torch.stack(folded_product, dim=1)
    allowed = SIGMAS * 0.29 * (out + adding) * torch.outer(a_norms, torch.stack(segment_norms)) / math.sqrt(k)
    allowed += SEGMENT * smallest
    excess = ((found - expected).abs() / allowed.clamp_min(1e-300)).nan_to_num(nan=math.inf, posinf=math.inf)
    if float(excess.max()) > 1:
        # Which element of the segment it was: recompute that row of it.
        correct = False
        row, segment = divmod(int(excess.argmax()), excess.shape[1])
        these = slice(segment * SEGMENT, (segment + 1) * SEGMENT)
        b_part = b[:, these].double()
        error = (product[row, these].double() - a[row].double() @ b_part).abs()
        relative = error / (a_norms[row] * b_part.norm(dim=0) / math.sqrt(k)).clamp_min(1e-300)
        relative = relative.nan_to_num(nan=math.inf, posinf=math.inf)
        if float(relative.max()) >= worst:
            worst, at = float(relative.max()), (row, segment * SEGMENT + int(relative.argmax()))
    return Check(correct=correct, worst_error=worst, row=at[0], column=at[1])


def choose_device(wanted: str, environment: MutableMapping[str, str]) -> tuple[str, int | None]:
    """Hide every other device from CUDA, before torch is loaded; give torch's name of the wanted one, and its index.

    The index is that of NVML and nvidia-smi unless CUDA_VISIBLE_DEVICES already said otherwise; None for a UUID.
    Raises NotMeasuredError.
    """
    if wanted == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
        return "cpu", None
    if re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z/-]+", wanted):
        environment["CUDA_VISIBLE_DEVICES"] = wanted
        return "cuda:0", None
    numbered = re.fullmatch(r"cuda(?::(\d{1,4}))?", wanted)
    if numbered is None:
        raise NotMeasuredError("usage", f"--device is {wanted!r}, must be cpu, cuda:INDEX, or a UUID such as GPU-3f1c")
    index = int(numbered[1] or 0)
    environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order of NVML; CUDA's own is fastest first
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    names = [str(index)] * (index + 1) if visible is None else [name for name in visible.split(",") if name.strip()]
    if index >= len(names):
        raise NotMeasuredError("no-device", f"cuda:{index}: CUDA_VISIBLE_DEVICES={visible} shows {len(names)} devices")
    environment["CUDA_VISIBLE_DEVICES"] = names[index].strip()
    return "cuda:0", index


def kind_of(error: BaseException, on_cuda: bool) -> str:
    """The word for what torch raised. torch has few classes for this, so its texts are read, too."""
    text = str(error)
    no_memory = r"out of memory|can't allocate memory|Cannot allocate memory|bad_alloc|ALLOC_FAILED"
    if isinstance(error, MemoryError) or re.search(no_memory, text):
        return "out-of-memory"
    if re.search(r"No CUDA GPUs are available|invalid device ordinal", text):
        return "no-device"
    if re.search(r"no NVIDIA driver|not compiled with CUDA", text, re.IGNORECASE):
        return "no-cuda"
    return "cuda-error" if on_cuda else "cpu-error"


def status_bytes(key: str) -> int:
    """A line of /proc/self/status, in bytes. Not ru_maxrss, which starts from what the parent held before the exec."""
    found = re.search(rf"^{key}:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise NotMeasuredError("cpu-error", f"/proc/self/status has no {key}")
    return int(found[1]) * 1024


def hold_host_memory(cap_bytes: int | None, needed_bytes: int) -> None:
    """Refuse what would not fit under the cap, then have the kernel keep it. Raises NotMeasuredError.

    RLIMIT_DATA (private writable memory), since RLIMIT_AS also counts the terabytes of addresses that CUDA reserves.
    Set only after torch was loaded (223 MB of data): under a smaller limit its libraries abort instead of answering,
    which is also why the need is counted here beforehand.
    """
    if cap_bytes is None:
        return
    held_bytes = status_bytes("VmData")
    if held_bytes + needed_bytes > cap_bytes:
        raise NotMeasuredError(
            "out-of-memory",
            f"torch holds {held_bytes / MIB:.0f} MiB of host memory, the product needs {needed_bytes / MIB:.0f} MiB: "
            f"over the cap of {cap_bytes / MIB:.0f} MiB; choose a smaller --size or a larger --memory-cap-bytes",
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = cap_bytes if hard == resource.RLIM_INFINITY else min(cap_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def host_need_bytes(size: int, itemsize: int, threads: int) -> int:
    """Operands, two products, and the check: blocks in fp64 of 1024 rows, and of 128 columns three times."""
    blocks = 8 * size * (1024 + 3 * SEGMENT)
    return 4 * size * size * itemsize + blocks + threads * STACK_BYTES + HOST_RESERVE_BYTES


class Bench:
    """Products of one size on one device. Operands are the same each time: fixed seed, drawn on the device."""

    def __init__(self, device: str, dtype: torch.dtype, size: int) -> None:
        import torch

        self._on_cuda = device != "cpu"
        draw = torch.Generator(device).manual_seed(SEED)
        # Random, since zeros and the like switch fewer transistors: a card runs 13 % faster on them.
        self.a = torch.randn(size, size, generator=draw, device=device, dtype=dtype)
        self.b = torch.randn(size, size, generator=draw, device=device, dtype=dtype)
        self.product = torch.empty_like(self.a)

    def once_s(self) -> float:
        """Seconds of one product, which lies in `product` then. On a GPU measured by its own events."""
        import torch

        if not self._on_cuda:
            begin_s = time.perf_counter()
            torch.matmul(self.a, self.b, out=self.product)
            return time.perf_counter() - begin_s
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        torch.matmul(self.a, self.b, out=self.product)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1000

    def warm_up(self, at_least_s: float) -> float:
        """Until `at_least_s` passed (an idle card needs a while to raise its clocks). Seconds of the best product."""
        begin_s = time.perf_counter()
        best_s = min(self.once_s() for _ in range(2))
        while time.perf_counter() - begin_s < at_least_s:
            best_s = min(best_s, self.once_s())
        return best_s


def climb(device: str, dtype: torch.dtype, sizes: Sequence[int], enough_s: float) -> Bench:
    """The largest size of the ladder worth measuring.

    Ends where one product takes `enough_s`, or where one of the next size (eight times the work) would take over
    MOST_S. A GPU climbs to the top unless it is below 1.1 TFLOP/s: then a small product tells in time, instead of the
    deadline in a large one. A CPU near 20 ms may end on either of two sizes.
    """
    bench = Bench(device, dtype, sizes[0])
    for larger in sizes[1:]:
        took_s = bench.warm_up(0)
        if took_s >= enough_s or took_s * (larger / bench.a.shape[0]) ** 3 > MOST_S:
            break
        del bench  # its memory first
        bench = Bench(device, dtype, larger)
    return bench


def measure(
    bench: Bench, *, repeats: int, seconds: float, progress: Callable[[str], None]
) -> tuple[list[float], Check]:
    """Seconds of each product, and the worst check. Ends after `repeats`, or `seconds` of products (three at least).

    The first product is compared with the reference, each later one with the first; only where it differs in any bit
    is it compared with the reference, too. So every product that was timed was checked.
    """
    import torch

    times_s = [bench.once_s()]
    first = bench.product.clone()
    check = verify(bench.a, bench.b, first)
    progress(f"first product: {times_s[0] * 1000:.2f} ms, {'right' if check.correct else 'WRONG'}")
    while len(times_s) < repeats and (len(times_s) < LEAST_REPEATS or sum(times_s) < seconds):
        times_s.append(bench.once_s())
        progress(f"product {len(times_s)} of up to {repeats}: {times_s[-1] * 1000:.2f} ms")
        if not torch.equal(bench.product, first):
            found = verify(bench.a, bench.b, bench.product, seed=len(times_s))
            check = max(check, found, key=lambda one: (not one.correct, one.worst_error))
    return times_s, check


def run(chosen: argparse.Namespace, begin_s: float, progress: Callable[[str], None]) -> dict[str, object]:
    """Measure as asked; the row to print. Raises NotMeasuredError."""
    device, index = choose_device(chosen.device, os.environ)
    on_cuda = device != "cpu"
    try:
        import torch
    except (MemoryError, SystemError) as error:  # SystemError: how an import without memory ends inside CPython
        raise NotMeasuredError("out-of-memory", f"torch cannot be loaded: {error or 'no memory'}") from error
    except (ImportError, OSError) as error:
        raise NotMeasuredError("no-torch", f"torch cannot be loaded: {error}; install the extra `trainer`") from error
    progress(f"torch {torch.__version__} loaded after {time.perf_counter() - begin_s:.1f} s")
    try:
        row = _run(chosen, device, progress)
    except (RuntimeError, AssertionError, MemoryError, OSError) as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise NotMeasuredError(kind_of(error, on_cuda), f"{chosen.device}: {text[0]}") from error
    return row | {"index": index, "total_s": time.perf_counter() - begin_s, "host_peak_bytes": status_bytes("VmHWM")}


def _run(chosen: argparse.Namespace, device: str, progress: Callable[[str], None]) -> dict[str, object]:
    import torch

    on_cuda = device != "cpu"
    threads = torch.get_num_threads()
    torch.set_float32_matmul_precision("highest")  # fp32 means fp32: no TF32, no bf16 in its place
    row: dict[str, object] = {"device": _cpu_name(), "uuid": None, "compute_capability": None}
    sizes: tuple[int, ...] = CPU_SIZES
    enough_s, warm_s, dtype_name = CPU_LONG_ENOUGH_S, 0.05, "fp32"
    budget_bytes: int | None = None
    if on_cuda:
        if torch.version.cuda is None:  # nothing is wrong with the host: this Python cannot measure a GPU
            raise NotMeasuredError("no-torch", f"torch {torch.__version__} is built without CUDA")
        torch.cuda.init()
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # sums in fp32, as verify assumes
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        properties = torch.cuda.get_device_properties(device)
        capability = torch.cuda.get_device_capability(device)
        uuid = getattr(properties, "uuid", None)  # torch before 2.5 has none
        row["device"], row["compute_capability"] = properties.name, "{}.{}".format(*capability)
        row["uuid"] = chosen.device if chosen.device.startswith("MIG-") else uuid and f"GPU-{uuid}"
        dtype_name = "bf16" if capability >= (8, 0) else "fp16"
        sizes, enough_s, warm_s = GPU_SIZES, math.inf, 0.3
        free_bytes, all_bytes = torch.cuda.mem_get_info(device)
        budget_bytes = min(free_bytes // 4, chosen.device_memory_cap_bytes)
        torch.cuda.set_per_process_memory_fraction(min(1.0, chosen.device_memory_cap_bytes / all_bytes), device)
    dtype_name = dtype_name if chosen.dtype == "auto" else chosen.dtype
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype_name]
    if chosen.size:
        sizes = (chosen.size,)
    elif budget_bytes is not None:
        # Operands, two products and the library's own workspace: five matrices.
        sizes = tuple(size for size in sizes if 5 * size * size * dtype.itemsize <= budget_bytes)
        if not sizes:
            raise NotMeasuredError(
                "out-of-memory", f"{chosen.device}: {free_bytes / MIB:.0f} MiB free; the probe takes a quarter at most"
            )
    hold_host_memory(chosen.memory_cap_bytes, host_need_bytes(sizes[-1], dtype.itemsize, threads))
    bench = climb(device, dtype, sizes, enough_s)
    size = bench.a.shape[0]
    progress(f"{row['device']}: {size} x {size} in {dtype_name}")
    bench.warm_up(warm_s)
    times_s, check = measure(bench, repeats=chosen.repeats, seconds=chosen.seconds, progress=progress)
    work = 2 * size**3 / 1e12
    return row | {
        "format": FORMAT,
        "tflops": work / statistics.median(times_s),
        "tflops_min": work / max(times_s),
        "tflops_max": work / min(times_s),
        "dtype": dtype_name,
        "size": size,
        "seconds": statistics.median(times_s),
        "repeats": len(times_s),
        "correct": check.correct,
        "worst_error": check.worst_error if math.isfinite(check.worst_error) else str(check.worst_error),
        "worst_position": [check.row, check.column],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device_peak_bytes": torch.cuda.max_memory_reserved() if on_cuda else 0,  # without the context itself
        "threads": threads,
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError):  # a name only; some architectures have no such line either
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1]
    return "CPU"


def _size(text: str) -> int | None:
    return None if text == "auto" else int(_number(int, 16)(text))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise NotMeasuredError("usage", message)


def _number(kind: type[int] | type[float], least: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        with contextlib.suppress(ValueError, OverflowError):
            if least <= (value := kind(text)) < math.inf:
                return value
        raise argparse.ArgumentTypeError(f"{text!r} must be a number ({kind.__name__}) of at least {least:g}")

    return number


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Raises NotMeasuredError of the kind usage."""
    parser = _Parser(prog="python -P -m bench.matmul", description="one matrix product, timed and checked")
    parser.add_argument("--device", default="cpu", help="cpu, cuda:INDEX, or a UUID or its beginning")
    parser.add_argument("--dtype", default="auto", choices=("auto", "bf16", "fp16", "fp32"))
    parser.add_argument("--size", default=None, type=_size, help="auto, or rows and columns of the matrices")
    parser.add_argument("--repeats", default=15, type=_number(int, 1))
    parser.add_argument("--seconds", default=0.5, type=_number(float, 0), help="time for measuring")
    parser.add_argument("--deadline-s", default=60.0, type=_number(float, 0.01), help="the kernel ends the probe then")
    parser.add_argument("--memory-cap-bytes", type=_number(int, 1), help="of host memory")
    parser.add_argument("--device-memory-cap-bytes", default=1536 * MIB, type=_number(int, 1))
    parser.add_argument("--progress", action="store_true", help="on standard error")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    begin_s = time.perf_counter()
    # Nothing else gets on standard output, whatever a library prints.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        try:
            chosen = parse(sys.argv[1:] if arguments is None else arguments)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # handler and mask come over exec, so both are set
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            signal.setitimer(signal.ITIMER_REAL, chosen.deadline_s)

            def progress(text: str) -> None:
                if chosen.progress:
                    print(f"matmul  {text}", file=sys.stderr, flush=True)

            row = run(chosen, begin_s, progress)
            code = RIGHT if row["correct"] else WRONG
        except NotMeasuredError as error:
            row, code = {"format": FORMAT, "error": error.kind, "text": str(error)}, NOT_MEASURED
        print(json.dumps(row, allow_nan=False), file=answer)
    return code


if __name__ == "__main__":
    sys.exit(main())
