"""The commented configuration that `watchdog init` writes, made from the table in `settings_shape.py`.

Responsible for a file that loads to exactly the defaults and names every key. Refuses to hold a key, default or range
of its own.
"""

from __future__ import annotations

import textwrap
from typing import Final

from watchdog import units
from watchdog.settings_keys import Key, as_toml, keys_of
from watchdog.settings_shape import SECTIONS

_WIDTH: Final = 110
_HEAD: Final = """\
# gpuhost-watchdog: what is supervised, and how.
#
# Every key is here with its default; what you do not change, you may delete. Lines that begin with "# key =" have no
# fixed default: take the "#" away to set them. Durations and sizes are written as "90s", "1h30m", "500MB", "3GiB"; a
# plain number is seconds or bytes. Relative paths belong to the folder of this file.
# The environment comes before this file: GPUHOST_WATCHDOG_RELAUNCH__FAILURES=5 is [relaunch] failures.
# Several jobs: write [jobs.NAME] with the keys of [job] for each, [jobs.NAME.memory] and so on for what differs
# there, and choose with --job NAME.
"""


def render() -> str:
    """The whole file."""
    return _HEAD + "".join(_section(section) for section in SECTIONS)


def _section(section: str) -> str:
    summary = (SECTIONS[section].__doc__ or "").split("\n")[0]
    lines = ["", *_comment(summary), f"[{section}]"]
    for key in keys_of(section).values():
        limits = key.limits or key.extra["allowed"]
        lines += _comment(f"{key.description} ({limits})" if limits else key.description)
        lines.append(_line(key))
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _line(key: Key) -> str:
    if key.extra["example"]:
        return f"# {key.name} = {key.extra['example']}"
    return f"{key.name} = {_default(key)}"


def _default(key: Key) -> str:
    if key.extra["computed"]:
        return as_toml(key.extra["computed"])
    match key.extra["kind"]:
        case "duration":
            return as_toml(units.format_duration(key.default))
        case "size":
            return as_toml(units.format_size(key.default))
    return as_toml(key.default) if key.default != {} else "{}"
