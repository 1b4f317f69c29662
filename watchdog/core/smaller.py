"""A smaller batch after device memory ran out: how often the micro-batch of the next run is halved. Pure.

Responsible for when it is halved once more, for what the ledger remembers of that, and for the words. The tokens of a
step stay the same: that is the trainer's side, see `contract.shrunk_batch`. Refuses to halve where [job] shrink_batch
does not allow it, and to grow back by itself: docs/decisions/0023.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watchdog.core.causes import Cause, Cure

# Kind, sentence and data of a record; not core/state.py's own, which `watchdog status` need not pay for.
Written = tuple[str, str, dict[str, Any]]
_ERROR_CHARACTERS = 200


# --- deciding -----------------------------------------------------------------------------------------------
def halvings_after(cause: Cause, halvings: int, *, limit: int) -> int:
    """For the run after one that ended by `cause`, launched with so many. `limit` is [job] shrink_batch."""
    return halvings + 1 if cause.cure is Cure.SMALLER and halvings < limit else halvings


def halvings_for(halvings: int, *, limit: int, same_command: bool) -> int:
    """For a launch: of another command nothing was learned, and a person may have lowered the limit since."""
    return max(0, min(halvings, limit)) if same_command else 0


# --- remembering --------------------------------------------------------------------------------------------
def remembered(halvings: int, kind: str, data: Mapping[str, Any]) -> int:
    """What the ledger says after one record more.

    A run that is weighed twice, since a power failure took the first time's record, is shrunk for once: the count is
    part of that very record.
    """
    match kind:
        case "run_launching":
            return int(data.get("batch_halvings") or 0)
        case "run_weighed":
            told = data.get("batch_halvings")
            return halvings if told is None else int(told)
        case "batch_whole" | "archived":
            return 0
    return halvings


# --- words --------------------------------------------------------------------------------------------------
def times(halvings: int) -> str:
    """`once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(halvings, f"{halvings} times")


def in_words(halvings: int) -> str:
    """What a person is told of a run that is launched with so many."""
    return (
        f"the run is asked to halve each micro-batch {times(halvings)} (GPUHOST_WATCHDOG_BATCH_HALVINGS={halvings}), "
        "since device memory ran out; a step has as many tokens, if its trainer heeds it"
    )


def shrunk(number: int, run_id: str, error: str, before: int, halvings: int, *, limit: int) -> Written:
    """The record that the next run is a smaller one, with its evidence."""
    words = (
        f"run {number} ran out of device memory: the next one is asked to halve each micro-batch {times(halvings)} "
        f"(GPUHOST_WATCHDOG_BATCH_HALVINGS={halvings}; {limit} allowed); a step has as many tokens as before"
    )
    data = {
        "run_id": run_id,
        "number": number,
        "from": before,
        "to": halvings,
        "limit": limit,
        "evidence": error[:_ERROR_CHARACTERS],
    }
    return "batch_shrunk", words, data


def whole(halvings: int) -> Written:
    """The record that a person begins anew with the whole batch."""
    words = f"the micro-batch, halved {times(halvings)} so far, is whole again: a person begins anew"
    return "batch_whole", words, {"from": halvings, "to": 0}


def advice(cause: Cause, halvings: int, *, limit: int) -> str:
    """What a person can do about a hold after such an end, to be put behind its reason; "" after another one.

    `halvings`: of the run that ended.
    """
    if cause.cure is not Cure.SMALLER:
        return ""
    if halvings < limit:
        return (
            f"; the next run is asked to halve its micro-batch {times(halvings + 1)}; if that is too little, free the "
            "device"
        )
    if limit == 0:
        return (
            "; free the device, or make the batch smaller: by hand, or with [job] shrink_batch, where the trainer "
            "honours GPUHOST_WATCHDOG_BATCH_HALVINGS"
        )
    return (
        f"; the micro-batch was halved {times(halvings)} already, and [job] shrink_batch = {limit} allows no more: "
        "free the device, allow more, or make the model or its context smaller"
    )
