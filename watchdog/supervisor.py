"""The loop: look, decide, write down, act. One turn after the other, and nothing in it waits for a disk or a driver.

Responsible for the turn itself, and for carrying out a plan in its order: records first. What is seen comes from
looking.py and hostwatch.py, what is asked from listening.py; decisions are made in core/decide.py.
"""

from __future__ import annotations

import dataclasses
import os
import random
import threading
from collections.abc import Sequence
from typing import Any

from watchdog.actuators.prune import PrunableFolder
from watchdog.actuators.reclaim import Reclaimer
from watchdog.cgrouping import RunCgroups
from watchdog.choosing import Chooser
from watchdog.clock import Clock
from watchdog.collectors.roots import Roots
from watchdog.collectors.run import RunWatch
from watchdog.control_server import ControlServer
from watchdog.core.causes import Cause
from watchdog.core.decide import beat_deadline, decide, resumed
from watchdog.core.ending import flapping
from watchdog.core.ettr import Ettr, ettr
from watchdog.core.facts import value_of
from watchdog.core.history import History, fold
from watchdog.core.pace import Pace
from watchdog.core.patience import Waiting, until_next_look_s
from watchdog.core.phase import Phase
from watchdog.core.restore import restore
from watchdog.core.seen import Gate, Request, Seen, Shim, Trouble
from watchdog.core.state import (
    Action,
    Choose,
    ContinueShim,
    KeepStacks,
    Kill,
    Launch,
    Leave,
    MakeRoom,
    Plan,
    Policy,
    Prune,
    Quarantine,
    Record,
    State,
    Terminate,
    TerminateRest,
)
from watchdog.core.view import StatusView
from watchdog.episodes import AGAIN_S, EpisodeBook
from watchdog.errors import EXIT_FAILURE, ControlError, RecordingError
from watchdog.gpuproving import GpuProver
from watchdog.hostwatch import HostWatch
from watchdog.judging import VerdictBook
from watchdog.keeping_stacks import StackKeeper
from watchdog.launching import launch_run
from watchdog.learning import Learner, rule_of
from watchdog.leftover import LeftEyes, continue_shim
from watchdog.listening import Listener
from watchdog.looking import RunEyes
from watchdog.makingroom import RoomMaker, RunLives, left_to_a_person
from watchdog.masking import secret_values
from watchdog.memorynoting import MemoryNoter
from watchdog.metrics import Metrics
from watchdog.milestones import Milestones
from watchdog.notifier import Notifier
from watchdog.opening import OpenJob
from watchdog.progressing import ProgressEyes
from watchdog.remembered import Remembered, remember
from watchdog.render import live_line
from watchdog.retaining import Pruner
from watchdog.screen import Screen
from watchdog.settings import Settings
from watchdog.signalling import Signaller, unsent
from watchdog.statusview import host_line, label_of, make_view, said_of
from watchdog.subreaping import become_subreaper
from watchdog.tidying import move_refused

# Below this an interruption is the ordinary noise of a busy host, however short the period.
GAP_LEAST_S = 2.0
_NO_FIGURES = str.maketrans("", "", "0123456789.")
# For a restart and for autopsies, not for people.
_QUIET_KINDS = frozenset(
    {"run_beats", "phase_time", "uses_gpu", "notifying", "notified", "run_steps", "run_caught_up", "step_time"}
    | {"gpu_memory", "host_memory", "prune_planned", "run_freezing", "signal_sending", "verdict_changed"}
)
_SOCKET_EVERY_S = 5.0


class Supervisor:
    """One job, one loop. `run()` returns the exit code."""

    def __init__(
        self,
        settings: Settings,
        job: OpenJob,
        policy: Policy,
        *,
        clock: Clock,
        screen: Screen,
        metrics: Metrics | None = None,
        metrics_url: str | None = None,
    ) -> None:
        self._settings = settings
        self._job = job
        self._clock = clock
        self._screen = screen
        self._metrics = metrics
        self._metrics_url = metrics_url
        self._watch: RunWatch | None = job.watch
        self._history: History = job.history
        self._account = job.account
        self._learner = Learner(rule_of(settings), self._record, self._say_trouble)
        self._policy = policy = self._learner.taught(policy, self._history)
        self._due_s = float("inf")  # when the living run is late, on the monotonic clock
        self._looked_s = clock.monotonic()  # the moment of the newest look
        living = None if self._watch is None else self._watch.record
        now_s, wall_s = clock.monotonic(), clock.wall()
        self._state: State = restore(self._history, living, now_s, policy, wall_s=wall_s, boot_id=job.host.boot_id)
        self._host = HostWatch(settings, job.folders, clock, os.environ, used=self._history.gpus)
        self._gpus = GpuProver(settings, clock, self._host, self._record, self._say_trouble)
        self._memory = MemoryNoter(clock, self._record, self._say_trouble)
        reclaimer = Reclaimer(Roots(), clock, sync=(job.folders.checkpoints, job.folders.state))
        run_lives = RunLives(str(job.folders.run_lock), clock)
        self._room = RoomMaker(reclaimer, clock, self._record, run_lives, untried=left_to_a_person(settings))
        place = PrunableFolder(job.folders.checkpoints, clock)
        self._pruner = Pruner(settings, place, clock, self._record, self._say_trouble)
        self._gpus_not_before_s = float("-inf")
        self._progress = ProgressEyes(settings.job.progress, clock, self._account.step_s)
        self._episodes = EpisodeBook(self._record, self._say_trouble)
        self._verdicts = VerdictBook(self._record, self._say_trouble)
        self._milestones = Milestones(self._account, self._record, self._say_trouble)
        self._notifier = Notifier(
            settings,
            clock,
            str(job.folders.ledger),
            self._note,
            lambda words: screen.line("notify", words),
            self._history.blind_seq,
        )
        secrets = secret_values(os.environ, settings.job.environment)
        self._eyes = RunEyes(job.folders, clock, self._say_trouble, self._host.heard, secrets)
        self._signaller = Signaller(job.folders.run_lock, self._eyes.beat, self._record_one, self._note)
        self._chooser = Chooser(policy.level, job.folders, lambda: self._history, self._record, self._say_trouble)
        self._cgroups = RunCgroups(self._note)
        self._stacks = StackKeeper(clock, self._note)
        self._left = LeftEyes()
        self._listener = Listener(screen.detach, lambda: self.view, lambda: self._remembered, self._chooser.wish)
        self._trouble: Trouble | None = None
        self._orphans_come_to_us = False
        self._batch_halvings = self._history.batch_halvings  # of the run that was launched last, by this supervisor
        self._pace = Pace()
        self._gates: tuple[Gate, ...] = ()
        self._said_host = False
        self._said_gate = ""
        self._said_trouble = ""
        self._exit_code: int | None = None
        self._remembered = Remembered(at_s=clock.monotonic())
        self._view_lock = threading.Lock()
        self._view = make_view(self._settings, self._job, self._state, self._history, self._clock)

    @property
    def view(self) -> StatusView:
        """The newest view; from any thread."""
        with self._view_lock:
            return self._view

    def ask(self, request: Request) -> None:
        """Hand the loop a request."""
        self._listener.ask(request)

    # --- the loop -------------------------------------------------------------------------------------------
    def run(self) -> int:
        """Supervise until there is a reason to leave."""
        self._listener.listen_to_signals()
        if not become_subreaper():  # before the first look, which has children of its own
            self._note("orphans_unproven", "orphans may be given to this process by others: only their marks are proof")
        else:
            self._orphans_come_to_us = True
        control = self._open_socket()
        try:
            self._begin()
            last_s = socket_s = self._clock.monotonic()
            wait_s = 0.0
            while self._exit_code is None:
                now_s = self._clock.monotonic()
                # From turn to turn, so that a freeze in the middle of a turn is seen as well.
                away_s = now_s - last_s - wait_s
                gap = away_s > max(2 * self._policy.period_s, GAP_LEAST_S)
                last_s = now_s
                if now_s - socket_s >= _SOCKET_EVERY_S:
                    socket_s = now_s
                    control = self._keep_socket(control)
                if gap:
                    self._note("gap", f"this process was away for {away_s:.0f} s: every grace begins anew")
                    self._host.ask_afresh(away_s)
                    self._progress.skip(away_s)
                for words in self._listener.dropped():
                    self._note("request_dropped", words)
                busy = self._turn(self._gather(now_s, gap=gap))
                if self._listener.insisted:
                    self._screen.line("watchdog", "left at once; what runs goes on, watchdog run adopts it")
                    return EXIT_FAILURE
                wait_s = 0.0 if busy else self._patience_s()
                self._listener.wait(wait_s, [] if self._watch is None else self._watch.descriptors())
            self._notifier.close(self._history)
            return self._exit_code
        finally:
            self._screen.end_live()
            control.stop()
            self._host.close()
            self._job.ledger.close()

    def _open_socket(self) -> ControlServer:
        control = ControlServer(self._job.folders.socket, self._listener.answer, os.getuid(), self._listener.drop)
        control.start()
        return control

    def _keep_socket(self, control: ControlServer) -> ControlServer:
        """A socket whose name was removed answers nobody: make it again."""
        if control.alive and self._job.folders.socket.exists():
            return control
        control.stop(timeout_s=0.5)
        try:
            control = self._open_socket()
        except ControlError as error:
            self._say_trouble(str(error))
        return control

    def _begin(self) -> None:
        pid = os.getpid()
        self._record([Record("supervisor_started", f"supervisor pid {pid} has the job", {"pid": pid})], quiet=True)
        if self._job.ledger.bad_lines:
            words = f"{self._job.ledger.bad_lines} lines of the ledger are no records; they were passed over"
            self._note("ledger_damaged", words)
        self._cgroups.sweep(self._history.run_ids, None if self._watch is None else self._watch.record.run_id)
        if self._watch is not None:
            record = self._watch.record
            self._cgroups.release(record, self._history.stopping)
            words = f"run {record.number} ({record.run_id}) was there already: adopted"
            self._note("run_adopted", words, run_id=record.run_id)
            self._eyes.listen(record.run_id)
            owed = self._history.owed == record.run_id or self._history.line.abandons_run(record.run_id)
            if owed and self._state.hold is None:  # whoever asked is owed it; a hold was no answer that they had seen
                self.ask(Request.RELAUNCH)
        if self._state.hold is not None:
            self._screen.line("HOLD", self._state.hold)
        if self._state.phase in (Phase.GATING, Phase.WEIGHING):
            self._chooser.order()

    def _turn(self, seen: Seen) -> bool:
        """Decide and carry out. True when the next turn should follow at once."""
        before = self._state
        after, plan = decide(before, seen, self._policy)
        if plan.records and not self._recorded(plan):
            # Not recorded, so not done, and the state stays; what was asked is not forgotten.
            if seen.request is not None:
                self._listener.put_back(seen.request)
            self._trouble = seen.trouble
            self._looked_s = seen.now_s  # what was late before this look is no reason to look again at once
            return False
        self._state = after
        self._due_s, self._looked_s = self._late_from_s(seen), seen.now_s
        for action in plan.actions:
            self._do(action, seen)
        if plan.rule == f"stop: {Cause.DRAINED.value}":
            patience = f"what is left in {self._policy.grace_for(Cause.DRAINED):g} s is killed"
            self._screen.line("", f"{patience}; Ctrl-C again, or watchdog stop --now, ends it at once without saving")
        self._publish(seen, plan)
        self._notifier.look(self._state, self._history, self._host.findings)
        return self._state.phase is not before.phase

    # --- writing down ---------------------------------------------------------------------------------------
    def _recorded(self, plan: Plan) -> bool:
        """Write a plan's records; False: nothing of the plan may be done."""
        try:
            self._record(plan.records)
        except RecordingError as error:
            if plan.actions and all(isinstance(action, Leave) for action in plan.actions):
                self._say_trouble(str(error))
                return True  # leaving touches nothing in the world
            self._say_trouble(f"{error}; until then nothing is decided")
            return False
        self._said_trouble = ""
        return True

    def _record(self, records: Sequence[Record], *, quiet: bool = False) -> None:
        events = self._job.ledger.record_all([(r.kind, r.sentence, r.data) for r in records])
        self._history = fold(events, self._history)
        for event in events:
            self._account.add(event)
        for record in records:
            if not quiet and record.kind not in _QUIET_KINDS:
                label = label_of(record.kind, record.data, self._history)
                self._screen.line(label, said_of(record.kind, record.sentence, record.data))

    def _record_one(self, kind: str, sentence: str, **data: Any) -> None:
        self._record([Record(kind, sentence, data)])

    def _note(self, kind: str, sentence: str, **data: Any) -> None:
        """Something worth remembering that nothing depends on."""
        try:
            self._record_one(kind, sentence, **data)
        except RecordingError as error:
            self._say_trouble(str(error))

    def _say_trouble(self, words: str) -> None:
        """Once, until something else is said."""
        if words != self._said_trouble:
            self._said_trouble = words
            self._screen.line("trouble", words)

    # --- looking --------------------------------------------------------------------------------------------
    def _gather(self, now_s: float, *, gap: bool) -> Seen:
        choosing, runs = self._state.phase in (Phase.GATING, Phase.WEIGHING), self._state.phase is Phase.RUNNING
        for request in self._chooser.look(choosing=choosing, watching=runs and not self._pruner.needs_quiet):
            self.ask(request)
        trouble, self._trouble = self._trouble, None
        self._room.look()
        if self._pruner.look(self._state, self._history, self._chooser.choice, verifying=self._chooser.busy):
            self._host.ask_disks()
        self._stacks.look()
        self._host.remember(self._history.host_memory)
        self._gates = self._host.gates(
            lock_intact=self._job.lock.intact, tried=self._room.words, pruned=self._pruner.words
        )
        self._gates = self._gpus.beside(self._gates, self._state, self._history)
        if not self._said_host and not self._host.unread("memory", "driver"):
            self._said_host = True
            self._screen.line("host", host_line(self._host.facts))
        seen = Seen(
            now_s=now_s,
            gap=gap,
            choice=self._chooser.choice,
            choice_error=self._chooser.error,
            request=self._listener.next(),
            trouble=trouble,
            luck=random.random(),
            gates=self._gates,
            room_made=self._room.over,
            pruned=self._pruner.over,
            stacks_over=self._stacks.over,
        )
        if self._watch is not None:
            seen = self._eyes.look(self._watch, self._state, seen)
            self._cgroups.look(self._watch)
        self._judge(seen)
        left = self._left.look(self._watch, seen, self._host.facts, self._host.limits, self._state.run, self._policy)
        return dataclasses.replace(seen, findings=self._host.findings, judged_s=self._host.found_s, left=left)

    def _judge(self, seen: Seen) -> None:
        """What the checks make of the host and of the run; an episode is told when it begins and when it is over."""
        self._learner.look(self._state, seen, self._history)
        self._policy = self._learner.taught(self._policy, self._history)
        run = self._progress.look(self._watch, seen, self._policy, self._state.run)
        root = self._watch.shim_id if self._watch is not None and seen.shim is Shim.ALIVE else None
        if self._host.judge(run, root):
            self._episodes.look(self._host.findings, seen.now_s)
        self._milestones.look(self._state.run, self._progress.newest, seen.now_s, over=seen.end is not None)
        self._remember_gpus(seen.now_s)
        self._gpus.look(self._state.run, self._history, seen.now_s)
        self._memory.look(self._state.run, self._watch, seen, self._host.facts, self._history)

    def _remember_gpus(self, now_s: float) -> None:
        """Which devices the job uses, for a supervisor after us: its gate is to decide as ours does."""
        used = self._host.used
        if used is None or used == self._history.gpus or now_s < self._gpus_not_before_s:
            return
        words = f"a run of this job was seen on {', '.join(sorted(used)) or 'a GPU, which one is not told'}"
        try:
            self._record([Record("uses_gpu", words, {"uuids": sorted(used)})])
        except RecordingError as error:  # seldom again: a disk that hangs keeps whoever records waiting
            self._say_trouble(str(error))
            self._gpus_not_before_s = now_s + AGAIN_S

    # --- acting ---------------------------------------------------------------------------------------------
    def _do(self, action: Action, seen: Seen) -> None:
        match action:
            case Choose(sparing):
                self._let_go()
                self._chooser.order(sparing=sparing)
            case Launch():
                self._launch(action, seen)
            case MakeRoom():
                self._room.begin(self._host.memory_need_bytes)
            case Prune():
                self._pruner.begin()
            case KeepStacks(beating):
                assert self._watch is not None
                self._stacks.begin(self._watch, seen.members, beating)
            case Terminate() | TerminateRest():
                self._ask_to_end(action, seen)
            case ContinueShim():
                assert self._watch is not None
                continue_shim(self._watch, self._note)
            case Kill():
                assert self._watch is not None
                try:
                    self._signaller.kill(self._watch)
                except RecordingError as error:
                    self._say_trouble(f"{error}; nobody is killed unrecorded")
                except OSError as error:  # a table that cannot be read, no descriptor to be had: the next round
                    self._say_trouble(f"{error}; nobody was killed, and it is tried again")
            case Quarantine(refused):
                move_refused(refused, self._note)
                self._chooser.moved()
            case Leave(code):
                self._exit_code = code

    def _ask_to_end(self, order: Terminate | TerminateRest, seen: Seen) -> None:
        run = self._state.run
        assert self._watch is not None
        try:
            if isinstance(order, TerminateRest):
                self._signaller.terminate_rest(self._watch)
                return
            why = "" if run is None or run.stop is None else run.stop.reason
            sent = self._signaller.terminate(self._watch, order, self._clock.monotonic(), why)
        except (RecordingError, OSError) as error:
            self._say_trouble(f"{error}; TERM is sent once it can be recorded")
            self._state = unsent(self._state, order, seen, self._policy)
            return
        if not sent:
            self._state = resumed(self._state, seen.now_s)
            if (flaps := flapping(self._state)) is not None:
                self._note(flaps.kind, flaps.sentence, **flaps.data)

    def _launch(self, order: Launch, seen: Seen) -> None:
        self._screen.line("gate", "  ".join(f"{gate.words} ✓" for gate in seen.gates))
        launched = launch_run(
            self._settings,
            self._job,
            self._history,
            order.checkpoint,
            self._state,
            self._clock,
            self._record,
            self._eyes.listen,
            self._cgroups,
            gates=tuple(gate.words for gate in seen.gates),
            device_memory=self._gpus.before(),
            why_stale=self._chooser.why_stale,
        )
        if isinstance(launched, Trouble):
            self._trouble = launched
            self._host.ask_disks()  # the gates that were open did not show it
            self._eyes.forget()
            return
        if launched[1].batch_halvings != self._batch_halvings:
            self._progress.forget()
            self._batch_halvings = launched[1].batch_halvings
        self._watch, self._state = launched
        self._watch.orphans_come_to_us = self._orphans_come_to_us
        self._chooser.launched()
        self._room.forget()
        self._pruner.forget()
        self._signaller.forget()
        self._pace.reset()

    def _let_go(self) -> None:
        """The run is proven over and recorded: its descriptors are closed."""
        if self._watch is not None and self._state.run is None:
            if self._watch.start is None or self._watch.shim() is Shim.LOST:
                self._host.run_is_over()
            self._watch.close()
            self._cgroups.remove(self._watch.record)
            self._watch = None
            self._eyes.forget()

    # --- showing --------------------------------------------------------------------------------------------
    def _ettr(self) -> Ettr | None:
        newest, progress = self._history.newest, self._progress.newest
        now_s = self._account.later_s(self._clock.wall(), self._clock.monotonic(), self._job.host.boot_id)
        return ettr(
            self._account,
            now_s=now_s,
            newest_step=None if newest is None else newest.step,
            step_s=None if progress is None else progress.typical_step_s,
        )

    def _publish(self, seen: Seen, plan: Plan) -> None:
        view = make_view(
            self._settings,
            self._job,
            self._state,
            self._history,
            self._clock,
            seen=seen,
            watch=self._watch,
            pace=self._pace,
            policy=self._policy,
            host=self._host,
            progress=self._progress.newest,
            metrics_url=self._metrics_url,
            ettr=self._ettr(),
            verdict=self._verdicts.look(self._state, seen, self._policy, self._host.facts, self._history.launches),
        )
        with self._view_lock:
            self._view = view
        # One assignment: the socket's thread sees the old or the new one.
        self._remembered = remember(self._host.facts, self._host.limits)
        if self._metrics is not None:
            self._metrics.publish(view)
        if plan.rule == "gate closed" and seen.gates:
            words = "; ".join(gate.words for gate in seen.gates if not gate.open)
            if (told := words.translate(_NO_FIGURES)) != self._said_gate:  # figures that grow are no news
                self._said_gate = told
                self._screen.line("gate", f"closed: {words}")
        if plan.rule == "works on in the background" and self._said_gate != plan.rule:
            self._said_gate = plan.rule
            names = ", ".join(f"{process.id.pid} {process.command}" for process in seen.members[:5])
            self._screen.line("", f"its leader ended with 0; the run goes on with what it left: {names}")
        self._screen.live(live_line(view), seen.now_s)
        self._host.tend(self._watch, self._job.ledger)

    def _late_from_s(self, seen: Seen) -> float:
        run = self._state.run
        if run is None:
            return float("inf")
        since_s, deadline_s = beat_deadline(run, value_of(seen.beat), self._policy)
        return since_s + deadline_s

    def _patience_s(self) -> float:
        """How long until the next look, if nothing happens before."""
        waiting = Waiting(
            hearing_its_end=self._eyes.hearing_its_end,
            keeping_stacks=not self._stacks.over,
            unanswered=not self._gates or self._chooser.due,
            starting=self._watch is not None and self._watch.start is None,
            due_s=self._due_s,
            looked_s=self._looked_s,
        )
        return until_next_look_s(self._state, self._policy, waiting, self._clock.monotonic())
