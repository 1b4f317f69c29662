"""What is known of one thing: a value and when, why it could not be seen, or that there is no such thing.

Unknown is never healthy; absent is never a fault by itself. Refuses to guess a value for either.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Known(Struct, Generic[T], frozen=True):
    """A value and the CLOCK_MONOTONIC second at which it was read."""

    value: T
    at_s: float


class Unknown(Struct, frozen=True):
    """We looked and could not see; `why` is a sentence for a person."""

    why: str


class Absent(Struct, frozen=True):
    """There is no such thing on this host; `why` says how we know."""

    why: str = ""


Fact = Known[T] | Unknown | Absent


def value_of(fact: Fact[T]) -> T | None:
    """The value, None when it is not known: for a check that has nothing to say then."""
    return fact.value if isinstance(fact, Known) else None
