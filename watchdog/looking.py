"""Looking at the living run for one turn: everything that core/decide.py needs to know about it.

Responsible for the order in which things are read, and for reading the whole process table only when something hangs
on it. Refuses to act and to remember more than the members it saw last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from watchdog.clock import Clock
from watchdog.collectors.beats import see_beat
from watchdog.collectors.notify import NotifySocket
from watchdog.collectors.run import RunWatch
from watchdog.concluding import EndEyes
from watchdog.contract import Acknowledgement, ContractError
from watchdog.core.facts import Absent, Fact, Facts, Known, Unknown
from watchdog.core.identity import Process, ProcessId
from watchdog.core.phase import Phase
from watchdog.core.seen import BeatSeen, Seen, Shim
from watchdog.core.state import State
from watchdog.folders import JobFolders
from watchdog.leftover import stopped_shim
from watchdog.opening import run_lock_holders, run_lock_is_free

# How often the whole process table is read for a run that seems well. A young run starts its helpers, and whoever was
# seen once stays proven ours, should shim and supervisor both be killed.
_MEMBERS_EVERY_S, _MEMBERS_OF_YOUNG_EVERY_S, _YOUNG_S = 10.0, 1.0, 60.0


def _beat_in_file(watch: RunWatch, clock: Clock) -> Fact[BeatSeen]:
    """The run's beat; its process counts as alive only as a descendant of the living shim."""
    root: ProcessId | None = watch.shim_id if watch.shim() is Shim.ALIVE else None
    return see_beat(watch.folder.beat, run_id=watch.record.run_id, now=clock.monotonic, shim=root)


class RunEyes:
    """Looks at one run after the other. For use from the loop alone."""

    def __init__(
        self,
        folders: JobFolders,
        clock: Clock,
        doubt: Callable[[str], None],
        facts: Callable[[bool], Facts] | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        """`doubt` is told what cannot be believed, for the person at the screen; `facts`, `secrets`: see EndEyes."""
        self._folders = folders
        self._doubt = doubt
        self._clock = clock
        self._members: tuple[Process, ...] = ()
        self._members_s = -_MEMBERS_EVERY_S
        self._began_s = clock.monotonic()
        self._notify: NotifySocket | None = None
        self._ends = EndEyes(clock, facts, secrets)

    @property
    def hearing_its_end(self) -> bool:
        """What tells of the end of the run is still being read: the next look should be soon."""
        return self._ends.awaiting

    def listen(self, run_id: str) -> None:
        """A run is about to begin, or is adopted: hear its notify socket, from its first word on."""
        self.forget()
        self._began_s = self._clock.monotonic()
        try:
            self._notify = NotifySocket(run_id, self._clock)
        except OSError as error:
            self._doubt(f"the notify socket cannot be had ({error.strerror}): only the beat file is heard")

    def forget(self) -> None:
        """The run is over."""
        self._members, self._members_s = (), -_MEMBERS_EVERY_S
        self._ends.forget()
        if self._notify is not None:
            self._notify.close()
            self._notify = None

    def beat(self, watch: RunWatch, now_s: float) -> Fact[BeatSeen]:
        """The newest beat: from the beat file, or where there is none from the notify socket."""
        beat = _beat_in_file(watch, self._clock)
        if isinstance(beat, Absent) and self._notify is not None:
            if watch.shim_id is not None:
                self._notify.believe(watch.shim_id)
            beat = self._notify.beat(now_s)
        return beat

    def look(self, watch: RunWatch, state: State, seen: Seen) -> Seen:
        """`seen` with everything about the run."""
        shim = watch.shim()
        # The beat before the acknowledgement: whoever is seen stepping has had the time to say what it restored.
        beat = self.beat(watch, seen.now_s)
        if isinstance(beat, Unknown):
            self._doubt(f"blind to the beats of run {watch.record.number}: {beat.why}; a stall would not be seen")
        acknowledgement = self._acknowledgement(watch, seen.now_s)
        leader_alive = watch.leader_alive()
        end = None
        if shim in (Shim.ENDED, Shim.LOST, Shim.NEVER) or not leader_alive:
            end = self._ends.look(
                watch,
                over=shim is not Shim.ALIVE,
                beat_pid=beat.value.beat.pid if isinstance(beat, Known) else None,
                ours=state.run is not None and state.run.stop is not None,
                beat=beat.value.beat if isinstance(beat, Known) else None,
            )
        else:
            self._ends.remember()
        doubted = state.run is not None and (state.run.stale_looks > 0 or state.run.faking_look_s is not None)
        closely = state.phase is not Phase.RUNNING or doubted
        members, unclear, lock_free = self._members_of(watch, shim, seen.now_s, closely=closely, led=leader_alive)
        holders = run_lock_holders(str(self._folders.run_lock), self._clock) if lock_free is False else None
        return dataclasses.replace(
            seen,
            lock_holders=holders,
            shim=shim,
            leader_alive=leader_alive,
            end=end,
            end_awaited=end is not None and self._ends.awaiting,
            members=members,
            unclear=unclear,
            traced=watch.traced(members) if closely else (),
            shim_stopped=stopped_shim(watch) if shim is Shim.ALIVE and (closely or not leader_alive) else None,
            run_lock_free=lock_free,
            beat=beat,
            acknowledgement=acknowledgement,
        )

    def _acknowledgement(self, watch: RunWatch, now_s: float) -> Fact[Acknowledgement]:
        try:
            return Known(Acknowledgement.read(watch.folder.acknowledgement), now_s)
        except FileNotFoundError:
            return Absent("no acknowledgement yet")
        except (OSError, ContractError) as error:
            self._doubt(f"the acknowledgement of run {watch.record.number} cannot be read: {error}")
            return Unknown(str(error))

    def _members_of(
        self, watch: RunWatch, shim: Shim, now_s: float, *, closely: bool, led: bool
    ) -> tuple[tuple[Process, ...], tuple[Process, ...], bool | None]:
        """(members, unclear, run lock free). The table is read now and then, or when every member matters.

        Where it cannot be read: those of the last look, and nothing of the lock, so that no run is gone by that.
        """
        try:
            return self._read_members(watch, shim, now_s, closely=closely, led=led)
        except OSError as error:
            self._doubt(f"the processes of run {watch.record.number} cannot be read: {error}")
            return self._members, (), None

    def _read_members(
        self, watch: RunWatch, shim: Shim, now_s: float, *, closely: bool, led: bool
    ) -> tuple[tuple[Process, ...], tuple[Process, ...], bool | None]:
        if shim is Shim.LOST:
            orphans = watch.orphans(self._folders.run_lock)
            free = run_lock_is_free(self._folders) if not orphans.ours else None
            return orphans.ours, orphans.unclear, free
        if shim is not Shim.ALIVE:
            return (), (), None
        calm = led and now_s - self._began_s > _YOUNG_S  # without its leader it is known by who is left
        every_s = _MEMBERS_EVERY_S if calm else _MEMBERS_OF_YOUNG_EVERY_S
        if closely or now_s - self._members_s >= every_s:
            self._members, self._members_s = watch.members(), now_s
        return self._members, (), None
