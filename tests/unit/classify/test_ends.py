"""How a run ended, from its exit record alone."""

from __future__ import annotations

import pytest

from watchdog import contract
from watchdog.classify.ends import End, ExitRecord, classify, is_permanent, signal_name
from watchdog.core.causes import Cause


def record(code: int | None = None, signal: int | None = None, *others: End, **changes: object) -> ExitRecord:
    leader = None if code is None and signal is None else End(pid=10, code=code, signal=signal)
    values: dict[str, object] = {"run_id": "1-a", "complete": True, "leader": leader, "exec_error": None}
    return ExitRecord(**(values | {"others": others} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ended", "cause", "words"),
    [
        (record(0), Cause.FINISHED, "exit 0"),
        (record(1), Cause.EXITED, "exit 1"),
        (record(255), Cause.EXITED, "exit 255"),
        (record(137), Cause.EXITED, "exit 137"),  # a shell's word for a signal; not our knowledge
        (record(contract.EXIT_CHECKPOINT_REFUSED), Cause.CHECKPOINT_REFUSED, "refused the checkpoint"),
        (record(contract.EXIT_DATA), Cause.EXITED, "data cannot be used"),
        (record(contract.EXIT_DIVERGED), Cause.EXITED, "diverged"),
        (record(None, 9), Cause.SIGNALLED, "SIGKILL"),
        (record(None, 11), Cause.SIGNALLED, "SIGSEGV"),
        (record(None, 64), Cause.SIGNALLED, "SIGRTMAX"),
        (record(None, None), Cause.UNKNOWN, "not known"),
        (None, Cause.UNKNOWN, "not known"),
        (record(127, exec_error=(2, "No such file or directory", "nope")), Cause.NOT_EXECUTED, "'nope'"),
    ],
)
def test_each_end_has_its_cause_and_its_words(ended: ExitRecord | None, cause: Cause, words: str) -> None:
    found, said = classify(ended, beat_pid=None)
    assert found is cause
    assert words in said


def test_the_beating_process_speaks_for_the_run_where_its_end_is_known() -> None:
    """`sh -c 'python train.py; true'` exits with 0 however the trainer died."""
    ended = record(0, None, End(pid=11, code=None, signal=11), End(pid=12, code=3, signal=None))
    assert classify(ended, beat_pid=11) == (Cause.SIGNALLED, "died of SIGSEGV, which was not ours")
    assert classify(ended, beat_pid=12)[0] is Cause.EXITED
    assert classify(ended, beat_pid=99)[0] is Cause.FINISHED
    assert classify(ended, beat_pid=None)[0] is Cause.FINISHED


def test_what_no_second_try_can_help() -> None:
    assert is_permanent(record(contract.EXIT_DATA))
    assert is_permanent(record(127, exec_error=(13, "Permission denied", "x")))
    assert not any(map(is_permanent, (None, record(1), record(0), record(None, 9))))


def test_a_bad_end_through_a_wrapper_that_says_so_is_as_permanent() -> None:
    """The beating process left with "its data cannot be used"; its wrapper left with something else."""
    ended = record(1, None, End(pid=11, code=contract.EXIT_DATA, signal=None))
    assert classify(ended, beat_pid=11)[1] == "the trainer says that its data cannot be used"


def test_signals_without_a_name_keep_their_number() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(40) == "signal 40"
    assert signal_name(1000) == "signal 1000"
