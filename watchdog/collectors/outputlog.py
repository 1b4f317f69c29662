"""Reading the trainer's output log, whose front may have been punched out.

Refuses to shorten it: that is actuators/outputlog.py.
"""

from __future__ import annotations

import os
from pathlib import Path

from watchdog.contract import open_regular


def first_data(fd: int) -> int:
    """Offset of the first byte that was not punched out."""
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError:
        return 0


def tail(path: Path, limit_bytes: int = 8192) -> str:
    """The last bytes of the log as text, without punched zeros. Raises OSError."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(first_data(file.fileno()), size - limit_bytes))
        return file.read(limit_bytes).lstrip(b"\0").decode("utf-8", "replace")
