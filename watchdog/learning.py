"""Learning how long the phases of this job take: the beats of the living run go in, records and deadlines come out.

Responsible for what core/deadlines.py calls news being recorded before anything follows from it. What could not be
recorded is tried again, but seldom: a disk that hangs keeps whoever records waiting. Refuses to decide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from watchdog.contract import PHASES
from watchdog.core.deadlines import Heard, Rule, hear, news
from watchdog.core.facts import Known
from watchdog.core.history import History
from watchdog.core.phase import Phase
from watchdog.core.seen import Seen
from watchdog.core.state import Policy, Record, State
from watchdog.episodes import AGAIN_S
from watchdog.errors import RecordingError
from watchdog.settings import Settings


def deadlines_of(settings: Settings) -> Mapping[str, float]:
    """The configured deadline of each phase, and "start" for the time before the first beat; seconds."""
    return {phase: settings.deadlines.for_phase(phase) for phase in ("start", *PHASES)}


def rule_of(settings: Settings) -> Rule:
    """How deadlines are learned."""
    return Rule(
        learn=settings.deadlines.learn,
        factor=settings.deadlines.factor,
        ceilings_s=deadlines_of(settings),
        step_floor_s=settings.deadlines.floor_s,
        stated=settings.deadlines.stated,
    )


class Learner:
    """For use from one thread."""

    def __init__(
        self, rule: Rule, record: Callable[[Sequence[Record]], None], say_trouble: Callable[[str], None]
    ) -> None:
        """`record` raises RecordingError, and then nothing is on disk."""
        self._rule = rule
        self._record = record
        self._say_trouble = say_trouble
        self._heard = Heard()
        self._not_before_s = float("-inf")

    def look(self, state: State, seen: Seen, history: History) -> None:
        """What this turn's beat tells. `state`: of the turn before."""
        if not self._rule.learn:
            return
        beat = seen.beat.value if isinstance(seen.beat, Known) else None
        self._heard = hear(self._heard, beat, state, gap=seen.gap, held=bool(seen.traced))
        run = state.run
        if run is None or run.stop is not None or state.phase is not Phase.RUNNING or seen.now_s < self._not_before_s:
            return
        records = news(self._heard, history.phase_times_s, history.doubted, run)
        if not records:
            return
        try:
            self._record(records)
        except RecordingError as error:
            self._say_trouble(str(error))
            self._not_before_s = seen.now_s + AGAIN_S

    def taught(self, policy: Policy, history: History) -> Policy:
        """The policy with the deadlines that follow from what is on record."""
        learned_s = self._rule.learned_s(history.phase_times_s, history.doubted)
        grace_s = self._rule.grace_s(history.phase_times_s)
        if learned_s == policy.learned_s and grace_s == policy.learned_grace_s:
            return policy
        return dataclasses.replace(policy, learned_s=learned_s, learned_grace_s=grace_s)
