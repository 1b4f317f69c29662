"""Carrying out a stop: look again, record, act, record. Whom and when was decided before.

Nobody is signalled who is not proven a member of the run at this very moment, and nobody is killed unrecorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from watchdog.actuators.cgroup import freeze_whole, kill_whole, thaw_whole
from watchdog.actuators.signals import Sent
from watchdog.actuators.stop import Frozen, freeze, kill, terminate, thaw
from watchdog.collectors.processes import ancestry
from watchdog.collectors.run import RunWatch
from watchdog.core.ending import postpone
from watchdog.core.facts import Absent, Fact, Known
from watchdog.core.identity import Process, ProcessId
from watchdog.core.seen import BeatSeen, Seen, Shim
from watchdog.core.state import Policy, State, Terminate, TerminateRest


class Signaller:
    """Ends one run after the other. `record` raises RecordingError, `note` writes what nothing depends on."""

    def __init__(
        self,
        run_lock: Path,
        beat: Callable[[RunWatch, float], Fact[BeatSeen]],
        record: Callable[..., Any],
        note: Callable[..., Any],
    ) -> None:
        self._run_lock = run_lock
        self._beat = beat
        self._record = record
        self._note = note
        self._killed: frozenset[ProcessId] = frozenset()
        self._grouped: frozenset[int] = frozenset()  # whom a kill of the whole cgroup has met
        self._proofs: Mapping[int, tuple[str, ...]] = {}  # that whoever is left of a run without its shim is the run's
        self._begun = ""  # the run of which it is recorded that everybody is stopped, to be killed

    def forget(self) -> None:
        """A new run begins."""
        self._killed, self._grouped, self._begun = frozenset(), frozenset(), ""

    def terminate(self, watch: RunWatch, order: Terminate, now_s: float, why: str = "") -> bool:
        """TERM. False when the last look found another beat than the one that was judged: then nothing was done.

        Recorded before as well: one that ends with 0 because it was asked to has not finished, whoever reads the ledger
        next. Raises RecordingError and OSError; then it was not sent.
        """
        target = order.target
        if order.look_again:
            beat = self._beat(watch, now_s)
            same = isinstance(beat, Known) and beat.value.beat.seq == order.only_if_seq
            still_none = isinstance(beat, Absent) and order.only_if_seq is None
            if not same and not still_none:
                self._note("run_goes_on", "at the last look before the stop its beat was another: nothing was done")
                return False
        if target is None and watch.start is not None:
            target = watch.start.leader
        if target is None or target not in {process.id for process in watch.members()}:
            self._note("signal_sent", "TERM was not sent: nobody is proven to be the one to get it")
            return True
        words = f"TERM is next, to pid {target.pid}{why and ': '}{why}"
        self._record("signal_sending", words, run_id=watch.record.run_id, pid=target.pid, why=why)
        sent = terminate(target)
        self._note("signal_sent", f"TERM to pid {target.pid}: {sent.value}", pid=target.pid, outcome=sent.value)
        return True

    def terminate_rest(self, watch: RunWatch) -> None:
        """TERM to every member there is. Raises RecordingError and OSError; then it was sent to nobody."""
        members = watch.members()
        if members:
            pids = [process.id.pid for process in members]
            words = f"TERM is next, to what is left: {', '.join(map(str, pids[:20]))}"
            self._record("signal_sending", words, run_id=watch.record.run_id, pids=pids[:20_000])
        outcomes = [(process, _terminated(process.id)) for process in members]
        words = ", ".join(f"{process.id.pid} {process.command} {sent.value}" for process, sent in outcomes[:20])
        self._note("signal_sent", f"TERM to what is left: {words or 'nobody was left'}")

    def kill(self, watch: RunWatch) -> None:
        """One round of KILL, and one to the run's cgroup as a whole where nobody else is in it.

        Everybody is stopped first, so that who is recorded is who is killed: nobody forks any more. That they are
        stopped is recorded before, so that a supervisor after us goes on with the KILL; whatever fails between the two
        lets them all run on. Recorded before and after whenever it meets somebody new. Raises RecordingError.
        """

        def look() -> tuple[Process, ...]:
            if watch.shim() is not Shim.LOST:
                return watch.members()
            orphans = watch.orphans(self._run_lock)
            self._proofs = orphans.proofs
            return orphans.ours

        whole = self._whole(watch)
        self._begin(watch, look, whole)
        frozen = self._freeze_whole(watch, whole)
        try:
            self._kill(watch, look)
        finally:
            if frozen:  # a killed one is gone either way, and whoever is left shall run
                assert watch.record.cgroup is not None
                thaw_whole(watch.record.cgroup, watch.record.run_id)

    def _begin(
        self, watch: RunWatch, look: Callable[[], tuple[Process, ...]], whole: frozenset[int] | str | None
    ) -> None:
        """Once for a run: from here on a supervisor that dies leaves stopped processes that the next one kills."""
        if self._begun == watch.record.run_id:
            return
        pids = sorted({process.id.pid for process in look()} | (whole if isinstance(whole, frozenset) else set()))
        if pids:
            words = f"KILL is next: first {len(pids)} processes are stopped, so that none of them forks meanwhile"
            self._record("run_freezing", words, run_id=watch.record.run_id, pids=pids[:20_000])
            self._begun = watch.record.run_id

    def _freeze_whole(self, watch: RunWatch, whole: frozenset[int] | str | None) -> bool:
        """Where the run has a cgroup to itself, at once and in the kernel; a stranger in there is not touched.

        Only for who was not met before: one that waits in state D is never frozen, and each try would be waited for.
        """
        if not isinstance(whole, frozenset) or not whole - self._grouped:
            return False
        assert watch.record.cgroup is not None
        return freeze_whole(watch.record.cgroup, watch.record.run_id)

    def _kill(self, watch: RunWatch, look: Callable[[], tuple[Process, ...]]) -> None:
        frozen: Frozen = freeze(look)
        try:
            whole = self._whole(watch)
            met, grouped = self._recorded(watch, frozen.known, whole)
            # First the whole at once: nothing that the looks have missed goes on forking while the others die.
            of_whole = self._kill_whole(watch, frozen.known) if met and grouped else whole
        except BaseException:  # a full ledger, a process table that cannot be read, an interrupt: nobody stays stopped
            thaw(frozen)
            raise
        self._grouped |= grouped
        outcome = kill(frozen)
        if met:
            words = [f"{process.id.pid} {sent.value}" for process, sent in outcome.outcomes[:20]]
            if of_whole is not None:
                words.append(f"cgroup {of_whole}")
            self._note("run_killed", f"outcome of KILL: {', '.join(words)}")

    def _recorded(
        self, watch: RunWatch, known: dict[ProcessId, Process], whole: frozenset[int] | str | None
    ) -> tuple[set[int], frozenset[int]]:
        """(whom this round is the first to meet, who is in the cgroup that is killed); written down."""
        grouped = whole if isinstance(whole, frozenset) else frozenset()
        fresh = [process for identity, process in known.items() if identity not in self._killed]
        met = {process.id.pid for process in fresh} | (grouped - self._grouped)
        if met:
            names = [f"{process.id.pid} {process.command}" for process in fresh[:20]]
            data: dict[str, Any] = {"pids": sorted(met)[:20_000]}
            if grouped:
                assert watch.record.cgroup is not None
                names.append(f"the whole of its cgroup ({len(grouped)})")
                data["cgroup"] = watch.record.cgroup.path
            proofs = {str(pid): list(self._proofs[pid]) for pid in sorted(met)[:200] if pid in self._proofs}
            if proofs:  # its shim, whose child it would be, is gone
                data["proofs"] = proofs
            self._record("run_killing", f"KILL to {', '.join(names)}", **data)
            self._killed |= known.keys()
        return met, grouped

    def _whole(self, watch: RunWatch) -> frozenset[int] | str | None:
        """Who would be killed with the run's cgroup; or why it is not killed; None where there is nothing to kill."""
        group = watch.in_cgroup(self._run_lock)
        if group is None or not group.pids:
            return None
        own = {each.pid for each in ancestry()} & group.pids
        if own:  # frozen with it, nobody would ever let us go on
            return f"left alone: pid {min(own)} in it is this supervisor, or one that this supervisor was started from"
        if group.strangers:
            pids = ", ".join(str(pid) for pid in sorted(group.strangers)[:5])
            return f"left alone: pid {pids} is in it and not proven to be of the run"
        traced = watch.traced_pids(group.pids)
        if traced:
            return f"left alone: pid {traced[0]} in it is under a debugger"
        return group.pids

    def _kill_whole(self, watch: RunWatch, known: dict[ProcessId, Process]) -> str:
        """Look once more, record whom the record lacks, act, and say what came of it. Raises RecordingError."""
        assert watch.record.cgroup is not None
        last = self._whole(watch)
        if not isinstance(last, frozenset):
            return last or "empty already"
        late = last - self._grouped - {identity.pid for identity in known}
        if late:  # where the cgroup could not be frozen: forked between the two looks
            data = {"pids": sorted(late)[:20_000], "cgroup": watch.record.cgroup.path}
            self._grouped |= late
            self._record("run_killing", f"KILL also to {len(late)} that were forked meanwhile", **data)
        sent = kill_whole(watch.record.cgroup, watch.record.run_id)
        return "not killed: this kernel has no cgroup.kill (5.14 has)" if sent is None else sent.value


def _terminated(target: ProcessId) -> Sent:
    """TERM to one of many: who cannot be reached keeps nobody else from it."""
    try:
        return terminate(target)
    except OSError:
        return Sent.FAILED


def unsent(state: State, order: Terminate | TerminateRest, seen: Seen, policy: Policy) -> State:
    """The state after a TERM that could not be recorded, and so was not sent: it is ordered anew in the next turn.

    With the last look that it was to follow, and the whole grace after it.
    """
    run = state.run
    if run is None or run.stop is None:
        return state
    if isinstance(order, TerminateRest):
        stop = dataclasses.replace(run.stop, rest_asked=False)
        return dataclasses.replace(state, run=dataclasses.replace(run, stop=stop))
    if order.look_again:
        stop = dataclasses.replace(run.stop, held=order)
    else:
        stop = dataclasses.replace(run.stop, asked=False, asked_of=None)
    return dataclasses.replace(state, run=postpone(dataclasses.replace(run, stop=stop), seen, policy))
