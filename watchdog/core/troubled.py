"""A launch that came to nothing: what passes by itself is tried again through the gates, anything else is a hold. Pure.

A disk that was full for a minute at night must not end the night. Tried again at growing distances, for no longer than
a closed gate is waited for, and so often at most. Whoever was in the way may have saved: the checkpoints are chosen
anew. Refuses to say which troubles pass: who carried the launch out knows (launching.py).
"""

from __future__ import annotations

import dataclasses

from watchdog.core.seen import Seen
from watchdog.core.state import Choose, Plan, Policy, Record, Room, State, Troubled
from watchdog.core.transitions import to_hold

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 30.0
_TRIES = 10  # beside those that the wait at a gate has room for, twice


def troubled(state: State, seen: Seen, policy: Policy) -> tuple[State, Plan]:
    """The launch of the turn before was not carried out."""
    trouble = seen.trouble
    assert trouble is not None
    if not trouble.passing:
        return to_hold(state, seen, policy, f"run could not be started: {trouble.words}")
    before = state.troubled
    tries = 1 if before is None else before.tries + 1
    since_s = seen.now_s if before is None else before.since_s
    if seen.now_s - since_s >= policy.gate_wait_s:
        words = f"no run could be started for {policy.gate_wait_s:g} s, tried {tries} times; the last: {trouble.words}"
        return to_hold(state, seen, policy, words)
    if tries >= most_tries(policy):  # gaps of ours begin the wait anew, again and again
        return to_hold(state, seen, policy, f"no run could be started, tried {tries} times; the last: {trouble.words}")
    pause_s = min(FIRST_PAUSE_S * 2 ** min(tries - 1, 10), LONGEST_PAUSE_S)
    after = Troubled(since_s=since_s, tries=tries, again_s=seen.now_s + pause_s, words=trouble.words)
    # What was tried for the room is no news for this trouble, and the gates are looked at again from the beginning.
    state = dataclasses.replace(state, troubled=after, room=Room.UNTRIED, pruning=Room.UNTRIED)
    if before is None:
        state = dataclasses.replace(state, since_s=seen.now_s)
    if before is not None and before.words == trouble.words:
        return state, Plan(rule="launch troubled", actions=(Choose(sparing=True),))
    words = f"not started yet: {trouble.words}; back to the gates, for up to {policy.gate_wait_s:g} s"
    data = {"words": trouble.words, "tries": tries, "pause_s": pause_s}
    records = (Record("launch_troubled", words, data),)
    return state, Plan(rule="launch troubled", records=records, actions=(Choose(sparing=True),))


def most_tries(policy: Policy) -> int:
    """In one stay at the gates, however often its wait begins anew."""
    return _TRIES + int(2 * policy.gate_wait_s / LONGEST_PAUSE_S)


def away(state: State, now_s: float) -> State:
    """After a gap of ours its waits begin anew."""
    if state.troubled is None:
        return state
    return dataclasses.replace(state, troubled=dataclasses.replace(state.troubled, since_s=now_s, again_s=now_s))


def at_once(state: State, now_s: float) -> State:
    """A person asks for the launch that is waited for: the pause is cut."""
    if state.troubled is None:
        return state
    return dataclasses.replace(state, troubled=dataclasses.replace(state.troubled, again_s=now_s))


def pauses(state: State, now_s: float) -> bool:
    """Whether the next try waits."""
    return state.troubled is not None and now_s < state.troubled.again_s
