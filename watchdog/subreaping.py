"""Being given the orphans of our runs. Refuses to take an orphan for ours where it may be somebody else's."""

from __future__ import annotations

import ctypes
import os

from watchdog.collectors.processes import process_table

PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Should a shim be killed, what it watched over becomes our child. Raises OSError.

    True when that proves it ours: not for process 1, which is given everybody's orphans, nor for a process that had
    children before (a shell that exec'd us), whose grandchildren may be given to us as well.
    """
    me = os.getpid()
    alone = me != 1 and not any(process.ppid == me for process in process_table())
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    return alone
