"""How a run ended, from all that is known: its exit record, its last words, and what the kernel says."""

from __future__ import annotations

import pytest

from watchdog import contract
from watchdog.classify.ends import End, Evidence, ExitRecord, Kernel, asks_the_kernel, classify, signal_name
from watchdog.classify.log_tail import Failure, Link
from watchdog.core.advice import AMPLE, to_do
from watchdog.core.causes import Cause, Spends
from watchdog.core.kernel import KernelKind, KernelLine

FRAME = 'Traceback (most recent call last):\n  File "/u/train.py", line 12, in step\n    go()\n'
QUIET = Kernel(lines=(), kills=0)


def record(code: int | None = None, signal: int | None = None, *others: End, **changes: object) -> ExitRecord:
    leader = None if code is None and signal is None else End(pid=10, code=code, signal=signal, monotonic_s=1000.0)
    values: dict[str, object] = {"run_id": "1-a", "complete": True, "leader": leader, "exec_error": None}
    return ExitRecord(**(values | {"others": others} | changes))  # type: ignore[arg-type]


def line(kind: KernelKind, at_s: float, number: int | None = None, text: str = "a line") -> KernelLine:
    return KernelLine(at_s=at_s, kind=kind, text=text, number=number, subject="0000:01:00.0")


@pytest.mark.parametrize(
    ("ended", "cause", "words"),
    [
        (record(0), Cause.FINISHED, "exit 0"),
        (record(1), Cause.EXITED, "exit 1"),
        (record(255), Cause.EXITED, "exit 255"),
        (record(137), Cause.KILLED, "exit 137, a shell's word for SIGKILL"),
        (record(143), Cause.KILLED, "SIGTERM"),
        (record(139), Cause.EXITED, "exit 139"),  # what a program does to itself is not told by a shell's code alone
        (record(contract.EXIT_CHECKPOINT_REFUSED), Cause.CHECKPOINT_REFUSED, "refused the checkpoint"),
        (record(contract.EXIT_DATA), Cause.DATA_ERROR, "data cannot be used"),
        (record(contract.EXIT_DIVERGED), Cause.NUMERIC, "diverged"),
        (record(contract.EXIT_WRONG_RUN), Cause.EXITED, "no longer the job's"),
        (record(None, 9), Cause.KILLED, "SIGKILL, which was not ours"),
        (record(None, 15), Cause.KILLED, "SIGTERM"),
        (record(None, 11), Cause.SIGNALLED, "SIGSEGV"),
        (record(None, 24), Cause.WALL_REACHED, "CPU time"),
        (record(None, 64), Cause.SIGNALLED, "SIGRTMAX"),
        (record(None, None), Cause.UNKNOWN, "not known"),
        (None, Cause.UNKNOWN, "not known"),
        (record(127, exec_error=(2, "No such file or directory", "nope")), Cause.NOT_EXECUTED, "'nope'"),
    ],
)
def test_each_end_has_its_cause_and_its_words(ended: ExitRecord | None, cause: Cause, words: str) -> None:
    end = classify(Evidence(record=ended, kernel=QUIET))
    assert end.cause is cause
    assert words in end.words


def test_the_beating_process_speaks_for_the_run_where_its_end_is_known() -> None:
    """`sh -c 'python train.py; true'` exits with 0 however the trainer died."""
    ended = record(0, None, End(pid=11, code=None, signal=11), End(pid=12, code=3, signal=None))
    assert classify(Evidence(record=ended, beat_pid=11)).cause is Cause.SIGNALLED
    assert classify(Evidence(record=ended, beat_pid=12)).cause is Cause.EXITED
    assert classify(Evidence(record=ended, beat_pid=99)).cause is Cause.FINISHED
    assert classify(Evidence(record=ended)).cause is Cause.FINISHED


def test_what_no_second_try_can_help() -> None:
    def permanent(ended: ExitRecord | None, log: str = "") -> bool:
        return classify(Evidence(record=ended, log=log)).permanent

    assert permanent(record(contract.EXIT_DATA))
    assert permanent(record(127, exec_error=(13, "Permission denied", "x")))
    assert not any(map(permanent, (None, record(1), record(0), record(None, 9))))
    assert not permanent(record(contract.EXIT_DATA), FRAME + "MemoryError\n"), "more memory may help"


def test_a_bad_end_through_a_wrapper_that_says_so_is_as_permanent() -> None:
    """The beating process left with "its data cannot be used"; its wrapper left with something else."""
    ended = record(1, None, End(pid=11, code=contract.EXIT_DATA, signal=None))
    end = classify(Evidence(record=ended, beat_pid=11))
    assert (end.words, end.permanent) == ("the trainer says that its data cannot be used", True)


def test_a_shortage_is_believed_before_the_exit_code_that_hides_it() -> None:
    """An older checkpoint would not load either: memory that ran out is no reason to refuse this one."""
    for code in (1, contract.EXIT_CHECKPOINT_REFUSED, contract.EXIT_DATA, contract.EXIT_DIVERGED):
        chain = (Link(kind="CheckpointRefused", message="no"), Link(kind="OSError", message="x", number=12))
        end = classify(Evidence(record=record(code), failure=Failure(chain=chain)))
        assert (end.cause, end.cause.spends) == (Cause.HOST_MEMORY, Spends.HOST), code
    likely = FRAME + "ValueError: read of closed file\n"
    assert classify(Evidence(record=record(1), log=likely)).cause is Cause.HOST_MEMORY
    assert classify(Evidence(record=record(67), log=likely)).cause is Cause.NUMERIC, "only a certain one"


# --- processes of the run that are no more --------------------------------------------------------------------
GONE = FRAME + "RuntimeError: DataLoader worker (pid(s) 4711, 4712) exited unexpectedly\n"
KILLED_4712 = line(KernelKind.OOM_KILL, 999.0, 4712, "Out of memory: Killed process 4712 (python)")


@pytest.mark.parametrize(
    ("memory", "ample"),
    [((227 << 27, 235 << 27), True), ((1 << 29, 1 << 30), False), ((5 << 30, 64 << 30), False), (None, False)],
)
def test_a_refusal_of_memory_has_the_figures_of_the_host(memory: tuple[int, int] | None, ample: bool) -> None:
    end = classify(Evidence(record=record(1), log=FRAME + "MemoryError\n", memory=memory))
    assert end.cause is Cause.HOST_MEMORY
    assert (" GiB were available" in end.words) is (memory is not None)
    assert (AMPLE in end.words) is ample
    assert ("close what holds" in to_do(end.cause, end.words)) is not ample
    assert ("ulimit -v" in to_do(end.cause, end.words)) is ample


def test_a_worker_that_the_kernel_killed_is_no_error_of_the_program() -> None:
    """torch tells only that it is gone; the kernel names its pid."""
    end = classify(Evidence(record=record(1), log=GONE, kernel=Kernel(lines=(KILLED_4712,))))
    assert (end.cause, end.likely, end.fault) == (Cause.OOM_KILL, False, None)
    assert "killed its worker" in end.words
    assert asks_the_kernel(record(1), beat_pid=None, log=GONE)


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while it",
        "RuntimeError: One of the subprocesses has abruptly died during map operation.",
    ],
)
def test_a_worker_that_is_gone_is_never_held_for_the_programs_own_error(words: str) -> None:
    blind = classify(Evidence(record=record(1), log=FRAME + words + "\n"))
    assert (blind.cause, blind.likely) == (Cause.OOM_KILL, True), "nobody else would kill it unseen"
    seen = classify(Evidence(record=record(1), log=FRAME + words + "\n", kernel=QUIET))
    assert (seen.cause, seen.fault) == (Cause.EXITED, None)
    assert "not by the kernel for memory" in seen.words


def test_a_manager_process_that_is_gone() -> None:
    inside = 'Traceback (most recent call last):\n  File "/lib/python3.11/multiprocessing/connection.py", line 4\n'
    assert classify(Evidence(record=record(1), log=inside + "EOFError\n")).cause is Cause.OOM_KILL
    assert classify(Evidence(record=record(1), log=FRAME + "EOFError\n")).cause is Cause.CODE_ERROR


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("Killed. ", Cause.KILLED),
        ("Terminated. ", Cause.KILLED),
        ("Segmentation fault. ", Cause.SIGNALLED),
        ("Bus error. ", Cause.HOST_MEMORY),
    ],
)
def test_a_worker_whose_signal_is_told(how: str, cause: Cause) -> None:
    log = FRAME + f"RuntimeError: DataLoader worker (pid 4711) is killed by signal: {how}\n"
    assert classify(Evidence(record=record(1), log=log, kernel=QUIET)).cause is cause


def test_a_kill_for_memory_at_that_moment_explains_what_nothing_else_does_but_no_traceback() -> None:
    """An error that the program tells of itself stays its own, unless the kernel names a process of the run."""
    near = Kernel(lines=(line(KernelKind.OOM_KILL, 999.0, 77, "Killed process 77 (chrome)"),))
    assert classify(Evidence(record=record(1), kernel=near)).cause is Cause.OOM_KILL
    own = classify(Evidence(record=record(1), log=FRAME + "ValueError: no\n", kernel=near))
    assert (own.cause, own.likely) == (Cause.CODE_ERROR, False)
    ours = Kernel(lines=(line(KernelKind.OOM_KILL, 999.0, 11, "Killed process 11 (python)"),))
    child = record(1, None, End(pid=11, code=None, signal=9))
    assert classify(Evidence(record=child, log=FRAME + "ValueError: no\n", kernel=ours)).cause is Cause.OOM_KILL


# --- the storage ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("number", "words"),
    [(5, "Input/output error"), (30, "Read-only file system"), (116, "Stale file handle")],
)
def test_storage_that_fails_is_the_hosts(number: int, words: str) -> None:
    end = classify(Evidence(record=record(1), log=FRAME + f"OSError: [Errno {number}] {words}: '/data/x'\n"))
    assert (end.cause, end.cause.spends) == (Cause.STORAGE_FAILED, Spends.HOST)


def test_an_abort_says_what_came_before_it() -> None:
    log = (
        "[rank0]:[E1128] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7) ran for 600001 milliseconds\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57\n"
    )
    end = classify(Evidence(record=record(None, 6), log=log, kernel=QUIET))
    assert end.cause is Cause.SIGNALLED
    assert "collective operation timeout" in end.words
    assert end.error is not None
    assert "collective operation timeout" in end.error


# --- the kernel -----------------------------------------------------------------------------------------------
def test_an_oom_kill_is_told_by_its_pid() -> None:
    lines = (line(KernelKind.OOM_KILL, 999.9, 10, "Out of memory: Killed process 10 (python)"),)
    end = classify(Evidence(record=record(None, 9), kernel=Kernel(lines=lines)))
    assert (end.cause, end.likely) == (Cause.OOM_KILL, False)
    assert "Killed process 10" in end.words
    end = classify(Evidence(record=record(137), kernel=Kernel(lines=lines)))
    assert end.cause is Cause.OOM_KILL, "through a shell"


def test_another_processs_oom_kill_is_only_likely_ours_and_only_at_that_moment() -> None:
    """In a container the kernel's pids are not ours."""

    def killed(at_s: float) -> Cause:
        lines = (line(KernelKind.OOM_KILL, at_s, 4711),)
        end = classify(Evidence(record=record(None, 9), kernel=Kernel(lines=lines)))
        assert end.likely is (end.cause is Cause.OOM_KILL)
        return end.cause

    assert killed(999.0) is Cause.OOM_KILL
    assert killed(970.0) is Cause.KILLED
    assert killed(1030.0) is Cause.KILLED


def test_counters_decide_only_where_the_log_is_closed() -> None:
    assert classify(Evidence(record=record(None, 9), kernel=Kernel(kills=1))).cause is Cause.OOM_KILL
    assert classify(Evidence(record=record(None, 9), kernel=Kernel(lines=(), kills=1))).cause is Cause.KILLED
    assert classify(Evidence(record=record(None, 9), kernel=Kernel(kills=0))).cause is Cause.KILLED
    blind = classify(Evidence(record=record(None, 9)))
    assert (blind.cause, blind.likely) == (Cause.KILLED, True)
    assert "cannot be seen" in blind.words


def test_our_own_kill_is_nobody_elses() -> None:
    lines = (line(KernelKind.OOM_KILL, 999.9, 10),)
    assert classify(Evidence(record=record(None, 9), kernel=Kernel(lines=lines), ours=True)).cause is Cause.SIGNALLED
    assert classify(Evidence(record=record(None, 15), ours=True)).cause is Cause.SIGNALLED


def test_a_worker_that_was_killed_is_the_kernels_only_if_the_kernel_says_so() -> None:
    log = FRAME + "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. \n"
    assert classify(Evidence(record=record(1), log=log)).cause is Cause.OOM_KILL
    assert classify(Evidence(record=record(1), log=log, kernel=QUIET)).cause is Cause.KILLED
    lines = (line(KernelKind.OOM_KILL, 998.0, 77),)
    end = classify(Evidence(record=record(1), log=log, kernel=Kernel(lines=lines)))
    assert (end.cause, "a line" in end.words) == (Cause.OOM_KILL, True)


def test_torchrun_tells_which_worker_died_of_what() -> None:
    log = "Root Cause (first observed failure):\n  traceback : Signal 9 (SIGKILL) received by PID 77\n=====\n"
    lines = (line(KernelKind.OOM_KILL, 999.0, 77),)
    end = classify(Evidence(record=record(1), log=log, kernel=Kernel(lines=lines)))
    assert (end.cause, end.likely) == (Cause.OOM_KILL, False)
    assert classify(Evidence(record=record(1), log=log, kernel=QUIET)).cause is Cause.KILLED


@pytest.mark.parametrize(
    ("kind", "number", "cause"),
    [
        (KernelKind.XID, 79, Cause.DEVICE_FAULT),
        (KernelKind.XID, 48, Cause.DEVICE_FAULT),
        (KernelKind.XID, 31, Cause.CUDA_ERROR),  # a page fault: the application's, until it repeats
        (KernelKind.XID, 45, Cause.CUDA_ERROR),
        (KernelKind.DXG_BRIDGE, 2, Cause.BRIDGE_DEAD),
        (KernelKind.DXG_RESIDENCY, 12, Cause.CUDA_OUT_OF_MEMORY),
        (KernelKind.IO_ERROR, None, Cause.CUDA_ERROR),
    ],
)
def test_what_the_kernel_says_of_a_cuda_error(kind: KernelKind, number: int | None, cause: Cause) -> None:
    log = FRAME + "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    kernel = Kernel(lines=(line(kind, 990.0, number),))
    assert classify(Evidence(record=record(1), log=log, kernel=kernel)).cause is cause
    old = Kernel(lines=(line(kind, 10.0, number),))
    assert classify(Evidence(record=record(1), log=log, kernel=old)).cause is Cause.CUDA_ERROR


def test_an_xid_is_no_reason_for_an_error_of_the_program() -> None:
    kernel = Kernel(lines=(line(KernelKind.XID, 990.0, 79),))
    assert classify(Evidence(record=record(1), log=FRAME + "TypeError: no\n", kernel=kernel)).cause is Cause.CODE_ERROR
    assert classify(Evidence(record=record(None, 11), kernel=kernel)).cause is Cause.DEVICE_FAULT
    assert classify(Evidence(record=record(1), kernel=kernel)).cause is Cause.DEVICE_FAULT


def test_the_kernel_is_asked_only_where_it_may_know() -> None:
    def asked(ended: ExitRecord | None, log: str = "") -> bool:
        return asks_the_kernel(ended, beat_pid=None, log=log)

    assert asked(record(None, 9))
    assert asked(record(137))
    assert asked(record(1), FRAME + "RuntimeError: CUDA error: unknown error\n")
    assert not asked(record(0))
    assert not asked(None)
    assert not asked(record(1), FRAME + "TypeError: no\n")


# --- what is kept of it -----------------------------------------------------------------------------------------
def test_the_place_and_the_last_words_are_kept() -> None:
    end = classify(Evidence(record=record(1), log=f"step 3\n{FRAME}TypeError: no\n  of two lines\n"))
    assert end.fault == "TypeError at /u/train.py:12 in step"
    assert end.error == "TypeError: no"
    assert classify(Evidence(record=record(3), log="step 1\nout of luck\n\n")).error == "out of luck"
    chain = (Link(kind="OSError", message="full"),)
    assert classify(Evidence(record=record(3), failure=Failure(chain=chain), log="x")).error == "OSError: full"


def test_every_cause_has_a_ledger_and_a_cure() -> None:
    for cause in Cause:
        assert cause.cure.value
        assert cause.is_failure is (cause.spends is not Spends.NOTHING)


def test_signals_without_a_name_keep_their_number() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(40) == "signal 40"
    assert signal_name(1000) == "signal 1000"
