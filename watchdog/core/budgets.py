"""Budgets: failures in a row without progress, and how long to wait before the next try. Arithmetic only."""

from __future__ import annotations


def failures_after(failures: int, *, is_failure: bool, progressed: bool) -> int:
    """The count after a run. A new verified checkpoint clears it; what was no failure leaves it."""
    if progressed:
        return 0
    return failures + 1 if is_failure else failures


def backoff_s(failures: int, *, base_s: float, limit_s: float) -> float:
    """The first retry is at once; then base, 2x base, 4x base ... up to the limit."""
    if failures <= 1:
        return 0.0
    return min(limit_s, base_s * 2.0 ** min(failures - 2, 32))
