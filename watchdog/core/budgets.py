"""Budgets: failures in a row without progress, and how long to wait before the next try. Arithmetic only.

There are two ledgers, the trainer's and the host's, each with a budget of its own: a host that was short of memory
twice has not used up the patience with a trainer that fails for the first time.
"""

from __future__ import annotations


def failures_after(failures: int, *, is_failure: bool, progressed: bool) -> int:
    """The count of one ledger after a run. A new verified checkpoint clears it; what it does not spend leaves it."""
    if progressed:
        return 0
    return failures + 1 if is_failure else failures


def backoff_s(failures: int, *, base_s: float, limit_s: float) -> float:
    """The first retry is at once; then base, 2x base, 4x base ... up to the limit."""
    if failures <= 1:
        return 0.0
    return min(limit_s, base_s * 2.0 ** min(failures - 2, 32))
