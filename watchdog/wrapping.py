"""Long lines on a terminal: broken at its width, and what follows stands under the words, not under the label.

Only where somebody looks: what is read by a program, or kept, has its lines whole. Refuses to break a word: a path or a
command must be copied in one piece.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from typing import TextIO

_NARROWEST = 40


def width_of(stream: TextIO) -> int | None:
    """Of a terminal; None for everything else. One that does not tell has 80 columns."""
    if not stream.isatty():
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return max(_NARROWEST, columns or shutil.get_terminal_size().columns)


def wrapped(lines: Iterable[str], width: int | None, hang: int) -> list[str]:
    """`hang`: the column of the words behind a label; what is indented further keeps its own."""
    if width is None:
        return list(lines)
    import textwrap

    found: list[str] = []
    for line in lines:
        if len(line) <= width:
            found.append(line)
            continue
        own = len(line) - len(line.lstrip(" "))
        broken = textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * (own + 2 if 0 < own < hang else max(own, hang)),
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
        found.extend(broken or [line])
    return found
