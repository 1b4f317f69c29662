"""What must hold of the verdict of every turn of tests/unit/core/world.py, whatever happens."""

from __future__ import annotations

from watchdog.core.causes import Cause
from watchdog.core.facts import Known
from watchdog.core.lateness import lateness
from watchdog.core.phase import Phase
from watchdog.core.seen import Seen, Shim
from watchdog.core.state import Policy, State
from watchdog.core.verdict import RULES, Kind, Verdict, judge

ASKED = (Cause.DRAINED, Cause.STOPPED)
TWICE = frozenset(rule.name for rule in RULES if rule.twice)


def judged(
    before: State, seen: Seen, after: State, policy: Policy, *, launches: int, lives: bool, last: Verdict | None
) -> Verdict:
    """The verdict of a turn that led from `before` to `after`. `lives`: whether something of the run truly does."""
    verdict = judge(after, seen, policy, launches=launches, before=last)
    assert judge(after, seen, policy, launches=launches, before=last) == verdict, "the same input, another verdict"
    assert verdict.since_s <= seen.now_s
    assert verdict.evidence
    assert verdict.reason
    run, stop = after.run, None if after.run is None else after.run.stop
    if before.phase is Phase.RUNNING and after.phase is Phase.STOPPING:
        assert stop is not None
        if stop.cause is Cause.STALLED:
            assert verdict.kind in (Kind.STALLED, Kind.GHOST), f"stopped as stalled, and {verdict.kind.value}"
        elif stop.cause not in (*ASKED, Cause.FINISHED):  # of a launcher that ended with 0 the rest is ended
            assert verdict.kind is Kind.DEAD, f"a {verdict.kind.value} run is stopped: {stop.reason}"
    if verdict.kind is Kind.HEALTHY:
        assert run is not None
        assert lives, "healthy, and nothing of it lives"
        assert seen.shim is Shim.ALIVE
        assert stop is None or stop.cause in ASKED
        assert lateness(run, seen, policy) is None
        assert run.level == 0 or isinstance(seen.beat, Known), "healthy without a word"
        assert run.level < 2 or run.acknowledged, "healthy before it is known what it restored"
    if verdict.kind is Kind.FINISHED:
        assert after.phase in (Phase.FINISHED, Phase.LEFT)
    if verdict.kind is Kind.STARTING and run is None:
        assert launches == 0
    if run is None:
        assert verdict.kind not in (Kind.HEALTHY, Kind.SLOW, Kind.STALLED)
    if verdict.rule in TWICE:
        assert last is not None
        assert verdict.rule in dict(last.pending), "one look alone made this verdict"
    return verdict
