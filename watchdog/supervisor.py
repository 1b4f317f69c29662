"""The loop: look, decide, write down, act. One turn after the other, and nothing in it waits for a disk or a driver.

Responsible for gathering what core/decide.py needs, for carrying out its plans in order (records first), and for
leaving a run untouched whatever happens to this process. Decisions are not made here.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from watchdog.actuators.stop import kill_round, terminate
from watchdog.checkpoints.verifier import Knowledge, Verifier
from watchdog.classify.ends import classify, is_permanent
from watchdog.clock import Clock
from watchdog.collectors.beats import see_beat
from watchdog.collectors.run import RunWatch, last_words
from watchdog.contract import PHASES, Acknowledgement, ContractError
from watchdog.control import ControlServer
from watchdog.core.choice import Choice
from watchdog.core.decide import decide, resumed
from watchdog.core.facts import Known
from watchdog.core.history import History, fold
from watchdog.core.identity import Process
from watchdog.core.pace import Pace
from watchdog.core.phase import Phase
from watchdog.core.restore import restore
from watchdog.core.seen import EndSeen, Gate, Request, Seen, Shim, Trouble
from watchdog.core.state import (
    Action,
    Choose,
    Kill,
    Launch,
    Leave,
    Plan,
    Policy,
    Quarantine,
    Record,
    State,
    Terminate,
)
from watchdog.errors import EXIT_FAILURE, RecordingError
from watchdog.hostwatch import HostWatch
from watchdog.launching import launch_run
from watchdog.metrics import Metrics
from watchdog.opening import OpenJob, run_lock_is_free
from watchdog.render import live_line, status_record
from watchdog.screen import Screen
from watchdog.settings import Settings
from watchdog.statusview import label_of, make_view
from watchdog.tidying import move_refused

PR_SET_CHILD_SUBREAPER = 36
_MEMBERS_EVERY_S = 10.0


def policy_from(settings: Settings, *, leave_on_hold: bool) -> Policy:
    """The settings that decisions use."""
    return Policy(
        level=settings.job.level,
        target_step=settings.job.target_step,
        deadlines_s={phase: settings.deadlines.for_phase(phase) for phase in ("start", *PHASES)},
        period_s=settings.loop.period_s,
        grace_s=settings.stop.grace_s,
        kill_wait_s=settings.stop.kill_wait_s,
        failure_limit=settings.relaunch.failures,
        backoff_s=settings.relaunch.backoff_s,
        backoff_limit_s=settings.relaunch.backoff_limit_s,
        gate_wait_s=settings.relaunch.gate_wait_s,
        leave_on_hold=leave_on_hold,
    )


def become_subreaper() -> None:
    """Should a shim be killed, what it watched over becomes our child, and can be proven ours."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


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
        self._policy = policy
        self._clock = clock
        self._screen = screen
        self._metrics = metrics
        self._metrics_url = metrics_url
        self._watch: RunWatch | None = job.watch
        self._history: History = job.history
        living = None if self._watch is None else self._watch.record
        self._state: State = restore(self._history, living, clock.monotonic(), policy)
        self._host = HostWatch(settings, job.folders, clock)
        self._verifier = Verifier(job.folders.checkpoints, job.folders.lineage)
        self._choice: Choice | None = None
        self._choice_error: str | None = None
        self._choice_order = 0
        self._trouble: Trouble | None = None
        self._requests: deque[Request] = deque()
        self._interrupts = 0
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._pace = Pace()
        self._killed: frozenset[int] = frozenset()
        self._members: tuple[Process, ...] = ()
        self._members_s = -_MEMBERS_EVERY_S
        self._verified_s: dict[int, float] = {}
        self._gates: tuple[Gate, ...] = ()
        self._said_gate = ""
        self._said_trouble = ""
        self._exit_code: int | None = None
        self._view_lock = threading.Lock()
        self.view = make_view(self._settings, self._job, self._state, self._history, self._clock)

    # --- the loop -------------------------------------------------------------------------------------------
    def run(self) -> int:
        """Supervise until there is a reason to leave."""
        self._listen_to_signals()
        become_subreaper()
        control = ControlServer(self._job.folders.socket, self._answer, os.getuid())
        control.start()
        try:
            self._begin()
            due_s = self._clock.monotonic()
            while self._exit_code is None:
                now_s = self._clock.monotonic()
                gap = now_s - due_s > 2 * self._policy.period_s
                if gap:
                    self._note("gap", f"this process was away for {now_s - due_s:.0f} s: every grace begins anew")
                    self._host.ask_afresh()
                busy = self._turn(self._gather(now_s, gap=gap))
                wait_s = 0.0 if busy else self._patience_s()
                due_s = self._clock.monotonic() + wait_s
                self._sleep(wait_s)
            return self._exit_code
        finally:
            self._screen.end_live()
            control.stop()
            self._job.ledger.close()

    def _begin(self) -> None:
        ledger = self._job.ledger
        pid = os.getpid()
        self._record([Record("supervisor_started", f"supervisor pid {pid} has the job", {"pid": pid})], quiet=True)
        if ledger.bad_lines:
            words = f"{ledger.bad_lines} lines of the ledger are no records; they were passed over"
            self._note("ledger_damaged", words)
        if self._watch is not None:
            record = self._watch.record
            self._note(
                "run_adopted", f"run {record.number} ({record.run_id}) was there already: adopted", run_id=record.run_id
            )
        if self._state.hold is not None:
            self._screen.line("HOLD", self._state.hold)
        if self._state.phase in (Phase.GATING, Phase.WEIGHING):
            self._order_choice()

    def _turn(self, seen: Seen) -> bool:
        """Decide and carry out. True when the next turn should follow at once."""
        before = self._state
        after, plan = decide(before, seen, self._policy)
        if plan.records and not self._recorded(plan):
            return False
        self._state = after
        for action in plan.actions:
            self._do(action, seen)
        self._publish(seen, plan)
        return self._state.phase is not before.phase

    def _recorded(self, plan: Plan) -> bool:
        """Write a plan's records; False: nothing of the plan may be done."""
        try:
            self._record(plan.records)
        except RecordingError as error:
            if all(isinstance(action, Leave) for action in plan.actions) and plan.actions:
                self._say_trouble(str(error))
                return True  # leaving touches nothing in the world
            self._say_trouble(f"{error}; until then nothing is decided")
            return False
        self._said_trouble = ""
        return True

    def _record(self, records: tuple[Record, ...] | list[Record], *, quiet: bool = False) -> None:
        events = self._job.ledger.record_all([(r.kind, r.sentence, r.data) for r in records])
        self._history = fold(events, self._history)
        for record in records:
            if not quiet:
                self._screen.line(label_of(record.kind, record.data, self._history), record.sentence)

    def _note(self, kind: str, sentence: str, **data: Any) -> None:
        """Something worth remembering that nothing depends on."""
        try:
            self._record([Record(kind, sentence, data)])
        except RecordingError as error:
            self._say_trouble(str(error))

    def _say_trouble(self, words: str) -> None:
        if words != self._said_trouble:
            self._said_trouble = words
            self._screen.line("trouble", words)

    # --- looking --------------------------------------------------------------------------------------------
    def _gather(self, now_s: float, *, gap: bool) -> Seen:
        self._take_results(now_s)
        request = self._requests.popleft() if self._requests else None
        trouble, self._trouble = self._trouble, None
        self._gates = self._host.gates(lock_intact=self._job.lock.intact)
        seen = Seen(
            now_s=now_s,
            gap=gap,
            choice=self._choice,
            choice_error=self._choice_error,
            request=request,
            trouble=trouble,
            gates=self._gates,
        )
        return seen if self._watch is None else self._look_at_run(self._watch, seen)

    def _look_at_run(self, watch: RunWatch, seen: Seen) -> Seen:
        shim = watch.shim()
        root = watch.start.shim if watch.start is not None and shim is Shim.ALIVE else None
        # The beat before the acknowledgement: whoever is seen stepping has had the time to say what it restored.
        beat = see_beat(watch.folder.beat, run_id=watch.record.run_id, now_s=seen.now_s, shim=root)
        acknowledgement = None
        try:
            acknowledgement = Acknowledgement.read(watch.folder.acknowledgement)
        except FileNotFoundError:
            pass
        except (OSError, ContractError) as error:
            self._say_trouble(f"the acknowledgement cannot be read: {error}")
        leader_alive = watch.leader_alive()
        end = None
        if shim in (Shim.ENDED, Shim.LOST, Shim.NEVER) or not leader_alive:
            exit_record = watch.exit_record()
            beat_pid = beat.value.beat.pid if isinstance(beat, Known) else None
            cause, words = classify(exit_record, beat_pid=beat_pid)
            end = EndSeen(cause=cause, words=words, permanent=is_permanent(exit_record), error=last_words(watch.folder))
        members, unclear, lock_free = self._members_of(watch, shim, seen.now_s)
        return dataclasses.replace(
            seen,
            shim=shim,
            leader_alive=leader_alive,
            end=end,
            members=members,
            unclear=unclear,
            traced=watch.traced(members) if self._closely() else (),
            run_lock_free=lock_free,
            beat=beat,
            acknowledgement=acknowledgement,
        )

    def _closely(self) -> bool:
        """Whether every member must be looked at in this turn: reading the whole process table is not free."""
        run = self._state.run
        return self._state.phase is not Phase.RUNNING or (run is not None and run.stale_looks > 0)

    def _members_of(
        self, watch: RunWatch, shim: Shim, now_s: float
    ) -> tuple[tuple[Process, ...], tuple[Process, ...], bool | None]:
        if shim is Shim.LOST:
            orphans = watch.orphans(self._job.folders.run_lock)
            free = run_lock_is_free(self._job.folders) if not orphans.ours and not orphans.unclear else None
            return orphans.ours, orphans.unclear, free
        if shim is not Shim.ALIVE:
            return (), (), None
        if self._closely() or now_s - self._members_s >= _MEMBERS_EVERY_S:
            self._members, self._members_s = watch.members(), now_s
        return self._members, (), None

    def _take_results(self, now_s: float) -> None:
        """What the verifier found: recorded first, then believed."""
        for found in self._verifier.results():
            records = [
                Record(
                    "checkpoint_verified",
                    f"step {checkpoint.step} verified {checkpoint.digest[:12]}…",
                    {"step": checkpoint.step, "digest": checkpoint.digest, "run_id": checkpoint.run_id},
                )
                for checkpoint in found.verified
                if not any((k.step, k.digest) == (checkpoint.step, checkpoint.digest) for k in self._history.known)
            ]
            self._verified_s.update({checkpoint.step: now_s for checkpoint in found.verified})
            try:
                if records:
                    self._record(records)
            except RecordingError as error:
                self._say_trouble(str(error))
            for refusal in found.refused:
                self._note("checkpoint_doubtful", f"step {refusal.step} is not verified: {refusal.why}")
            if found.order == self._choice_order:
                self._choice, self._choice_error = found.choice, found.error
            elif found.error is not None:
                self._say_trouble(f"checkpoints: {found.error}")
        if self._policy.level == 2 and self._state.phase is Phase.RUNNING:
            self._verifier.watch(self._knowledge())

    def _knowledge(self) -> Knowledge:
        history = self._history
        return Knowledge(known=history.known, refused_runs=history.refused_runs, ledger_knew=history.knew_checkpoint)

    def _order_choice(self) -> None:
        self._choice = self._choice_error = None
        self._choice_order = self._verifier.choose(self._knowledge()) if self._policy.level == 2 else 0

    # --- acting ---------------------------------------------------------------------------------------------
    def _do(self, action: Action, seen: Seen) -> None:
        match action:
            case Choose():
                self._over()
                self._order_choice()
            case Launch(checkpoint):
                self._screen.line("gate", "  ".join(f"{gate.words} ✓" for gate in seen.gates))
                launched = launch_run(
                    self._settings, self._job, self._history, checkpoint, self._state, self._clock, self._record
                )
                if isinstance(launched, Trouble):
                    self._trouble = launched
                else:
                    self._watch, self._state = launched
                    self._killed, self._members_s = frozenset(), -_MEMBERS_EVERY_S
                    self._pace.reset()
                    self._choice = None
            case Terminate(target, only_if_seq):
                self._terminate(target, only_if_seq, seen)
            case Kill():
                self._kill()
            case Quarantine(refused):
                move_refused(refused, self._note)
                if self._choice is not None:
                    self._choice = dataclasses.replace(self._choice, refused=())
            case Leave(code):
                self._exit_code = code

    def _over(self) -> None:
        """The run is proven over and recorded: let go of its descriptors."""
        if self._watch is not None and self._state.run is None:
            self._watch.close()
            self._watch = None

    def _terminate(self, target: Any, only_if_seq: int | None, seen: Seen) -> None:
        watch = self._watch
        assert watch is not None
        if only_if_seq is not None:
            root = watch.start.shim if watch.start is not None else None
            beat = see_beat(watch.folder.beat, run_id=watch.record.run_id, now_s=self._clock.monotonic(), shim=root)
            if not isinstance(beat, Known) or beat.value.beat.seq != only_if_seq:
                self._note("run_goes_on", "it beat at the last look before the stop: nothing was done")
                self._state = resumed(self._state, seen.now_s)
                return
        if target is None and watch.start is not None:
            target = watch.start.leader
        members = {process.id for process in watch.members()}
        if target is None or target not in members:
            self._note("signal_sent", "TERM was not sent: nobody is proven to be the one to get it")
            return
        sent = terminate(target)
        self._note("signal_sent", f"TERM to pid {target.pid}: {sent.value}", pid=target.pid, outcome=sent.value)

    def _kill(self) -> None:
        """One round; recorded before and after whenever it meets somebody new."""
        watch = self._watch
        assert watch is not None

        def look() -> tuple[Process, ...]:
            if watch.shim() is Shim.LOST:
                return watch.orphans(self._job.folders.run_lock).ours
            return watch.members()

        targets = look()
        pids = frozenset(process.id.pid for process in targets)
        news = bool(pids - self._killed)
        if news:
            names = ", ".join(f"{process.id.pid} {process.command}" for process in targets[:20])
            try:
                self._record([Record("run_killing", f"KILL to {names}", {"pids": sorted(pids)[:200]})])
            except RecordingError as error:
                self._say_trouble(f"{error}; nobody is killed unrecorded")
                return
            self._killed |= pids
        if not targets:
            return
        outcome = kill_round(look)
        if news:
            words = ", ".join(f"{process.id.pid} {sent.value}" for process, sent in outcome.outcomes[:20])
            self._note("run_killed", f"outcome of KILL: {words or 'nobody was left'}")

    # --- speaking and listening -----------------------------------------------------------------------------
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
            verified_s=self._verified_s,
            metrics_url=self._metrics_url,
        )
        with self._view_lock:
            self.view = view
        if self._metrics is not None:
            self._metrics.publish(view)
        if plan.rule == "gate closed" and seen.gates:
            words = "; ".join(gate.words for gate in seen.gates if not gate.open)
            if words != self._said_gate:
                self._said_gate = words
                self._screen.line("gate", f"closed: {words}")
        self._screen.live(live_line(view), seen.now_s)
        self._host.tend(self._watch, self._job.ledger)

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The control socket's questions; runs in its thread."""
        command = message.get("command")
        if command == "status":
            with self._view_lock:
                return {"ok": True, "status": status_record(self.view)}
        requests = {"relaunch": Request.RELAUNCH, "stop": Request.DRAIN, "stop-now": Request.STOP}
        if not isinstance(command, str) or command not in requests:
            known = ", ".join(["status", *requests])
            return {"ok": False, "error": f"command is {command!r}; known are {known}"}
        with self._view_lock:
            view = self.view
        if command == "relaunch" and view.state == Phase.HOLD.value and view.run is not None and view.run.alive:
            return {"ok": False, "error": f"run {view.run.number} does not end; {view.hold_reason}"}
        self.ask(requests[command])
        return {"ok": True, "state": view.state, "run": None if view.run is None else view.run.number}

    def ask(self, request: Request) -> None:
        """Hand the loop a request; from any thread, and from a signal handler."""
        self._requests.append(request)
        os.eventfd_write(self._wake, 1)

    def _listen_to_signals(self) -> None:
        def on_interrupt(_number: int, _frame: object) -> None:
            self._interrupts += 1
            if self._interrupts >= 3:
                self._exit_code = EXIT_FAILURE  # a person insists: leave everything as it is, it can be adopted
            self.ask(Request.DRAIN if self._interrupts == 1 else Request.STOP)

        def on_terminate(_number: int, _frame: object) -> None:
            self.ask(Request.DRAIN)

        def on_hangup(_number: int, _frame: object) -> None:
            self._screen.detach()

        signal.signal(signal.SIGINT, on_interrupt)
        signal.signal(signal.SIGTERM, on_terminate)
        signal.signal(signal.SIGHUP, on_hangup)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    # --- waiting --------------------------------------------------------------------------------------------
    def _patience_s(self) -> float:
        """How long until the next look, if nothing happens before."""
        period_s = self._policy.period_s
        match self._state.phase:
            case Phase.WEIGHING:
                return min(period_s, 0.02)
            case Phase.GATING:
                quick = not self._gates or (self._policy.level == 2 and self._choice is None)
                return min(period_s, 0.02 if quick else 1.0)
            case Phase.STOPPING:
                return min(period_s, 0.1)
            case Phase.RUNNING:
                run = self._state.run
                waiting = run is not None and run.level == 2 and not run.acknowledged
                starting = self._watch is not None and self._watch.start is None
                return min(period_s, 0.05 if waiting or starting else period_s)
            case Phase.BACKOFF:
                return max(0.0, min(period_s, self._state.retry_at_s - self._clock.monotonic()))
            case _:
                return period_s

    def _sleep(self, wait_s: float) -> None:
        """Until something ends, somebody asks, or the time is over."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for fd in [] if self._watch is None else self._watch.descriptors():
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(wait_s * 1000):
            if fd == self._wake:
                os.eventfd_read(self._wake)
