"""Pruning beside the loop: look again, record, delete one, record; and again, until the policy or the disk is content.

Responsible for when a look at the checkpoint folder is due while a run lives, for the order of records and deletions,
and for a deadline on each part, which runs in a thread of its own.
Refuses to choose (core/retention.py), to decide when a closed gate is worth a try (core/decide.py), and to begin a
deletion that could not be recorded, or while checkpoints are being verified. After one that failed nothing more goes:
what is in its way is mostly in the way of the next one, too, and a person must mend it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from watchdog.actuators.prune import PrunableFolder
from watchdog.checks.figures import size
from watchdog.clock import Clock
from watchdog.collectors.runner import Runner
from watchdog.core.choice import Choice
from watchdog.core.facts import Fact, Known, Unknown
from watchdog.core.history import History
from watchdog.core.phase import Phase
from watchdog.core.retention import Held, Plan, Reason, Rules, Standing, plan
from watchdog.core.state import Record, State
from watchdog.errors import CheckpointError, RecordingError
from watchdog.settings import Settings

_LOOK_S = 1800.0  # what stays is read back: two checkpoints of 100 GB from a slow disk
_DELETE_S = 60.0
_AGAIN_S = 300.0  # a disk fills up as well when no checkpoint comes
_AFTER_FAILURE_S = 1800.0
_ONCE = float("inf")
_NAME = "prune"


def when_of(settings: Settings) -> str:
    """`[retention] when`; never for a job whose checkpoints nobody verifies."""
    return settings.retention.when if settings.job.level == 2 else "never"


def rules_of(settings: Settings) -> Rules:
    retention = settings.retention
    return Rules(
        keep_last=retention.keep_last,
        keep_every=retention.keep_every,
        leftovers=retention.leftovers,
        need_bytes=settings.disk.need_bytes,
    )


def standing_of(history: History, state: State, choice: Choice | None) -> Standing:
    """What must not be touched at this moment, by the ledger and by what the loop is about to do."""
    in_use = set()
    if state.run is not None and state.run.expectation.step is not None and state.run.expectation.digest is not None:
        in_use.add((state.run.expectation.step, state.run.expectation.digest))
    if choice is not None and choice.chosen is not None:
        in_use.add((choice.chosen.step, choice.chosen.digest))
    return standing_by(history, frozenset(in_use))


def standing_by(history: History, in_use: frozenset[tuple[int, str]]) -> Standing:
    return Standing(
        known=history.known,
        refused_runs=history.refused_runs,
        line=history.line,
        in_use=in_use,
        deleting=frozenset(history.deleting.items()),
        moved=history.moved,
        moving=frozenset(history.moving.items()),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Proven:
    """A finished look: what lies there, with what must stay read back. `free_bytes` None: the disk does not count."""

    held: tuple[Held, ...]
    free_bytes: int | None
    at_gate: bool = False

    def plan(self, standing: Standing, rules: Rules) -> Plan:
        """By what is known now, which may be more than when the look was begun."""
        return plan(self.held, standing, rules, free_bytes=self.free_bytes, at_gate=self.at_gate)


def looked_at(
    folder: PrunableFolder, standing: Standing, rules: Rules, *, only_if_needed: bool, at_gate: bool = False
) -> Proven:
    """Look, and read back what must stay before anything goes. Raises OSError, CheckpointError."""
    looked = folder.look()
    found = Proven(held=looked.held, free_bytes=looked.free_bytes if only_if_needed else None, at_gate=at_gate)
    while unproven := found.plan(standing, rules).unproven:
        proven = {each.name: folder.prove(each) for each in unproven}
        found = dataclasses.replace(found, held=tuple(proven.get(each.name, each) for each in found.held))
    return found


def planned(folder: PrunableFolder, standing: Standing, rules: Rules, *, only_if_needed: bool) -> Plan:
    """Raises OSError, CheckpointError."""
    return looked_at(folder, standing, rules, only_if_needed=only_if_needed).plan(standing, rules)


def what(reason: Reason) -> str:
    """`step 120 (step-00000120.manifest.json)`."""
    held = reason.held
    return f"step {held.step} ({held.name})" if held.step >= 0 else held.name


def planned_record(reason: Reason, lacking_bytes: int) -> Record:
    held = reason.held
    lacking = f"; the disk lacks {size(lacking_bytes)}" if lacking_bytes else ""
    data = {
        "name": held.name,
        "what": held.kind.value,
        "step": held.step if held.step >= 0 else None,
        "digest": held.digest or None,
        "size_bytes": held.size_bytes,
        "lacking_bytes": lacking_bytes,
        "why": reason.why,
    }
    return Record("prune_planned", f"{what(reason)} is to be deleted: {reason.why}{lacking}", data)


def pruned_record(reason: Reason, freed_bytes: int | None, why: str = "") -> Record:
    """`freed_bytes` None: it was not deleted, or nobody knows, and `why` says it."""
    words = f"{what(reason)} was not deleted: {why}" if freed_bytes is None else f"{what(reason)} deleted"
    if freed_bytes is not None:
        given = f"{size(freed_bytes)} given back" if freed_bytes else "nothing given back, another name holds its bytes"
        words += f": {given} ({reason.why})"
    held = reason.held
    data: dict[str, Any] = {"name": held.name, "step": held.step if held.step >= 0 else None}
    return Record("pruned", words, {**data, "freed_bytes": freed_bytes, "problem": why or None})


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """What is under way: a look (`reason` None), or the deletion of one thing. `again`: after one that waited."""

    standing: Standing
    function: Callable[[], Fact[Any]]
    reason: Reason | None = None
    again: bool = False


class Pruner:
    """For use from the loop alone. `over`: the try at the gates has ended, `words` say how; "" where it was none."""

    def __init__(
        self,
        settings: Settings,
        folder: PrunableFolder,
        clock: Clock,
        record: Callable[[Sequence[Record]], None],
        say: Callable[[str], None],
    ) -> None:
        """`record` raises RecordingError, and then nothing is deleted. `say`: trouble, for a person."""
        self._when = when_of(settings)
        self._rules = rules_of(settings)
        self._folder = folder
        self._clock = clock
        self._record = record
        self._say = say
        self._runner = Runner(clock)
        self._part: _Part | None = None
        self._hangs: _Part | None = None  # of which that was told
        self._at_gates = False
        self._newest: object = None  # that was verified when the last look beside a run was begun
        self._looked_s = float("-inf")
        self._not_before_s = float("-inf")  # after a deletion that failed
        self._waits = False
        self.freed_bytes = 0  # in this pass
        self.over = False
        self.words = ""

    @property
    def needs_quiet(self) -> bool:
        """A deletion is under way or waits for the verifier to end: no new checkpoints are looked for meanwhile."""
        return self._waits or (self._part is not None and self._part.reason is not None)

    def begin(self) -> None:
        """A try, since the gate of a disk is closed: as much as the disk lacks."""
        self.forget()
        self._at_gates = True
        self.freed_bytes = 0

    def forget(self) -> None:
        """What was tried belongs to a launch that is past."""
        self._at_gates, self.over, self.words = False, False, ""

    def look(self, state: State, history: History, choice: Choice | None, *, verifying: bool) -> bool:
        """Each turn. Returns at once; True when something was deleted since the last one.

        `verifying`: checkpoints are being read by the verifier.
        """
        before = self.freed_bytes
        self._go_on(state, history, choice, verifying=verifying)
        return self.freed_bytes > before

    def _go_on(self, state: State, history: History, choice: Choice | None, *, verifying: bool) -> None:
        if self._part is not None:
            self._wait(self._part, state, standing_of(history, state, choice), verifying=verifying)
        elif not self._may_delete(state):
            return
        elif self._trying:
            self._look_at(standing_of(history, state, choice))
        elif self._when != "never" and self._due(history):
            self._newest, self._looked_s = history.newest, self._clock.monotonic()
            self.freed_bytes = 0
            self._look_at(standing_of(history, state, choice))

    @property
    def _trying(self) -> bool:
        return self._at_gates and not self.over

    def _may_delete(self, state: State) -> bool:
        """At the gates, or beside a run that has loaded what it needed."""
        if self._trying:
            return state.phase is Phase.GATING
        return state.phase is Phase.RUNNING and state.run is not None and state.run.acknowledged

    def _due(self, history: History) -> bool:
        now_s = self._clock.monotonic()
        return now_s >= self._not_before_s and (history.newest != self._newest or now_s - self._looked_s >= _AGAIN_S)

    # --- its parts ------------------------------------------------------------------------------------------
    def _look_at(self, standing: Standing, *, again: bool = False) -> None:
        at_gate, folder, rules = self._trying, self._folder, self._rules
        needed = at_gate or self._when == "needed"

        def look() -> Proven:
            return looked_at(folder, standing, rules, only_if_needed=needed, at_gate=at_gate)

        self._start(standing, look, again=again)

    def _start(
        self, standing: Standing, function: Callable[[], Any], reason: Reason | None = None, *, again: bool = False
    ) -> None:
        def told() -> Fact[Any]:
            try:
                return Known(function(), self._clock.monotonic())
            except CheckpointError as error:
                return Unknown(str(error))

        self._runner = Runner(self._clock)  # its one call: no older answer can be taken for this one's
        self._part = _Part(standing, told, reason, again)
        self._runner.start(_NAME, told)

    def _wait(self, part: _Part, state: State, standing: Standing, *, verifying: bool) -> None:
        deadline_s = _LOOK_S if part.reason is None else _DELETE_S
        polled = self._runner.poll(_NAME, part.function, every_s=_ONCE, deadline_s=deadline_s)
        if polled.unread:
            return
        waited, self._waits = self._waits, verifying and part.reason is None
        if self._waits:
            return
        # It may still come to its end, so nothing is begun beside it; that is told once, and not in every turn.
        if polled.age_s is None and not isinstance(polled.fact, Known):
            if self._hangs is not part or (self._at_gates and not self.over):
                self._hangs = part
                self._end(f"pruning the checkpoints: {polled.fact.why}", trouble=True)
            return
        self._part = None
        stale = waited and not part.again  # once: else saves that are verified slowly would keep it from deleting
        if part.reason is not None and not self._deleted(part.reason, polled.fact):
            return
        if not self._may_delete(state):
            self._end("")
        elif part.reason is not None:
            self._look_at(standing)
        elif stale:
            self._look_at(standing, again=True)  # the verifier may have read for half an hour
        elif isinstance(polled.fact, Known):
            # By what the ledger knows by now. What was saved meanwhile was not seen: it neither goes nor counts as one
            # that stays, so a folder in which saves are quicker than a look is pruned as well.
            found = polled.fact.value.plan(standing, self._rules)
            if found.unproven:
                self._look_at(standing)  # others than those that were read back are the newest two now
            else:
                self._delete_next(found, standing)
        else:
            self._end(f"nothing is deleted: {polled.fact.why}", trouble=True)

    def _delete_next(self, found: Plan, standing: Standing) -> None:
        reason = found.deletions[0] if found.deletions else None
        if reason is None:
            self._end("; ".join(filter(None, (self._came(), found.why_not if found.lacking_bytes else ""))))
        elif self._recorded(planned_record(reason, found.lacking_bytes)):
            self._start(standing, lambda: self._folder.delete(reason.held, found.stays), reason)

    def _came(self) -> str:
        return f"{size(self.freed_bytes)} came back from pruning checkpoints" if self.freed_bytes else ""

    def _deleted(self, reason: Reason, fact: Fact[int]) -> bool:
        """True when the pass may go on."""
        if isinstance(fact, Known):
            self.freed_bytes += fact.value
            return self._recorded(pruned_record(reason, fact.value))
        self._not_before_s = self._clock.monotonic() + _AFTER_FAILURE_S
        failed = pruned_record(reason, None, fact.why)
        if self._recorded(failed):
            words = f"{failed.sentence}; nothing more is deleted until that is mended"
            self._end("; ".join(filter(None, (self._came(), words))), trouble=True)
        return False

    def _recorded(self, record: Record) -> bool:
        try:
            self._record([record])
        except RecordingError as error:
            self._end(f"nothing is deleted that cannot be recorded: {error}", trouble=True)
            return False
        return True

    def _end(self, words: str, *, trouble: bool = False) -> None:
        if self._at_gates:
            self.over, self.words = True, words
        elif trouble:
            self._say(words)
