"""What can end a training in one line, and how it is told apart from a shortage of memory.

    TrainerError                (1)  anything said in one line, without a traceback
    ├── UsageError              (2)  the command line asks for something that cannot be
    ├── DataError              (65)  the text cannot be used: empty, binary, changed
    ├── CheckpointRefused      (66)  the checkpoint to resume from is not what it should be
    ├── Diverged               (67)  a loss or gradient that is not finite, or beyond its limit
    └── Drained                 (0)  asked to stop before there was anything to save

The numbers are the contract's. Refuses to turn a shortage of memory into one of these: it is not the
checkpoint's fault, and an older checkpoint would not load either.
"""

from __future__ import annotations

import errno

from watchdog import contract

EXIT_FAILURE = 1
EXIT_USAGE = 2

# What torch says when the allocator or mmap is refused; neither carries an errno.
_MEMORY_PHRASES = ("can't allocate memory", "cannot allocate memory")


class TrainerError(Exception):
    """Base of everything that is told in one line."""

    exit_code = EXIT_FAILURE


class UsageError(TrainerError):
    """The command line, or the command line against the checkpoint."""

    exit_code = EXIT_USAGE


class DataError(TrainerError):
    """The text cannot be used."""

    exit_code = contract.EXIT_DATA


class CheckpointRefused(TrainerError):
    """The checkpoint is not what its manifest, its preset or its step says."""

    exit_code = contract.EXIT_CHECKPOINT_REFUSED


class Diverged(TrainerError):
    """Loss or gradient is not finite, or beyond its limit."""

    exit_code = contract.EXIT_DIVERGED


class Drained(TrainerError):
    """SIGTERM came before the first step of this run: nothing is lost by leaving at once."""

    exit_code = contract.EXIT_FINISHED


def is_memory_shortage(error: BaseException) -> bool:
    """True when a link of the chain is ENOMEM, a MemoryError, or torch's words for it.

    A failing `readinto` hides it: SystemError with OSError(12) as its cause, or ValueError: read of closed file.
    """
    for link in contract.error_chain(error):
        if isinstance(link, MemoryError) or getattr(link, "errno", None) == errno.ENOMEM:
            return True
        if any(phrase in str(link).lower() for phrase in _MEMORY_PHRASES):
            return True
    return False


def first_errno(error: BaseException, among: frozenset[int]) -> int | None:
    """The first errno of the chain that is in `among`, else None."""
    for link in contract.error_chain(error):
        number = getattr(link, "errno", None)
        if isinstance(number, int) and number in among:
            return number
    return None
