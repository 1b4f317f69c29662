"""Going back to an earlier step: `watchdog relaunch --from STEP` in a living supervisor.

Responsible for the order of it: what is asked is recorded, the step is read back from disk, the branch is recorded, and
only then is the run asked to end. Refuses a step that was never verified or cannot be verified now; the run then goes
on as if nobody had asked. What is chosen from then on is decided in core/choice.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from watchdog.checkpoints.verifier import Found, Knowledge, Verifier
from watchdog.core.branching import NO_REASON, GoBack, branched, refusal_of, said_by, unverified
from watchdog.core.choice import Known
from watchdog.core.seen import Request
from watchdog.core.state import Record
from watchdog.errors import RecordingError


class Branching:
    """Wishes come from the socket's thread, everything else from the loop."""

    def __init__(
        self,
        level: int,
        verifier: Verifier,
        record: Callable[[Sequence[Record]], None],
        trouble: Callable[[str], None],
    ) -> None:
        self._level = level
        self._verifier = verifier
        self._record = record
        self._trouble = trouble
        self._wishes: deque[GoBack] = deque()
        self._known: tuple[Known, ...] = ()  # one assignment a turn: the socket's thread sees the old or the new one
        self._asked: GoBack | None = None
        self._order = -1

    def wish(self, wish: GoBack) -> str | None:
        """Why it is refused, in words; None: it will be looked at. From any thread."""
        if self._level < 2:
            return f"--from {wish.step}: the job is of level {self._level}, which has no checkpoints that are verified"
        refused = unverified(wish.step, self._known)
        if refused is None:
            self._wishes.append(wish)
        return refused

    def look(self, knowledge: Knowledge) -> None:
        """Each turn: have the next wish's step read back, beside the loop."""
        self._known = knowledge.known
        if self._asked is not None or not self._wishes:
            return
        wish = self._wishes[0]
        try:
            words = (
                f"{wish.by} asks to go back to step {wish.step} ({wish.why}): it is read back before anything is done"
            )
            self._record([Record("branch_asked", words, {"step": wish.step, "by": wish.by, "why": wish.why})])
        except RecordingError as error:
            self._trouble(str(error))
            return
        self._asked = self._wishes.popleft()
        self._order = self._verifier.choose(knowledge, only=wish.step)

    def take(self, found: Found) -> Request | None:
        """What became of reading it back. The request that follows, once the branch is recorded; else None."""
        wish = self._asked
        if wish is None or found.order != self._order:
            return None
        self._asked = None
        chosen = None if found.choice is None else found.choice.chosen
        try:
            if chosen is None:
                why = refusal_of(wish.step, found.choice, found.error)
                self._record([Record("branch_refused", why, {"step": wish.step})])
                return None
            self._record([branched(chosen, by=wish.by, why=wish.why)])
        except RecordingError as error:
            self._trouble(f"{error}; nobody goes back to step {wish.step} unrecorded")
            return None
        return Request.RELAUNCH_AFRESH if wish.afresh else Request.RELAUNCH


def wish_from(message: Mapping[str, Any]) -> GoBack | None:
    """The wish in a message of the socket; None where there is none. Raises ValueError with what is wrong."""
    step = message.get("from")
    if step is None:
        return None
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**63:
        raise ValueError(f"from is {str(step)[:100]!r}, not the number of a step")
    return GoBack(
        step=step,
        by=said_by(message.get("by"), "somebody"),
        why=said_by(message.get("why"), NO_REASON),
        afresh=message.get("force") is True,
    )
