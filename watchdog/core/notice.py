"""Notices: what a person is told of, and the command template that tells it. Pure.

Responsible for the closed set of events and of placeholders, for what is wrong with a template, and for filling it in:
each argument by itself, once. Refuses a shell, to split an argument, and to fill in what was filled in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

HOLD: Final = "hold"
RECOVERY: Final = "recovery"
BLINDNESS: Final = "blindness"
EVENTS: Final = (HOLD, RECOVERY, BLINDNESS)

DELIVERED: Final = "delivered"  # the command ended with 0
FAILED: Final = "failed"  # it could not be started, or ended otherwise
LATE: Final = "late"  # it was ended at its deadline
OUTCOMES: Final = (DELIVERED, FAILED, LATE)

PLACEHOLDERS: Final = ("event", "job", "run", "host", "summary")
ALLOWED: Final = ", ".join("{" + name + "}" for name in PLACEHOLDERS)
# Other braces are text: `{"text": "{summary}"}` has one placeholder, and no doubling is needed.
_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
SUMMARY_CHARACTERS: Final = 400


def wrong_with(template: Sequence[str]) -> str:
    """Why the template cannot be used; empty when it can. An empty template is "no command"."""
    if not template:
        return ""
    program = template[0]
    if not program:
        return "the first text, the program, is empty"
    if "/" in program and not program.startswith("/"):
        return f"the program {program!r} must be a name that is looked up on PATH, or an absolute path"
    for number, argument in enumerate(template):
        if "\0" in argument:
            return "an argument holds a NUL character"
        for name in _PLACEHOLDER.findall(argument):
            if number == 0:
                return f"the program holds the placeholder {{{name}}}; only arguments after it may"
            if name not in PLACEHOLDERS:
                return f"argument {number} holds the unknown placeholder {{{name}}}; allowed are {ALLOWED}"
    return ""


def filled(template: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """The command: one argument for each of the template, whatever the values hold. KeyError for a missing value."""
    return tuple(_PLACEHOLDER.sub(lambda match: values[match[1]], argument) for argument in template)


def one_line(text: str, most: int = SUMMARY_CHARACTERS) -> str:
    """`text` as one argument and one line of a message: no line breaks, no controls, not too long."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= most else line[: most - 1] + "…"
