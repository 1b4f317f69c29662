"""What the end of an output says: real deaths of programs that use torch, and lines as others have reported them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.classify.ends import End, Evidence, ExitRecord, classify
from watchdog.classify.log_tail import PATTERNS, failure_in, failure_of_record, make_link, meaning_of, meaning_of_lines
from watchdog.contract import failure_record
from watchdog.core.causes import Cause
from watchdog.core.seen import EndSeen

DEATHS = Path(__file__).with_name("deaths.py")
LIKELY = {"host_memory_threads", "disk_full_save_by_name", "checkpoint_empty", "killed_worker"}
# name in deaths.py: (cause, a piece of the words)
EXPECTED: dict[str, tuple[Cause, str]] = {
    "host_memory_load": (Cause.HOST_MEMORY, "DefaultCPUAllocator: can't allocate memory"),
    "host_memory_mmap": (Cause.HOST_MEMORY, "unable to mmap"),
    "host_memory_python": (Cause.HOST_MEMORY, "MemoryError"),
    "host_memory_numpy": (Cause.HOST_MEMORY, "Unable to allocate 16.0 GiB"),
    "host_memory_masked": (Cause.HOST_MEMORY, "Cannot allocate memory"),
    "host_memory_masked_behind_another": (Cause.HOST_MEMORY, "OSError: [Errno 12]"),
    "host_memory_native": (Cause.HOST_MEMORY, "std::bad_alloc"),
    "host_memory_threads": (Cause.HOST_MEMORY, "can't start new thread"),
    "disk_full_save_by_name": (Cause.DISK_FULL, "unexpected pos"),
    "disk_full_save_by_file": (Cause.DISK_FULL, "[Errno 28]"),
    "disk_full_log": (Cause.DISK_FULL, "[Errno 28]"),
    "checkpoint_truncated": (Cause.CHECKPOINT_REFUSED, "failed finding central directory"),
    "checkpoint_empty": (Cause.CHECKPOINT_REFUSED, "the checkpoint is empty"),
    "checkpoint_zeros": (Cause.CHECKPOINT_REFUSED, "weights_only"),
    "checkpoint_of_another_model": (Cause.CHECKPOINT_REFUSED, "loading state_dict for Linear"),
    "numeric_anomaly": (Cause.NUMERIC, "SqrtBackward0"),
    "numeric_clip": (Cause.NUMERIC, "non-finite"),
    "data_text": (Cause.DATA_ERROR, "UnicodeDecodeError"),
    "data_json": (Cause.DATA_ERROR, "JSONDecodeError"),
    "code_type": (Cause.CODE_ERROR, "TypeError"),
    "code_assertion": (Cause.CODE_ERROR, "the loss is negative"),
    "code_import": (Cause.CODE_ERROR, "no_such_module_anywhere"),
    "code_shape": (Cause.CODE_ERROR, "mat1 and mat2 shapes cannot be multiplied"),
    "code_in_a_worker": (Cause.CODE_ERROR, "KeyError"),
    "killed_worker": (Cause.OOM_KILL, "killed by signal: Killed"),
    "killed_by_ctrl_c": (Cause.KILLED, "KeyboardInterrupt"),
}


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], EndSeen]:
    """`deaths("code_type")`: how the classifier saw that one end, from its code and its output."""
    folder = tmp_path_factory.mktemp("deaths")
    subprocess.run([sys.executable, "-P", "-W", "ignore", str(DEATHS), str(folder)], check=True, timeout=120)
    ends: dict[str, list[int | None]] = json.loads((folder / "ends.json").read_text())
    assert set(ends) == set(EXPECTED)

    def seen(name: str) -> EndSeen:
        code, signal = ends[name]
        leader = End(pid=10, code=code, signal=signal)
        record = ExitRecord(run_id="1-a", complete=True, leader=leader, exec_error=None)
        return classify(Evidence(record=record, log=(folder / f"{name}.log").read_text(errors="replace")))

    return seen


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_death_is_called_by_its_name(name: str, deaths: Callable[[str], EndSeen]) -> None:
    cause, piece = EXPECTED[name]
    end = deaths(name)
    assert end.cause is cause, end.words
    assert piece in end.words
    assert end.likely is (name in LIKELY), end.words


def test_the_place_is_the_programs_own_line_and_not_the_librarys(deaths: Callable[[str], EndSeen]) -> None:
    """Also where the exception came out of torch, and where a data worker raised it."""
    lines = DEATHS.read_text().splitlines()
    for name, needle in (
        ("code_type", '"step " + 1'),
        ("code_shape", "torch.nn.Linear(4, 4)(torch.zeros(2, 3))"),
        ("code_in_a_worker", 'Items(lambda: {}["x"])'),
    ):
        number = next(at for at, line in enumerate(lines, start=1) if needle in line)
        assert f"at {DEATHS}:{number} in " in (deaths(name).fault or ""), name


# Texts of torch, cuBLAS, NCCL, JAX and batch systems, as they stand in their sources and in reports.
LINES: list[tuple[str, Cause]] = [
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.99 "
        "GiB of which 0 bytes is free.",
        Cause.CUDA_OUT_OF_MEMORY,
    ),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", Cause.CUDA_OUT_OF_MEMORY),
    ("RuntimeError: CUDA error: out of memory", Cause.CUDA_OUT_OF_MEMORY),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        Cause.CUDA_OUT_OF_MEMORY,
    ),
    (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 137438953472 "
        "bytes.",
        Cause.CUDA_OUT_OF_MEMORY,
    ),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", Cause.CUDA_ERROR),
    ("torch.AcceleratorError: CUDA error: unspecified launch failure", Cause.CUDA_ERROR),
    ("RuntimeError: CUDA error: misaligned address", Cause.CUDA_ERROR),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", Cause.CUDA_ERROR),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb)`",
        Cause.CUDA_ERROR,
    ),
    ("RuntimeError: CUDA error: device-side assert triggered", Cause.CODE_ERROR),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", Cause.DEVICE_FAULT),
    ("RuntimeError: CUDA error: unknown error", Cause.DEVICE_FAULT),
    ("RuntimeError: No CUDA GPUs are available", Cause.DRIVER_GONE),
    (
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        Cause.DRIVER_GONE,
    ),
    ("RuntimeError: CUDA error: no CUDA-capable device is detected", Cause.DRIVER_GONE),
    (
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env "
        "variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.",
        Cause.DRIVER_GONE,
    ),
    (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        Cause.DRIVER_GONE,
    ),
    ("pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch", Cause.DRIVER_GONE),
    ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", Cause.DRIVER_GONE),
    (
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_10488_248012275_0>: No space left on "
        "device (28)",
        Cause.HOST_MEMORY,
    ),
    (
        "RuntimeError: unable to write to file </torch_4711_123_0>: No space left on device (28)",
        Cause.HOST_MEMORY,
    ),
    ("ValueError: read of closed file", Cause.HOST_MEMORY),
    (
        "SystemError: <method 'readinto' of '_io.BufferedReader' objects> returned a result with an exception set",
        Cause.HOST_MEMORY,
    ),
    ("OSError: [Errno 122] Disk quota exceeded", Cause.DISK_FULL),
    (
        "RuntimeError: [enforce fail at inline_container.cc:783] . PytorchStreamWriter failed writing file data/7: "
        "file write failed",
        Cause.DISK_FULL,
    ),
    ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", Cause.CHECKPOINT_REFUSED),
    (
        "RuntimeError: unexpected EOF, expected 3211264 more bytes. The file might be corrupted.",
        Cause.CHECKPOINT_REFUSED,
    ),
    ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.", Cause.NUMERIC),
    ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", Cause.NUMERIC),
    ("ValueError: The loss returned in `training_step` is nan.", Cause.NUMERIC),
    ("PIL.UnidentifiedImageError: cannot identify image file '/data/1.jpg'", Cause.DATA_ERROR),
    ("datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset", Cause.DATA_ERROR),
    ("ConnectionResetError: [Errno 104] Connection reset by peer", Cause.EXITED),
    ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer", Cause.EXITED),
    ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='example.org', port=443)", Cause.EXITED),
    (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, remote process exited",
        Cause.EXITED,
    ),
]
FRAME = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 12, in step\n    loss.backward()\n'


@pytest.mark.parametrize(("line", "cause"), LINES, ids=[line[:40] for line, _ in LINES])
def test_words_of_others(line: str, cause: Cause) -> None:
    failure = failure_in(f"epoch 1\n{FRAME}{line}\n")
    assert failure is not None
    meaning = meaning_of(failure)
    assert meaning.cause is cause, meaning
    assert failure.place == "/home/u/train.py:12 in step"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: unknown error\n",
         "device_fault"),
        ("slurmstepd: error: *** JOB 4711 ON node7 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n",
         "wall_reached"),
        ("usage: train.py [-h] --lr LR\ntrain.py: error: the following arguments are required: --lr\n", "code_error"),
        ("python: can't open file '/x/train.py': [Errno 2] No such file or directory\n", "code_error"),
        ("tee: out.log: No space left on device\n", "disk_full"),
        ("step 12 loss 3.2\nstep 13 loss 3.1\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_last_lines_without_an_exception(text: str, cause: str | None) -> None:
    meaning = meaning_of_lines(text)
    assert (None if meaning is None else meaning.cause.value) == cause


def test_a_launchers_own_exception_hides_no_rank() -> None:
    """torchrun, as it prints: the rank's traceback with its rank in front, then its own."""
    text = (
        "".join(f"[rank0]: {line}\n" for line in f"{FRAME}TypeError: unsupported operand".splitlines())
        + "E1130 torch/distributed/elastic/multiprocessing/api.py:988] failed (exitcode: 1) local_rank: 0\n"
        + 'Traceback (most recent call last):\n  File "/v/lib/python3.11/site-packages/torch/distributed/run.py", '
        + "line 1032, in <module>\n    main()\n"
        + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain.py FAILED\n"
    )
    failure = failure_in(text)
    assert failure is not None
    assert (failure.chain[0].kind, failure.place) == ("TypeError", "/home/u/train.py:12 in step")


def test_an_exception_that_was_survived_is_not_the_end() -> None:
    text = f"{FRAME}RuntimeError: CUDA out of memory\n" + "".join(f"step {n} loss 3.1\n" for n in range(400))
    assert failure_in(text) is None
    assert meaning_of_lines(text) is None


def test_the_last_of_several_exceptions_counts() -> None:
    failure = failure_in(
        f"{FRAME}RuntimeError: CUDA out of memory\nretrying with half the batch\n{FRAME}TypeError: no\n"
    )
    assert failure is not None
    assert meaning_of(failure).cause is Cause.CODE_ERROR


def test_a_failure_record_speaks_with_its_whole_chain() -> None:
    """As `contract.fail` writes it: the errno is in the second link, the place in the traceback."""
    try:
        try:
            raise OSError(12, "Cannot allocate memory")
        except OSError as reason:
            raise RuntimeError("resume failed") from reason
    except RuntimeError as error:
        record = failure_record(error)
    links = [make_link(str(link["class"]), str(link["message"]), link["errno"]) for link in record["chain"]]  # type: ignore[attr-defined]
    failure = failure_of_record(links, str(record["traceback"]))
    assert meaning_of(failure).cause is Cause.HOST_MEMORY
    assert failure.place is not None
    assert failure.place.startswith(__file__)


def test_every_pattern_compiles_and_is_fast_on_long_lines() -> None:
    import re
    import time

    begin = time.process_time()
    for pattern in PATTERNS:
        for text in ("x" * 2000, "unable to write to file " * 80, "Error: " * 280, "[Errno " * 280):
            re.search(pattern.form, text)
    assert time.process_time() - begin < 1.0


@given(st.text(alphabet="Traceback (mosrecntalT):\n \"File,lineEo0_.x[]'\x1b\0\r", max_size=400))
def test_any_text_may_come(text: str) -> None:
    failure = failure_in(FRAME + text)
    if failure is not None:
        meaning_of(failure)
    meaning_of_lines(text)


def test_a_group_of_exceptions_is_read_through_what_is_drawn_around_it() -> None:
    log = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/u/train.py", line 3, in <module>\n'
        '  |     raise ExceptionGroup("two", [ValueError("bad")])\n'
        "  | ExceptionGroup: two (1 sub-exception)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "/u/train.py", line 2, in step\n'
        '    |     raise ValueError("bad")\n'
        "    | ValueError: bad\n"
        "    +------------------------------------\n"
    )
    failure = failure_in(log)
    assert failure is not None
    assert (failure.chain[0].kind, failure.place) == ("ValueError", "/u/train.py:2 in step")
    assert meaning_of(failure).cause is Cause.CODE_ERROR


def test_a_script_that_cannot_be_compiled_has_no_traceback() -> None:
    told = meaning_of_lines('  File "/u/train.py", line 1\n    def\n       ^\nSyntaxError: invalid syntax\n')
    assert told is not None
    assert told.cause is Cause.CODE_ERROR


def test_a_library_of_windows_is_no_code_of_the_user() -> None:
    log = (
        "Traceback (most recent call last):\n"
        '  File "C:\\u\\train.py", line 7, in main\n    go()\n'
        '  File "C:\\venv\\Lib\\site-packages\\torch\\nn\\module.py", line 99, in call\n    x\n'
        "OSError: [WinError 1455] The paging file is too small for this operation to complete\n"
    )
    failure = failure_in(log)
    assert failure is not None
    assert failure.place == "C:\\u\\train.py:7 in main"
    assert meaning_of(failure).cause is Cause.HOST_MEMORY


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.batch. Some of your processes", Cause.OOM_KILL),
        ("OSError: 524288 requested and 0 written", Cause.DISK_FULL),
        ("OSError: [WinError 112] There is not enough space on the disk", Cause.DISK_FULL),
    ],
)
def test_more_words_for_what_ran_out(text: str, cause: Cause) -> None:
    told = meaning_of_lines(text)
    assert told is not None
    assert told.cause is cause
