"""The verdict: how the job is, in one word of a closed list, by the first rule of one ordered table that fires. Pure.

Responsible for weighing what a turn has seen, over two looks where one proves nothing, and for naming the rule. Whether
a run is late, or only fakes being alive, is asked of the very functions by which core/watching.py stops it.
Refuses to call healthy what is not known to be, and to do anything. docs/decisions/0024-verdict.md has the reasons.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from watchdog.core.facts import Facts
from watchdog.core.findings import Severity
from watchdog.core.lateness import is_second_look
from watchdog.core.seen import Seen
from watchdog.core.state import Policy, State
from watchdog.core.symptoms import (
    Case,
    Found,
    Kind,
    Verdict,
    beat_gone,
    beat_unreadable,
    beater_gone,
    beats,
    being_ended,
    computes,
    contradicts,
    end_unheard,
    ended_diverged,
    fakes,
    finished,
    first_start,
    ghost_without_run,
    just_launched,
    late,
    late_once,
    late_while_ending,
    leader_ended,
    leader_unclear,
    left_works,
    lost,
    no_run,
    not_weighed,
    nothing,
    prints,
    restore_unproven,
    said,
    signalled,
    starts,
    steps_in_log,
    stopped_as_stalled,
)

__all__ = ["RULES", "Kind", "Rule", "Verdict", "judge"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One line of the table. `needs`: what it looks at; `twice`: one look proves nothing."""

    name: str
    kind: Kind
    needs: tuple[str, ...]
    test: Callable[[Case], Found | None]
    twice: bool = False


def judge(
    state: State,
    seen: Seen,
    policy: Policy,
    *,
    facts: Facts | None = None,
    launches: int = 0,
    before: Verdict | None = None,
) -> Verdict:
    """The verdict of a turn: `state` as it is after the decision, `before` the verdict of the turn before."""
    case = Case(state=state, seen=seen, policy=policy, facts=facts, launches=launches, before=before)
    number = _number(case)
    same_run = before is not None and before.run == number
    known = dict(before.pending) if before is not None and same_run else {}
    pending: list[tuple[str, float]] = []
    for rule in RULES:
        found = rule.test(case)
        if found is None:
            continue
        if rule.twice:
            first_s = known.get(rule.name, found.look_s)
            pending.append((rule.name, first_s))
            if not is_second_look(first_s, found.look_s, policy):
                continue
        stands = before is not None and same_run and before.kind is rule.kind
        return Verdict(
            kind=rule.kind,
            rule=rule.name,
            reason=found.reason,
            since_s=before.since_s if before is not None and stands else seen.now_s,
            evidence=found.evidence or rule.needs,
            subject=found.subject or ("job" if number is None else f"run {number}"),
            run=number,
            pending=tuple(pending),
        )
    raise AssertionError("the last rule always fires")


def _number(case: Case) -> int | None:
    if case.run is not None:
        return case.run.number
    if case.state.ended is not None:
        return case.state.ended.number
    return None if case.before is None else case.before.run


# In the order in which they are asked. The first that fires is the verdict.
RULES: tuple[Rule, ...] = (
    Rule(name="target reached", kind=Kind.FINISHED, needs=("exit record", "checkpoints"), test=finished),
    Rule(
        name="ghost of a run that is over",
        kind=Kind.GHOST,
        needs=("ghost-context", "lock-ghost"),
        test=ghost_without_run,
        twice=True,
    ),
    Rule(name="ended by its numbers", kind=Kind.DIVERGED, needs=("exit record",), test=ended_diverged),
    Rule(name="end not weighed", kind=Kind.BLIND, needs=("exit record", "checkpoints"), test=not_weighed),
    Rule(name="first start", kind=Kind.STARTING, needs=("ledger",), test=first_start),
    Rule(name="no run", kind=Kind.DEAD, needs=("exit record",), test=no_run),
    Rule(name="end not heard", kind=Kind.BLIND, needs=("processes",), test=end_unheard),
    Rule(name="shim killed", kind=Kind.DEAD, needs=("processes",), test=lost),
    Rule(name="busy with nothing", kind=Kind.GHOST, needs=("ghost-context",), test=fakes("ghost-context"), twice=True),
    Rule(name="ended as stalled", kind=Kind.STALLED, needs=("beats",), test=stopped_as_stalled),
    Rule(name="being ended", kind=Kind.DEAD, needs=("processes",), test=being_ended),
    Rule(name="just launched", kind=Kind.STARTING, needs=("processes",), test=just_launched),
    Rule(name="leader ended", kind=Kind.DEAD, needs=("processes", "exit record"), test=leader_ended),
    Rule(name="leader is gone", kind=Kind.BLIND, needs=("processes",), test=leader_unclear),
    Rule(name="beats are late", kind=Kind.STALLED, needs=("beats",), test=late),
    Rule(name="late while it ends", kind=Kind.STALLED, needs=("beats",), test=late_while_ending, twice=True),
    Rule(
        name="steps stand still",
        kind=Kind.STALLED,
        needs=("steps-frozen",),
        test=said("steps-frozen", Severity.CRITICAL),
        twice=True,
    ),
    Rule(
        name="stuck in the kernel",
        kind=Kind.STALLED,
        needs=("run-stuck",),
        test=said("run-stuck", Severity.CRITICAL),
        twice=True,
    ),
    Rule(name="stopped by a signal", kind=Kind.STALLED, needs=("beats", "processes"), test=signalled, twice=True),
    Rule(name="who beat is gone", kind=Kind.DEAD, needs=("beats", "processes"), test=beater_gone, twice=True),
    Rule(
        name="busy, and no step",
        kind=Kind.GHOST,
        needs=("utilization-power", "beats"),
        test=contradicts,
        twice=True,
    ),
    Rule(
        name="loss is no number",
        kind=Kind.DIVERGED,
        needs=("loss-nan",),
        test=said("loss-nan", Severity.CRITICAL),
        twice=True,
    ),
    Rule(name="loss explodes", kind=Kind.DIVERGED, needs=("loss-exploding",), test=said("loss-exploding"), twice=True),
    Rule(name="loss is frozen", kind=Kind.DIVERGED, needs=("loss-frozen",), test=said("loss-frozen"), twice=True),
    Rule(name="beat cannot be read", kind=Kind.BLIND, needs=("beats",), test=beat_unreadable),
    Rule(name="beat is gone", kind=Kind.BLIND, needs=("beats",), test=beat_gone),
    Rule(name="late at one look", kind=Kind.BLIND, needs=("beats",), test=late_once),
    Rule(name="restore not proven", kind=Kind.BLIND, needs=("acknowledgement", "beats"), test=restore_unproven),
    Rule(name="steps are slow", kind=Kind.SLOW, needs=("throughput",), test=said("throughput"), twice=True),
    Rule(name="device pages", kind=Kind.SLOW, needs=("sysmem-paging",), test=said("sysmem-paging"), twice=True),
    Rule(name="no step for long", kind=Kind.SLOW, needs=("steps-frozen",), test=said("steps-frozen"), twice=True),
    Rule(name="before its first step", kind=Kind.STARTING, needs=("beats",), test=starts),
    Rule(name="beats in time", kind=Kind.HEALTHY, needs=("beats",), test=beats),
    Rule(name="what is left works", kind=Kind.HEALTHY, needs=("processes", "output", "devices"), test=left_works),
    Rule(name="steps in its output", kind=Kind.HEALTHY, needs=("processes", "output"), test=steps_in_log),
    Rule(name="output grows", kind=Kind.HEALTHY, needs=("processes", "output"), test=prints),
    Rule(name="device works", kind=Kind.HEALTHY, needs=("processes", "devices"), test=computes),
    Rule(name="nothing to go by", kind=Kind.BLIND, needs=("beats", "output", "devices"), test=nothing),
)
