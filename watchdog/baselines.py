"""The file of baselines: what each device of this host computed before. One for all jobs, in the state folder.

Responsible for reading it and for writing it whole, durably. Refuses to overwrite a file that it cannot read: what a
device once did cannot be measured again.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections.abc import Iterator
from pathlib import Path

from watchdog import contract
from watchdog.core.baselines import Results
from watchdog.errors import StateError

_FORMAT = 1


def read(path: Path) -> Results:
    """What is known; empty without a file. Raises StateError for a file that is none of ours."""
    try:
        record = contract.read_json(path, "baselines")
        if record["format"] != _FORMAT:
            raise ValueError(f"format {record['format']!r}")
        return {key: tuple(_result(key, value) for value in values) for key, values in record["tflops"].items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}") from error
    except (contract.ContractError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StateError(f"{path} is no file of baselines ({error}); move it away to begin anew") from error


def _result(key: str, value: object) -> float:
    """JSON's own NaN and Infinity, and texts, are none: what is no number would be no baseline."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{key}: {str(value)[:40]!r} is no result in TFLOP/s")
    return float(value)


def write(path: Path, results: Results) -> None:
    """Replace the file. Raises StateError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        contract.write_json_durably(
            path, {"format": _FORMAT, "tflops": {key: list(each) for key, each in results.items()}}
        )
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def alone(path: Path, *, make: bool) -> Iterator[bool]:
    """Hold the lock beside the file: two who measure at once falsify each other. False: somebody else holds it.

    Where no lock can be had (a read-only folder; none yet, and `make` is false) True is the answer.
    """
    try:
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError:
        yield True
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)
