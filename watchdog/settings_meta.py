"""How a key of the settings is described: one `key(...)` a field, which checking, messages and the template all use.

Also what is said of a name that nobody knows: here, since keys check names of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from msgspec import Meta


def key_name(attribute: str) -> str:
    """`grace_s` -> `grace`: in the file the unit stands with the value."""
    return attribute.removesuffix("_s").removesuffix("_bytes")


def key(
    description: str,
    *,
    kind: Literal["plain", "duration", "size", "path", "program"] = "plain",
    allowed: str = "",
    example: str = "",
    computed: str = "",
    check: Callable[[Any], str] | None = None,
    ge: float | None = None,
    le: float | None = None,
    pattern: str | None = None,
) -> Meta:
    """What is known about a key.

    `allowed` is the end of the sentence "must be ..."; without it, it is made from kind and range. `example` is
    what the template shows, commented out, for a key that has no value of its own. `computed` is a word that stands
    for "not given" (`auto`). `check` returns what is wrong with a value of the right type, or an empty text.
    """
    extra = {"kind": kind, "allowed": allowed, "example": example, "computed": computed, "check": check}
    if pattern is not None:
        return Meta(description=description, extra=extra, pattern=pattern)
    return Meta(description=description, extra=extra, ge=ge, le=le)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` when something known is close, else the list of what is known."""
    import difflib  # 7 ms that only a typing error is worth

    names = list(known)
    lower = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name[:200].lower(), list(lower), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {lower[close[0]]}?"
    return f"; known are {', '.join(names)}" if len(names) <= 16 else ""
