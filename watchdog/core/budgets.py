"""Budgets: failures in a row without progress, and how long to wait before the next try. Arithmetic only.

There are two ledgers, the trainer's and the host's, each with a budget of its own: a host that was short of memory
twice has not used up the patience with a trainer that fails for the first time.

A wait is drawn between bounds, so that jobs which died of one fault do not all come back at one moment; the number it
is drawn with is passed in (0 to below 1) and recorded: docs/decisions/0020.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


def failures_after(failures: int, *, is_failure: bool, progressed: bool) -> int:
    """The count of one ledger after a run. A new verified checkpoint clears it; what it does not spend leaves it."""
    if progressed:
        return 0
    return failures + 1 if is_failure else failures


def backoff_s(failures: int, *, base_s: float, limit_s: float, luck: float = 0.0) -> float:
    """The first retry is at once; then from base to 2x base, from base to 4x base ... and never above the limit.

    Never below base either: a wait of nothing would spend the budget on a fault that needs a moment to pass.
    """
    if failures <= 1:
        return 0.0
    least_s = min(base_s, limit_s)
    longest_s = min(limit_s, base_s * 2.0 ** min(failures - 1, 32))
    drawn_s = least_s + (longest_s - least_s) * (luck if 0.0 <= luck <= 1.0 else 1.0)
    return min(drawn_s, longest_s)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """A backoff that was begun, as the ledger has it: how long, and when by each clock."""

    wait_s: float
    wall_s: float
    monotonic_s: float | None
    boot_id: str | None


def wait_from(data: Mapping[str, Any], *, wall_s: float, monotonic_s: float | None, boot_id: str | None) -> Wait | None:
    """The wait that a weighed run began; None where it is followed at once, or where the record says nothing of it."""
    wait_s = data.get("wait_s")
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 < wait_s < math.inf:
        return None
    return Wait(wait_s=float(wait_s), wall_s=wall_s, monotonic_s=monotonic_s, boot_id=boot_id)


def wait_left_s(wait: Wait, *, now_s: float, wall_s: float, boot_id: str, limit_s: float) -> float:
    """What is left of it for a supervisor that begins now; never more than the wait itself, nor than the limit.

    Within one boot the monotonic clock tells, however the wall clock was set meanwhile. After another boot only the
    wall clock is there: one that was set back says that no time has passed, which costs the whole wait once.
    """
    same_boot = wait.boot_id == boot_id and wait.monotonic_s is not None
    passed_s = now_s - wait.monotonic_s if same_boot and wait.monotonic_s is not None else wall_s - wait.wall_s
    if not math.isfinite(passed_s):
        passed_s = 0.0
    return min(max(0.0, wait.wait_s - max(0.0, passed_s)), limit_s)
