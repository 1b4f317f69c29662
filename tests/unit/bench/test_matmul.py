"""bench/matmul.py: the check sees a wrong element wherever it is, and the program says why where it cannot measure.

The program runs as a process, as its caller runs it. A wrong product is made from outside: `verify` is a function of
three tensors. No speed is asserted. What needs a GPU is marked so.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import matmul

PROGRAM = Path(matmul.__file__)


def operands(name: str, m: int, k: int, n: int, seed: int) -> tuple[Any, Any]:
    import torch  # a second that collecting the tests does not pay

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(m, k, generator=draw).to(dtype), torch.randn(k, n, generator=draw).to(dtype)


def probe(
    *arguments: str, flags: Sequence[str] = ("-P",), **environment: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The ended process, and its line (empty where it gave none). Fails on anything else on standard output."""
    ended = subprocess.run(
        [sys.executable, *flags, str(PROGRAM), *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    lines = ended.stdout.splitlines()
    assert len(lines) <= 1, ended.stdout
    return ended, json.loads(lines[0]) if lines else {}


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_honest_products_of_many_sizes_are_right(dtype: str) -> None:
    pick = random.Random(1)
    for turn in range(60):
        m, k, n = (pick.randint(1, pick.choice((20, 400))) for _ in range(3))
        a, b = operands(dtype, m, k, n, turn)
        found = matmul.verify(a, b, a @ b, seed=turn)
        assert found.correct, (m, k, n, found)


@pytest.mark.parametrize(("name", "error"), [("fp32", 0.001), ("bf16", 0.4), ("fp16", 0.06)])
def test_one_wrong_element_anywhere_is_found_and_named(name: str, error: float) -> None:
    """`error` is in typical elements: about twice what verify says that it sees."""
    pick = random.Random(2)
    for turn in range(40):
        m, k, n = (pick.randint(64, 400) for _ in range(3))
        a, b = operands(name, m, k, n, turn)
        product = a @ b
        row, column = pick.randrange(m), pick.randrange(n)
        product[row, column] += (
            pick.choice((-1, 1)) * error * float(a[row].float().norm() * b[:, column].float().norm()) / math.sqrt(k)
        )
        found = matmul.verify(a, b, product, seed=turn)
        assert not found.correct, (m, k, n, row, column)
        assert (found.row, found.column) == (row, column)
        assert found.worst_error == pytest.approx(error, rel=0.2)


@pytest.mark.parametrize("bit", [15, 14], ids=["sign", "highest bit of the exponent"])
def test_one_flipped_bit_is_found(bit: int) -> None:
    import torch

    pick = random.Random(3)
    a, b = operands("bf16", 256, 256, 384, 3)
    honest = a @ b
    for turn in range(40):
        row, column = pick.randrange(256), pick.randrange(384)
        if abs(float(honest[row, column])) < 0.25 * 16:  # a quarter of a typical element of this product
            continue
        product = honest.clone()
        product.view(torch.int16)[row, column] ^= -(1 << 15) if bit == 15 else 1 << bit
        found = matmul.verify(a, b, product, seed=turn)
        assert (found.correct, found.row, found.column) == (False, row, column)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_element_that_is_no_number_is_found(value: float) -> None:
    a, b = operands("fp32", 200, 100, 300, 4)
    product = a @ b
    product[150, 299] = value
    found = matmul.verify(a, b, product)
    assert (found.correct, found.row, found.column) == (False, 150, 299)
    assert not math.isfinite(found.worst_error)


def test_a_product_of_something_else_is_found() -> None:
    a, b = operands("fp32", 128, 128, 128, 5)
    assert not matmul.verify(a, b, (a @ b).T.contiguous()).correct
    assert not matmul.verify(a, b, (a @ b) * 0).correct


def test_every_timed_product_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    bench = matmul.Bench("cpu", torch.float32, 64)
    honest, turns = bench.once_s, iter(range(100))

    def wrong_at_the_fourth() -> float:
        took_s = honest()
        if next(turns) == 3:
            bench.product[7, 9] += 1
        return took_s

    monkeypatch.setattr(bench, "once_s", wrong_at_the_fourth)
    times_s, found = matmul.measure(bench, repeats=6, seconds=60, progress=lambda _: None)
    assert len(times_s) == 6
    assert (found.correct, found.row, found.column) == (False, 7, 9)


def test_a_probe_of_the_cpu() -> None:
    ended, row = probe("--size", "256", "--repeats", "4", "--seconds", "30", "--memory-cap-bytes", str(2 << 30))
    assert ended.returncode == matmul.RIGHT, ended.stderr
    assert (row["format"], row["correct"], row["dtype"], row["size"], row["repeats"]) == (1, True, "fp32", 256, 4)
    assert (row["uuid"], row["index"], row["device_peak_bytes"]) == (None, None, 0)
    assert 0 < row["tflops_min"] <= row["tflops"] <= row["tflops_max"]
    assert row["tflops"] == pytest.approx(2 * 256**3 / row["seconds"] / 1e12)
    assert row["host_peak_bytes"] > 50 * matmul.MIB
    assert row["total_s"] > 4 * row["seconds"]
    assert "matmul" not in ended.stderr  # progress only when asked for


def test_the_size_fits_the_cpu_and_progress_goes_to_standard_error() -> None:
    ended, row = probe("--progress")
    assert ended.returncode == matmul.RIGHT, ended.stderr
    assert row["size"] in matmul.CPU_SIZES
    assert "fp32" in ended.stderr


def test_a_hanging_import_is_ended_by_the_alarm(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(50)\n", encoding="utf-8")
    ended, row = probe("--deadline-s", "0.3", PYTHONPATH=str(tmp_path))
    assert (ended.returncode, row) == (-signal.SIGALRM, {})


def test_a_long_product_is_ended_by_the_alarm() -> None:
    ended, row = probe("--seconds", "50", "--repeats", "1000000", "--deadline-s", "4")
    assert (ended.returncode, row) == (-signal.SIGALRM, {})


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("--size", "8192", "--memory-cap-bytes", "700000000"), "out-of-memory", "over the cap of 668 MiB"),
        (("--size", "10000000"), "out-of-memory", "memory"),  # 400 TB, refused by the allocator
        (("--device", "tpu"), "usage", "'tpu'"),
        (("--size", "0"), "usage", "at least 16"),
        (("--seconds", "nan"), "usage", "--seconds"),
        (("--deadline-s", "inf"), "usage", "--deadline-s"),
        (("--nonsense",), "usage", "--nonsense"),
    ],
)
def test_why_there_is_no_figure(arguments: tuple[str, ...], kind: str, words: str) -> None:
    ended, row = probe(*arguments)
    assert (ended.returncode, row["format"], row["error"]) == (matmul.NOT_MEASURED, 1, kind)
    assert words in row["text"]
    assert "Traceback" not in ended.stderr


def test_no_torch() -> None:
    ended, row = probe(flags=("-S", "-E"))
    assert (ended.returncode, row["error"]) == (matmul.NOT_MEASURED, "no-torch")


@pytest.mark.parametrize("device", ["cuda:0", "GPU-3f1c"])
def test_a_torch_without_cuda_measures_no_gpu(device: str) -> None:
    import torch

    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    ended, row = probe("--device", device)
    assert (ended.returncode, row["error"]) == (matmul.NOT_MEASURED, "no-torch")
    assert "without CUDA" in row["text"]


def test_only_the_wanted_device_is_visible() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert matmul.choose_device("cuda:1", environment) == ("cuda:0", 1)
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    bare: dict[str, str] = {}
    assert matmul.choose_device("cuda:3", bare) == ("cuda:0", 3)
    assert bare == {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert matmul.choose_device("GPU-3f1c", bare) == ("cuda:0", None)
    assert bare["CUDA_VISIBLE_DEVICES"] == "GPU-3f1c"
    with pytest.raises(matmul.NotMeasuredError, match="2 devices") as caught:
        matmul.choose_device("cuda:2", {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert caught.value.kind == "no-device"


@pytest.mark.parametrize(
    ("error", "on_cuda", "kind"),
    [
        (RuntimeError("No CUDA GPUs are available"), True, "no-device"),
        (RuntimeError("Found no NVIDIA driver on your system. Please check"), True, "no-cuda"),
        (AssertionError("Torch not compiled with CUDA enabled"), True, "no-cuda"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True, "out-of-memory"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            True,
            "out-of-memory",
        ),
        (RuntimeError("CUDA error: unspecified launch failure"), True, "cuda-error"),
        (RuntimeError("CUDA unknown error - this may be due to an incorrectly set up environment"), True, "cuda-error"),
        (MemoryError(), False, "out-of-memory"),
        (RuntimeError("could not create a primitive"), False, "cpu-error"),
    ],
)
def test_what_torch_raised_has_a_word(error: BaseException, on_cuda: bool, kind: str) -> None:
    assert matmul.kind_of(error, on_cuda) == kind


@pytest.mark.gpu
def test_a_probe_of_the_gpu() -> None:
    ended, row = probe("--device", "cuda:0")
    assert ended.returncode == matmul.RIGHT, ended.stdout + ended.stderr
    assert row["size"] in matmul.GPU_SIZES
    assert 0 < row["device_peak_bytes"] <= 1536 * matmul.MIB
    again, by_uuid = probe("--device", row["uuid"])
    assert again.returncode == matmul.RIGHT, again.stdout + again.stderr
    assert (by_uuid["uuid"], by_uuid["size"]) == (row["uuid"], row["size"])
