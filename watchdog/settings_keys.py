"""One key of the settings: how its value is read and checked, and what is said when it cannot be.

Responsible for turning one written value into one checked value, and for the words of one problem. Refuses to know
where values come from; whoever calls names the source.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from watchdog import units
from watchdog.settings_shape import SECTIONS

# What a section or a key may look like without quotes in TOML.
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_PROGRAM: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")  # as a shell has it: no slash, so PATH decides
_SHOWN_CHARACTERS: Final = 80
_SEARCHED_CHARACTERS: Final = 4096


# Structs and not dataclasses: they cost a twentieth at import, and every command pays that.
class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Against what a relative path and `~` are resolved."""

    base: Path
    home: Path


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a section. `attribute` is the field that holds it; `computed` keys have no default of their own."""

    section: str
    name: str
    attribute: str
    type: Any
    meta: msgspec.Meta
    default: Any

    @property
    def extra(self) -> Mapping[str, Any]:
        return self.meta.extra or {}

    @property
    def description(self) -> str:
        return self.meta.description or ""

    @property
    def limits(self) -> str:
        """`1s to 7d`; empty for a key without a range."""
        low, high = self.meta.ge, self.meta.le
        if low is None or high is None:
            return ""
        match self.extra["kind"]:
            case "duration":
                return f"{units.format_duration(low)} to {units.format_duration(high)}"
            case "size":
                return f"{units.format_size(int(low))} to {units.format_size(int(high))}"
        return f"{low} to {high}"

    @property
    def allowed(self) -> str:
        """The end of the sentence "must be ..."."""
        if text := self.extra["allowed"]:
            return str(text)
        match self.extra["kind"]:
            case "duration":
                examples = '"90s" or "1h30m"' if (self.meta.le or 0) >= 5400 else '"500ms" or "5s"'
                return f"a duration from {self.limits}, such as {examples}"
            case "size":
                return f'a size from {self.limits}, such as "500MB" or "3GiB"'
            case "path":
                return "a path, absolute, relative or beginning with ~/"
            case "program":
                return "a program: a path with a /, or a name that is looked up on PATH"
        return f"a whole number from {self.limits}"


@functools.cache
def keys_of(section: str) -> Mapping[str, Key]:
    """The keys of a section by their name in the file, in the order of the table."""
    keys = {}
    for info in msgspec.structs.fields(SECTIONS[section]):
        default = info.default
        if info.default_factory is not msgspec.NODEFAULT:
            default = info.default_factory()
        keys[info.encode_name] = Key(
            section=section,
            name=info.encode_name,
            attribute=info.name,
            type=info.type,
            meta=get_args(info.type)[-1],
            default=default,
        )
    return keys


class ComputedValue:
    """The answer of `read_value` for a word such as `auto`: as if the key had not been given."""


COMPUTED: Final = ComputedValue()


def read_value(key: Key, written: object, place: Place) -> Any:
    """The checked value of a key. Raises ValueError, whose text ends the sentence that `problem` begins."""
    if key.extra["computed"] and written == key.extra["computed"]:
        return COMPUTED
    kind = key.extra["kind"]
    try:
        value: Any = written
        if kind == "duration":
            value = units.parse_duration(written)
        elif kind == "size":
            value = units.parse_size(written)
        elif kind == "path":
            value = _read_path(written, place)
        elif kind == "program":
            value = Path(str(written)) if _PROGRAM.fullmatch(str(written)) else _read_path(written, place)
        elif key.name == "devices" and isinstance(written, list):
            # An index may be written as a number; true is not one.
            value = [str(item) if type(item) is int and 0 <= item < 1000 else item for item in written]
        value = msgspec.convert(value, key.type)
    except (ValueError, msgspec.ValidationError) as error:
        raise ValueError(f"must be {key.allowed}") from error
    check = key.extra["check"]
    if check is not None and (wrong := check(value)):
        raise ValueError(f"{wrong}; must be {key.allowed}")
    return value


def _read_path(written: object, place: Place) -> Path:
    if not isinstance(written, str | Path) or not str(written).strip() or "\0" in str(written):
        raise ValueError("not a path")
    text = str(written)
    if text == "~" or text.startswith("~/"):
        text = str(place.home) + text[1:]
    elif text.startswith("~"):
        raise ValueError("another user's home is not expanded")
    # normpath, not resolve: a symbolic link that a person put there is what they mean. No look at the disk here.
    return Path(os.path.normpath(place.base / text))


# --- words --------------------------------------------------------------------------------------------------
def one_line(text: str) -> str:
    """`text` with everything that could break the line or the terminal escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def written_name(name: str) -> str:
    """A section or key as it is written in TOML: quoted when it must be."""
    return name if _BARE.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def as_toml(value: object) -> str:
    """A value as it would stand in the file; only for people where it is not a TOML value."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _quoted(value)
        case list() | tuple():
            return "[" + ", ".join(map(as_toml, value)) + "]"
        case dict():
            return (
                "{ " + ", ".join(f"{written_name(str(name))} = {as_toml(item)}" for name, item in value.items()) + " }"
            )
    return str(value)


def problem(label: str, written: object, what: str, source: str) -> str:
    """One line: which key, the value seen (secrets hidden, long ones cut), what is wrong, and where it stands."""
    from watchdog import masking  # only when something is wrong: `status` need not pay for it

    if isinstance(written, list) and all(isinstance(item, str) for item in written):
        written = masking.mask_command(written)
    try:
        text = f"{label} = {as_toml(written)}"
    except (ValueError, RecursionError):  # a number of more than 4,300 digits; tables a thousand deep
        text = f"{label} = ..."
    # Hidden first and cut second, so that no half of a secret is left; a megabyte need not be searched for that.
    text = one_line(masking.mask_text(text[:_SEARCHED_CHARACTERS]))
    limit = min(len(one_line(label)), _SHOWN_CHARACTERS) + _SHOWN_CHARACTERS
    return one_line(f"{text if len(text) <= limit else text[:limit] + '...'}: {what} ({source})")
