"""`watchdog logs`: the supervisor's own words, or the trainer's output, and what is added to them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from watchdog.collectors.outputlog import first_data
from watchdog.control import unseen
from watchdog.core.history import fold
from watchdog.errors import StateError
from watchdog.ledger import read_events
from watchdog.places import folders_of
from watchdog.settings import Settings

_BLOCK_BYTES = 64 * 1024
_LOOK_EVERY_S = 0.25


def log_of(settings: Settings, *, output: bool) -> Path:
    """Which file it is. Raises StateError when there is none yet, or none for us."""
    folders = folders_of(settings)
    path = folders.screen_log
    if output:
        run_id = fold(read_events(folders.ledger)[0]).last_run_id
        if run_id is None:
            raise StateError(f"job {settings.job.name} has no run yet; start one: watchdog run")
        path = folders.run(run_id).log
    try:
        open(path, "rb").close()
    except (FileNotFoundError, NotADirectoryError):
        raise StateError(f"{path} does not exist (yet); start the job: watchdog run") from None
    except OSError as error:
        raise StateError(unseen(path, error)) from error
    return path


def show_log(settings: Settings, *, output: bool, follow: bool) -> None:
    """Print the log; with `follow` until Ctrl-C, also over a rotation and into the next run's."""
    path = log_of(settings, output=output)
    file = open(path, "rb")  # noqa: SIM115  (replaced while following)
    try:
        file.seek(first_data(file.fileno()))
        while True:
            while block := file.read(_BLOCK_BYTES):
                sys.stdout.buffer.write(block.replace(b"\0", b""))
            sys.stdout.buffer.flush()
            if not follow:
                return
            time.sleep(_LOOK_EVERY_S)
            with contextlib.suppress(OSError, StateError):
                current = log_of(settings, output=output) if output else path
                there, here = os.stat(current), os.fstat(file.fileno())
                if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) and not file.peek(1):
                    file.close()
                    path = current
                    file = open(path, "rb")  # noqa: SIM115
    except KeyboardInterrupt:
        return
    finally:
        file.close()
