"""When a closed disk gate is worth deleting checkpoints: once a stay, and only for a launch that it would free."""

from __future__ import annotations

import dataclasses

from tests.unit.core.world import OPEN, chosen, make_policy
from watchdog.core.decide import decide
from watchdog.core.facts import Disk, Known
from watchdog.core.gates import disk_gate
from watchdog.core.phase import Phase
from watchdog.core.seen import Gate, Request, Seen
from watchdog.core.state import Launch, Prune, Room, State

POLICY = make_policy(prunes=True)
GATING = State(phase=Phase.GATING, since_s=0.0)
GIB = 1024**3


def disk(free_bytes: int, *, read_only: bool = False) -> Gate:
    fact = Disk(
        path="/data",
        purpose="checkpoints",
        filesystem="ext4",
        free_bytes=free_bytes,
        total_bytes=100 * GIB,
        free_inodes=None,
        read_only=read_only,
        true_flock=True,
        drvfs=False,
    )
    return disk_gate(Known(fact, 0.0), GIB, tried="nothing came of it")


FULL = disk(0)
SHORT = Gate(name="memory", open=False, words="memory 0.90 < 1.0 GiB", short=True)
GHOST = Gate(name="device", open=False, words="a ghost holds the device")


def seen(*gates: Gate, now_s: float = 1.0, pruned: bool = False) -> Seen:
    return Seen(now_s=now_s, gates=gates, choice=chosen(10), pruned=pruned)


def test_a_full_disk_is_worth_one_try_and_then_the_wait_begins_anew() -> None:
    state, plan = decide(GATING, seen(*OPEN, FULL), POLICY)
    assert (state.pruning, plan.actions, plan.records) == (Room.UNDER_WAY, (Prune(),), ())
    state, plan = decide(state, seen(*OPEN, FULL, now_s=400.0), POLICY)
    assert (state.phase, state.pruning, plan.actions) == (Phase.GATING, Room.UNDER_WAY, ())
    state, plan = decide(state, seen(*OPEN, FULL, now_s=401.0, pruned=True), POLICY)
    assert (state.pruning, state.since_s, plan.actions) == (Room.TRIED, 401.0, ())
    again, plan = decide(state, seen(*OPEN, FULL, now_s=402.0, pruned=True), POLICY)
    assert (again.pruning, plan.actions) == (Room.TRIED, ())
    held, _ = decide(state, seen(*OPEN, FULL, now_s=702.0, pruned=True), POLICY)
    assert held.phase is Phase.HOLD
    assert "nothing came of it" in (held.hold or "")
    lifted, _ = decide(held, dataclasses.replace(seen(now_s=800.0), request=Request.RELAUNCH), make_policy(prunes=True))
    assert lifted.pruning is Room.UNTRIED


def test_no_launch_while_something_is_being_deleted() -> None:
    state = dataclasses.replace(GATING, pruning=Room.UNDER_WAY)
    _, plan = decide(state, seen(*OPEN), POLICY)
    assert plan.actions == ()
    state, _ = decide(state, seen(*OPEN, pruned=True), POLICY)
    _, plan = decide(state, seen(*OPEN, now_s=2.0, pruned=True), POLICY)
    assert [type(action) for action in plan.actions] == [Launch]


def test_nothing_is_deleted_for_a_launch_that_something_else_prevents() -> None:
    state, plan = decide(GATING, seen(FULL, GHOST), POLICY)
    assert (state.pruning, plan.actions) == (Room.UNTRIED, ())
    state, plan = decide(GATING, seen(FULL, SHORT), POLICY)
    assert plan.actions == (Prune(),), "what memory lacks is made room for afterwards"


def test_nothing_is_deleted_without_the_policy_or_for_another_trouble_of_the_disk() -> None:
    _, plan = decide(GATING, seen(FULL), make_policy(prunes=False))
    assert plan.actions == ()
    _, plan = decide(GATING, seen(disk(0, read_only=True)), POLICY)
    assert plan.actions == ()
    _, plan = decide(GATING, seen(*OPEN, disk(2 * GIB)), POLICY)
    assert [type(action) for action in plan.actions] == [Launch]


def test_nothing_is_deleted_before_the_checkpoints_were_read() -> None:
    _, plan = decide(GATING, dataclasses.replace(seen(FULL), choice=None), POLICY)
    assert plan.rule == "choosing"
