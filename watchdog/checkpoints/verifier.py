"""Verifying beside the loop: one thread that reads checkpoints back and says what it found.

Two kinds of work: a choice (before a launch) and a watch (new manifests while a run lives). Reading gigabytes from a
slow or hanging disk must not make the loop wait, so results are polled.
Refuses to record, to move and to decide.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from pathlib import Path

from watchdog.checkpoints.catalogue import Candidate, choose, find_candidates, read_lineage, verify, why_stale
from watchdog.core.choice import Checkpoint, Choice, Known, Line, Refusal, lineage_problem
from watchdog.errors import CheckpointError

_TICK_NS = 1_000_000_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Knowledge:
    """What the ledger knows, handed over with each order."""

    known: tuple[Known, ...]
    run_ids: tuple[str, ...]
    refused_runs: frozenset[str]
    ledger_knew: bool
    line: Line = dataclasses.field(default_factory=Line)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A result. `choice` or `error` for an order to choose; `verified` and `refused` for a watch."""

    order: int
    choice: Choice | None = None
    error: str | None = None
    verified: tuple[Checkpoint, ...] = ()
    refused: tuple[Refusal, ...] = ()
    listed: tuple[Known | None, ...] | None = None  # what each manifest claims to be; None: nobody looked


class Verifier:
    """The thread. For use from the loop alone."""

    def __init__(self, checkpoints: Path, lineage: Path) -> None:
        self._checkpoints = checkpoints
        self._lineage = lineage
        self._orders: queue.SimpleQueue[tuple[int, bool, Knowledge, int | None, Choice | None]] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Found] = queue.SimpleQueue()
        self._order = 0
        self._outstanding = 0
        self._folder_mtime_ns = -1
        self._paths: dict[Known, str] = {}  # replaced by the thread alone
        self._paths_now: dict[Known, str] = {}
        self._judged: set[tuple[Path, tuple[int, int, int]]] = set()
        threading.Thread(target=self._work, name="verifier", daemon=True).start()

    def choose(self, knowledge: Knowledge, only: int | None = None, before: Choice | None = None) -> int:
        """Order a choice; returns the number that its result carries. `only`: that step alone, on whatever branch.

        `before`: what was chosen before, which stands where nothing in the folder has changed since.
        """
        self._order += 1
        self._outstanding += 1
        self._orders.put((self._order, True, knowledge, only, before))
        return self._order

    def watch(self, knowledge: Knowledge) -> None:
        """Look for new checkpoints, unless it is still at work."""
        if self._outstanding == 0:
            self._order += 1
            self._outstanding += 1
            self._orders.put((self._order, False, knowledge, None, None))

    @property
    def busy(self) -> bool:
        """Checkpoints are being read."""
        return self._outstanding > 0

    def results(self) -> list[Found]:
        """What was found since the last call."""
        found = []
        while True:
            try:
                found.append(self._results.get_nowait())
            except queue.Empty:
                return found
            self._outstanding -= 1

    def _work(self) -> None:
        while True:
            number, is_choice, knowledge, only, before = self._orders.get()
            try:
                found = self._choose(number, knowledge, only, before) if is_choice else self._watch(number, knowledge)
            except OSError as error:
                found = Found(order=number, error=f"{error.filename or self._checkpoints}: {error.strerror or error}")
            except Exception as error:  # silence would leave the loop waiting for ever
                found = Found(order=number, error=f"{type(error).__name__}: {error}")
            self._results.put(found)

    def _read_lineage(self, knowledge: Knowledge) -> tuple[str, ...] | None:
        """The folder's own record; where it is gone, the runs that the ledger knows."""
        return read_lineage(self._lineage) or knowledge.run_ids or None

    def _choose(self, number: int, knowledge: Knowledge, only: int | None, before: Choice | None) -> Found:
        verified: list[Checkpoint] = []
        listed = self._list()
        if before is not None and why_stale(self._checkpoints, before) is None:
            return Found(order=number, choice=before, listed=listed)
        choice = choose(
            self._checkpoints,
            lineage=self._read_lineage(knowledge),
            known=knowledge.known,
            refused_runs=knowledge.refused_runs,
            ledger_knew=knowledge.ledger_knew,
            line=knowledge.line,
            only=only,
            on_verified=verified.append,
        )
        return Found(order=number, choice=choice, verified=tuple(verified), listed=listed)

    def _list(self) -> tuple[Known | None, ...]:
        """Everything that lies there. What is gone is judged anew should it come back."""
        return self._claims(find_candidates(self._checkpoints))

    def _claims(self, candidates: tuple[Candidate, ...]) -> tuple[Known | None, ...]:
        paths = {candidate.path for candidate in candidates}
        self._judged = {(path, signature) for path, signature in self._judged if path in paths}
        paths_now = {claims: str(each.path) for each in candidates if (claims := each.claims) is not None}
        self._paths, self._paths_now = {**self._paths_now, **paths_now}, paths_now  # of this look and the one before
        return tuple(candidate.claims for candidate in candidates)

    def path_of(self, checkpoint: Known) -> str | None:
        """Where its manifest was seen, in the last look or the one before."""
        return self._paths.get(checkpoint)

    def _watch(self, number: int, knowledge: Knowledge) -> Found:
        verified: list[Checkpoint] = []
        refused: list[Refusal] = []
        try:
            mtime_ns = self._checkpoints.stat().st_mtime_ns
        except FileNotFoundError:
            return Found(order=number, listed=self._claims(()))
        if mtime_ns == self._folder_mtime_ns:
            return Found(order=number)  # a manifest appears by rename, which the folder's time shows
        later = False
        lineage = self._read_lineage(knowledge)
        candidates = find_candidates(self._checkpoints)
        listed = self._claims(candidates)
        for candidate in candidates:
            key = (candidate.path, candidate.signature)
            if key in self._judged:
                continue
            try:
                checkpoint = verify(candidate)
            except FileNotFoundError:
                continue
            except CheckpointError as error:
                if _is_being_replaced(candidate):
                    later = True
                    continue
                refused.append(Refusal(manifest=str(candidate.path), step=candidate.step, why=str(error)))
            else:
                problem = lineage_problem(
                    step=checkpoint.step,
                    digest=checkpoint.digest,
                    run_id=checkpoint.run_id,
                    lineage=lineage,
                    known=knowledge.known,
                    refused_runs=knowledge.refused_runs,
                )
                if problem is None:
                    verified.append(checkpoint)
                else:
                    refused.append(Refusal(manifest=str(candidate.path), step=checkpoint.step, why=problem))
            self._judged.add(key)
        # A folder that changed just now may change again within the same tick of its clock: look once more.
        young = time.time_ns() - mtime_ns < _TICK_NS
        self._folder_mtime_ns = -1 if later or young else mtime_ns
        return Found(order=number, verified=tuple(verified), refused=tuple(refused), listed=listed)


def _is_being_replaced(candidate: Candidate) -> bool:
    """The manifest changed while we read its files: the trainer is saving the same step anew, look again later."""
    for current in find_candidates(candidate.path.parent):
        if current.path == candidate.path:
            return current.signature != candidate.signature
    return True
