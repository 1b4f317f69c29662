"""Which checkpoint the next run starts from: ordered from the verifier, recorded first, then believed.

Responsible for what the verifier answers, and for wishes to go back to an earlier step. Refuses to choose itself
(core/choice.py does, over bytes that were read back), and to act: what follows an answer is given to the loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from watchdog.branching import Branching
from watchdog.checkpoints.catalogue import why_stale
from watchdog.checkpoints.verifier import Found, Knowledge, Verifier
from watchdog.core.branching import GoBack
from watchdog.core.choice import Choice
from watchdog.core.history import History
from watchdog.core.seen import Request
from watchdog.core.state import Record
from watchdog.core.vanished import vanished
from watchdog.errors import RecordingError
from watchdog.folders import JobFolders


class Chooser:
    """For use from the loop alone, but for `wish`. `choice` None and `error` None: not answered yet."""

    def __init__(
        self,
        level: int,
        folders: JobFolders,
        history: Callable[[], History],
        record: Callable[[Sequence[Record]], None],
        trouble: Callable[[str], None],
    ) -> None:
        """`history` is asked anew after each record. `record` raises RecordingError."""
        self._level = level
        self._history = history
        self._record = record
        self._trouble = trouble
        self._folder = folders.checkpoints
        self._verifier = Verifier(folders.checkpoints, folders.lineage)
        self._branching = Branching(level, self._verifier, record, trouble)
        self.choice: Choice | None = None
        self.error: str | None = None
        self._order = 0

    @property
    def busy(self) -> bool:
        """Files are being read."""
        return self._verifier.busy

    @property
    def due(self) -> bool:
        """No launch before this is answered."""
        return self._level == 2 and self.choice is None

    def wish(self, wish: GoBack) -> str | None:
        """Why it is refused, in words; None: it will be looked at. From any thread."""
        return self._branching.wish(wish)

    def order(self, *, sparing: bool = False) -> None:
        """Choose anew; what was chosen before is forgotten. `sparing`: it stands where nothing has changed since."""
        before = self.choice if sparing else None
        self.choice = self.error = None
        self._order = self._verifier.choose(self._knowledge(), before=before) if self._level == 2 else 0

    def why_stale(self) -> str | None:
        """Why nobody may be launched from what was chosen any more; None where it stands. Raises OSError.

        Nothing is read back: the last look before a launch, and once more under the run lock.
        """
        if self._level < 2:
            return None
        if self.choice is None:
            return "no checkpoint is chosen"
        if self.choice.first_start and self._history().knew_checkpoint:
            return "the ledger knows a checkpoint of this job"
        return why_stale(self._folder, self.choice)

    def launched(self) -> None:
        """What was chosen belongs to the run that lives now."""
        self.choice = None

    def moved(self) -> None:
        """The refused ones were moved aside: that is not to be done twice."""
        if self.choice is not None:
            self.choice = dataclasses.replace(self.choice, refused=())

    def look(self, *, choosing: bool, watching: bool) -> list[Request]:
        """Each turn: what has been answered. `choosing`: the next launch waits for it; `watching`: a run may save.

        Returns what the loop is to ask of itself, once a way back is recorded.
        """
        follows = []
        for found in self._verifier.results():
            self._remember(found)
            if found.order == self._order:
                self.choice, self.error = found.choice, found.error
            elif found.error is not None:
                self._trouble(f"checkpoints: {found.error}")
            if (then := self._branching.take(found)) is not None:
                if choosing:
                    self.order()  # what was chosen may be what was just left
                follows.append(then)
        self._branching.look(self._knowledge())
        if self._level == 2 and watching:
            self._verifier.watch(self._knowledge())
        return follows

    def _remember(self, found: Found) -> None:
        history = self._history()
        known = {(entry.step, entry.digest) for entry in history.known}
        # The same bytes may be saved anew after they were refused: above the newest that stands, they are news.
        newest = -1 if history.newest is None else history.newest.step
        self._note(
            [
                Record(
                    "checkpoint_verified",
                    f"step {checkpoint.step} verified {checkpoint.digest[:12]}…",
                    {"step": checkpoint.step, "digest": checkpoint.digest, "run_id": checkpoint.run_id},
                )
                for checkpoint in found.verified
                if (checkpoint.step, checkpoint.digest) not in known or checkpoint.step > newest
            ]
        )
        history = self._history()
        if found.listed is not None and (missed := history.newest) is not None:
            gone = vanished(history, found.listed, self._verifier.path_of(missed))
            self._note([] if gone is None else [gone])
        for refusal in found.refused:
            self._note([Record("checkpoint_doubtful", f"step {refusal.step} is not verified: {refusal.why}")])

    def _note(self, records: Sequence[Record]) -> None:
        try:
            if records:
                self._record(records)
        except RecordingError as error:
            self._trouble(str(error))

    def _knowledge(self) -> Knowledge:
        history = self._history()
        return Knowledge(
            known=history.known,
            run_ids=history.run_ids,
            refused_runs=history.refused_runs,
            ledger_knew=history.knew_checkpoint,
            line=history.line,
        )
