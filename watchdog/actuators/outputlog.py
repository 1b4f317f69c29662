"""Keeping the trainer's output bounded while the trainer keeps it open for append.

Beyond the limit the oldest blocks are punched out (`FALLOC_FL_PUNCH_HOLE`): the file keeps its length and the
writer needs no reopening; what was punched reads as zeros and takes no space.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
_BLOCK_BYTES = 4096


def punch_front(path: Path, limit_bytes: int) -> int:
    """Release what lies more than `limit_bytes` before the end of the file. Returns the bytes released now.

    Raises OSError, EOPNOTSUPP where the file system cannot do it.
    """
    status = os.stat(path)
    if status.st_size <= limit_bytes or status.st_blocks * 512 <= limit_bytes + limit_bytes // 8:
        return 0
    length = (status.st_size - limit_bytes) // _BLOCK_BYTES * _BLOCK_BYTES
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
        if libc.fallocate(fd, mode, ctypes.c_int64(0), ctypes.c_int64(length)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
        return max(0, (status.st_blocks - os.fstat(fd).st_blocks) * 512)
    finally:
        os.close(fd)
