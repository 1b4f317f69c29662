"""A little world for the decisions: a job on a host, lived through turn by turn, with a ledger kept in memory.

Responsible for plausible `Seen` values (what is seen follows from what is), for carrying plans out as the loop does
(records first, all or none; then the actions), and for the invariants that hold after every turn, whatever happens.
Refuses to decide: that is what is under test.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.unit.checks.standstill import standstill
from tests.unit.core.verdicts import judged
from watchdog.contract import PHASES, Acknowledgement, Beat, FileDigest
from watchdog.core.acknowledging import REFUSED
from watchdog.core.branching import branched
from watchdog.core.causes import Cause
from watchdog.core.choice import Checkpoint, Choice, Refusal, conclude_choice
from watchdog.core.choice import Known as KnownCheckpoint
from watchdog.core.decide import TRANSITIONS, decide, launched, resumed
from watchdog.core.facts import Absent, Fact, Known, Unknown
from watchdog.core.history import Event, History, fold
from watchdog.core.identity import Process, ProcessId
from watchdog.core.phase import Phase
from watchdog.core.restore import restore, run_state
from watchdog.core.runrecord import Expectation, RunRecord
from watchdog.core.seen import BeatSeen, EndSeen, Gate, Request, Seen, Shim, Trouble
from watchdog.core.smaller import halvings_for
from watchdog.core.state import (
    Action,
    Choose,
    KeepStacks,
    Kill,
    Launch,
    Leave,
    MakeRoom,
    Plan,
    Policy,
    Quarantine,
    Record,
    Room,
    RunState,
    State,
    Terminate,
)
from watchdog.core.verdict import Verdict
from watchdog.core.watching import LOOK_AGAIN_S

LEADER = ProcessId(500, 7000)
BEATER = ProcessId(501, 7001)
BOOT = "boot"
OPEN = (Gate(name="memory", open=True, words="memory 4.0 ≥ 1.0 GiB"),)
CLOSED = (Gate(name="memory", open=False, words="memory 0.50 < 1.0 GiB"),)
SHORT = (Gate(name="memory", open=False, words="memory 0.90 < 1.0 GiB", short=True),)
TARGET = 100
FAKED = standstill("nobody works")
_AT_REST = (Phase.HOLD, Phase.LEFT, Phase.FINISHED)  # where a budget that is spent leads


def digest_of(step: int, version: int = 0) -> str:
    """A digest as long as a real one."""
    return f"{step:06x}{version:02x}" * 8


def make_policy(**changes: Any) -> Policy:
    values: dict[str, Any] = {
        "level": 2,
        "target_step": TARGET,
        "deadlines_s": {phase: 60.0 for phase in ("start", *PHASES)} | {"drain": 120.0},
        "period_s": 2.0,
        "grace_s": 15.0,
        "kill_wait_s": 20.0,
        "failure_limit": 3,
        "backoff_s": 5.0,
        "backoff_limit_s": 60.0,
        "gate_wait_s": 300.0,
        "leave_on_hold": True,
    }
    return Policy(**(values | changes))


def make_checkpoint(step: int, version: int = 0, **changes: Any) -> Checkpoint:
    values: dict[str, Any] = {
        "step": step,
        "digest": digest_of(step, version),
        "manifest": f"/c/step-{step}.manifest.json",
        "run_id": "1-a",
        "target_step": TARGET,
    }
    return Checkpoint(**(values | changes))


def ledgers_word(checkpoint: Checkpoint) -> KnownCheckpoint:
    """As the ledger knows it."""
    return KnownCheckpoint(step=checkpoint.step, digest=checkpoint.digest, run_id=checkpoint.run_id)


def chosen(step: int | None, *, first_start: bool = False, refused: tuple[Refusal, ...] = ()) -> Choice:
    if step is None:
        return conclude_choice(chosen=None, refused=refused, ever_knew=not first_start)
    return conclude_choice(chosen=make_checkpoint(step), refused=refused, ever_knew=True)


def make_beat(
    now_s: float, *, run_id: str = "1-a", seq: int = 1, alive: bool = True, **changes: Any
) -> Known[BeatSeen]:
    values: dict[str, Any] = {"phase": "train", "step": 5, "pid": 501, "start_ticks": 7001, "target_step": TARGET}
    beat = Beat(seq=seq, monotonic_s=now_s, run_id=run_id, **(values | changes))
    return Known(BeatSeen(beat=beat, alive=alive, stopped=False), now_s)


def make_run(**changes: Any) -> RunState:
    values: dict[str, Any] = {
        "number": 1,
        "run_id": "1-a",
        "level": 2,
        "expectation": Expectation(fresh=False, step=10, digest=digest_of(10)),
        "baseline_step": 10,
        "launched_s": 0.0,
        "grace_from_s": 0.0,
        "acknowledged": True,
    }
    return RunState(**(values | changes))


def running(now_s: float = 0.0, **changes: Any) -> State:
    return State(phase=Phase.RUNNING, since_s=now_s, run=make_run(**changes))


def acknowledgement(
    step: int, *, digest: str | None = None, run_id: str = "1-a", fresh: bool = False
) -> Acknowledgement:
    files = () if fresh else (FileDigest(name="model.pt", size_bytes=1, sha256=digest or digest_of(step)),)
    return Acknowledgement(run_id=run_id, pid=501, fresh=fresh, step=step, files=files)


def said(ack: Acknowledgement, now_s: float = 0.0) -> Known[Acknowledgement]:
    """An acknowledgement that could be read."""
    return Known(ack, now_s)


def acknowledged(run_id: str, step: int = 10) -> Record:
    data = {"run_id": run_id, "step": step, "digest": digest_of(step), "fresh": False}
    return Record("run_acknowledged", "restored", data)


def member(pid: int = 501, state: str = "S", command: str = "python") -> Process:
    return Process(id=ProcessId(pid, 7001), ppid=500, session=500, state=state, command=command)


def events_of(records: tuple[Record, ...] | list[Record], seq: int = 0, now_s: float | None = None) -> list[Event]:
    return [
        Event(
            seq=number,
            wall_s=float(number),
            kind=record.kind,
            sentence=record.sentence,
            data=dict(record.data),
            monotonic_s=now_s,
            boot_id=None if now_s is None else BOOT,
        )
        for number, record in enumerate(records, start=seq + 1)
    ]


def launching(number: int, run_id: str, baseline: int) -> Record:
    data = {"number": number, "run_id": run_id, "baseline_step": baseline, "resume_step": None, "digest": None}
    return Record("run_launching", f"run {number} starts", data)


def run_record(number: int, run_id: str, baseline: int, expectation: Expectation, level: int = 2) -> RunRecord:
    return RunRecord(
        run_id=run_id,
        number=number,
        job="job",
        boot_id="boot",
        pid_namespace="pid:[1]",
        started_ticks=6000,
        started_wall_s=1.0,
        folder=f"/s/{run_id}",
        level=level,
        baseline_step=baseline,
        expectation=expectation,
    )


@dataclasses.dataclass
class Living:
    """A run as it really is, whoever looks."""

    record: RunRecord
    shim: Shim = Shim.ALIVE
    leader: bool = True
    others: int = 0  # members beside the leader
    stubborn: bool = False  # survives KILL (state D)
    doomed: bool = False  # its KILL waits for it
    deaf: bool = False  # survives TERM
    end: EndSeen | None = None
    seq: int = 0
    step: int = -1
    phase: str = "import"
    beat_s: float | None = None
    unbelievable: bool = False
    beat_gone: bool = False  # its beat file was removed after it had beaten
    acknowledgement: Acknowledgement | None = None
    unreadable: bool = False  # its acknowledgement, for now
    suspects: int = 0  # strangers of whom nobody can tell whether they belong to it, should the shim die
    termed: bool = False
    fakes: bool = False  # it beats, and says for long that it trains at one step
    work: str = "nobody works"  # who works for it then, a key of standstill.WORK

    @property
    def lives(self) -> bool:
        return self.leader or self.others > 0 or self.shim is Shim.ALIVE

    def die(self, cause: Cause, words: str, *, permanent: bool = False, fault: str | None = None) -> None:
        if not self.leader:
            return
        self.leader = False
        self.end = EndSeen(cause=cause, words=words, permanent=permanent, error="RuntimeError: boom", fault=fault)
        self.settle()

    def settle(self) -> None:
        """The shim ends when nobody is left."""
        if not self.leader and self.others == 0 and self.shim is Shim.ALIVE:
            self.shim = Shim.ENDED


EVENTS = (
    "turn", "turn", "turn", "step", "step", "step", "save", "later", "much later", "die", "die", "segfault",
    "permanent end", "finish", "early exit", "child stays", "child goes", "shim killed", "unbelievable beat",
    "believable beat", "fresh start", "wrong restore", "no acknowledgement", "gap", "long gap", "disk full",
    "disk free", "memory short", "memory free", "drain", "stop", "relaunch", "corrupt newest", "restart", "restart",
    "stubborn", "deaf", "verifier fails", "beat file gone", "beat file back", "acknowledgement damaged",
    "acknowledgement readable", "suspect", "suspects go", "memory cached", "room made", "memory runs out", "code error",
    "hand saves", "hand saves", "code error", "relaunch afresh", "go back", "go back", "stacks kept",
    "kernel lets go", "device memory runs out", "fakes", "trains", "nobody works", "device works", "cpu works",
    "work unseen",
)  # fmt: skip


class World:
    """Feed it names from EVENTS; it asserts after every turn."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now_s = 1000.0
        self.events: list[Event] = []
        self.history = History()
        self.state = self.restored(None)
        self.living: Living | None = None
        self.disk: dict[int, Checkpoint] = {}
        self.bad: set[int] = set()
        self.ever_saved = False
        self.choice: Choice | None = None
        self.choice_due = True
        self.choice_error: str | None = None
        self.refuses_records = False
        self.gates = OPEN
        self.stacks_over = True
        self.room: bool | None = None  # the try to make room is over; None: none was begun
        self.request: Request | None = None
        self.gap = False
        self.left: int | None = None
        self.manner = "right"  # how the next acknowledgement is given
        self.launches_without_progress = 0
        self.quiet_from_s = self.now_s  # every grace began anew here
        self.beat_was_seen = False  # by this supervisor, of this run
        self.proven: set[str | None] = set()  # runs that truly restored what they should have, and said so
        self.listed: frozenset[Checkpoint] = frozenset()  # what lay there when it was chosen
        self.trouble: Trouble | None = None
        self.rules: set[str] = set()
        self.verdict: Verdict | None = None

    # --- what happens -------------------------------------------------------------------------------------
    def happen(self, event: str) -> None:
        living = self.living
        self.now_s += 0.5
        match event:
            case "later":
                self.now_s += 3.0
            case "much later":
                self.now_s += 70.0
            case "gap" | "long gap":
                self.now_s += 7.0 if event == "gap" else 4000.0
                self.gap = True
                self.quiet_from_s = self.now_s
            case "disk full" | "disk free":
                self.refuses_records = event == "disk full"
            case "memory short" | "memory free" | "memory cached":
                self.gates = {"memory short": CLOSED, "memory free": OPEN, "memory cached": SHORT}[event]
            case "room made" if self.room is not None:
                self.room = True
            case "stacks kept":
                self.stacks_over = True
            case "drain" | "stop" | "relaunch" | "relaunch afresh":
                self.request = Request[event.upper().replace(" ", "_")]
            case "go back":
                self.go_back()
            case "hand saves" if living is None or not living.lives:
                self.save_by_hand()
            case "corrupt newest":
                self.bad |= {max(self.disk)} if self.disk else set()
            case "verifier fails":
                self.choice_error = "I/O error"
            case "restart":
                self.restart()
            case "fresh start" | "wrong restore" | "no acknowledgement":
                self.manner = event
        if living is not None:
            self.happen_to(living, event)
        if self.left is None:
            self.turn()

    def happen_to(self, living: Living, event: str) -> None:
        match event:
            case "step" if living.leader:
                self.step(living)
            case "save" if living.leader and living.step >= 0:
                self.save(living, living.step)
            case "die":
                living.die(Cause.EXITED, "exit 1")
            case "memory runs out":
                living.die(Cause.HOST_MEMORY, "exit 1: host memory ran out", fault="MemoryError at t.py:3 in load")
            case "device memory runs out":
                living.die(Cause.CUDA_OUT_OF_MEMORY, "exit 1: device memory ran out")
            case "code error":
                living.die(Cause.CODE_ERROR, "exit 1: the program failed", fault="TypeError at t.py:7 in step")
            case "segfault":
                living.die(Cause.SIGNALLED, "died of SIGSEGV, which was not ours")
            case "permanent end":
                living.die(Cause.EXITED, "the trainer says that its data cannot be used", permanent=True)
            case "finish" if living.leader and living.acknowledgement is not None:
                if self.policy.level == 2:
                    living.step = TARGET
                    self.save(living, TARGET)
                living.die(Cause.FINISHED, "exit 0")
            case "early exit":
                living.die(Cause.FINISHED, "exit 0")
            case "child stays" if living.leader:
                living.others += 1
            case "child goes" if living.others:
                living.others -= 1
                living.settle()
            case "shim killed" if living.shim is Shim.ALIVE:
                living.shim = Shim.LOST
            case "unbelievable beat" | "believable beat":
                living.unbelievable = event == "unbelievable beat"
            case "beat file gone" | "beat file back":
                living.beat_gone = event == "beat file gone"
            case "acknowledgement damaged" | "acknowledgement readable":
                living.unreadable = event == "acknowledgement damaged"
            case "suspect" | "suspects go":
                living.suspects = living.suspects + 1 if event == "suspect" else 0
            case "stubborn":
                living.stubborn = True
            case "kernel lets go":
                living.stubborn = False
                if living.doomed:
                    living.others = 0
                    living.die(Cause.SIGNALLED, "died of SIGKILL, which was not ours")
                    living.settle()
            case "deaf":
                living.deaf = True
            case "fakes" | "trains":
                living.fakes = event == "fakes"
            case "nobody works" | "device works" | "cpu works" | "work unseen":
                living.work = event

    def step(self, living: Living) -> None:
        """The trainer's own order: load, acknowledge, save step 0 at a first start, then steps."""
        living.seq += 1
        living.beat_s = self.now_s
        if living.phase == "import":
            living.phase = "load"
            return
        if living.phase == "load":
            expected = living.record.expectation
            self.acknowledge(living, expected)
            living.phase = "first_step"
            living.step = expected.step or 0
            if living.step not in self.disk:
                self.save(living, living.step)
            return
        living.phase = "train"
        living.step += not living.fakes

    def acknowledge(self, living: Living, expected: Expectation) -> None:
        manner, self.manner = self.manner, "right"
        run_id = living.record.run_id
        if manner == "no acknowledgement":
            return
        if manner == "right" or (manner == "fresh start" and expected.fresh):
            self.proven.add(run_id)
        if manner == "fresh start" or (expected.fresh and manner == "right"):
            living.acknowledgement = acknowledgement(0, run_id=run_id, fresh=True)
        elif manner == "wrong restore":
            living.acknowledgement = acknowledgement(expected.step or 0, digest="f" * 64, run_id=run_id)
        else:
            living.acknowledgement = acknowledgement(expected.step or 0, digest=expected.digest, run_id=run_id)

    def save(self, living: Living, step: int) -> None:
        if self.policy.level == 2:
            self.disk[step] = make_checkpoint(step, run_id=living.record.run_id)
            self.bad.discard(step)
            self.ever_saved = True

    def save_by_hand(self) -> None:
        """A person trains while no run lives, under the run lock; its bytes are as good as any."""
        if self.policy.level == 2:
            step = max(self.disk, default=-1) + 1
            self.disk[step] = make_checkpoint(step, run_id=None)
            self.bad.discard(step)
            self.proven.add(None)
            self.ever_saved = True
            self.launches_without_progress = 0

    def restored(self, living: RunRecord | None) -> State:
        """What a supervisor that began now would make of the ledger."""
        return restore(self.history, living, self.now_s, self.policy, wall_s=self.now_s, boot_id=BOOT)

    def go_back(self) -> None:
        """A person asks for the oldest step of those that stand: read back, recorded, and then followed."""
        good = sorted(step for step in self.disk if step not in self.bad and self.disk[step].run_id in self.proven)
        known = {(each.step, each.digest) for each in self.history.known}
        steps = [step for step in good if (step, self.disk[step].digest) in known]
        if not steps or self.refuses_records or self.left is not None:
            return
        self.record((branched(self.disk[steps[0]], by="a person", why="to see"),))
        if self.state.phase in (Phase.GATING, Phase.WEIGHING):
            self.choice, self.choice_error, self.choice_due = None, None, True
        self.request = Request.RELAUNCH

    # --- the loop -----------------------------------------------------------------------------------------
    def look(self) -> Seen:
        request, self.request = self.request, None
        gap, self.gap = self.gap, False
        trouble, self.trouble = self.trouble, None
        if self.choice_due and self.choice is None and self.choice_error is None:
            self.choose()
            choice = None  # it comes a turn later
        else:
            choice = self.choice
        seen = Seen(
            now_s=self.now_s,
            gap=gap,
            choice=choice,
            choice_error=self.choice_error,
            gates=self.gates,
            room_made=self.room is True,
            stacks_over=self.stacks_over,
            request=request,
            trouble=trouble,
        )
        living = self.living
        if living is None:
            return seen
        members = tuple(member(510 + number) for number in range(living.others))
        members += (member(LEADER.pid),) if living.leader else ()
        lost = living.shim is Shim.LOST
        beat = self.beat(living)
        self.beat_was_seen = self.beat_was_seen or isinstance(beat, Known)
        word: Fact[Acknowledgement] = Absent("no acknowledgement yet")
        if living.unreadable:
            word = Unknown("it is torn")
        elif living.acknowledgement is not None:
            word = Known(living.acknowledgement, self.now_s)
        return dataclasses.replace(
            seen,
            shim=living.shim,
            leader_alive=living.leader and not lost,
            end=living.end if not living.leader else None,
            members=members,
            unclear=tuple(member(900 + number) for number in range(living.suspects)) if lost else (),
            run_lock_free=(not members) if lost else None,
            beat=beat,
            acknowledgement=word,
            findings=(standstill(living.work),) if living.fakes and isinstance(beat, Known) else (),
            judged_s=self.now_s,
        )

    def beat(self, living: Living) -> Fact[BeatSeen]:
        if living.unbelievable:
            return Unknown("the beat file cannot be believed")
        if living.beat_s is None or living.beat_gone or self.policy.level == 0:
            return Absent("no beat yet")
        return make_beat(
            living.beat_s,
            run_id=living.record.run_id,
            seq=living.seq,
            alive=living.leader,
            phase=living.phase,
            step=None if living.step < 0 else living.step,
        )

    def choose(self) -> None:
        """The verifier: newest first, bad ones refused, what refused runs saved left alone."""
        refused: list[Refusal] = []
        line = self.history.line
        self.listed = frozenset(self.disk.values())
        for step in sorted(self.disk, reverse=True):
            checkpoint = self.disk[step]
            if line.abandons(ledgers_word(checkpoint)):
                continue
            if step in self.bad or checkpoint.run_id in self.history.refused_runs:
                refused.append(Refusal(manifest=checkpoint.manifest, step=step, why="it is not what it was"))
                continue
            self.choice = conclude_choice(chosen=checkpoint, refused=tuple(refused), ever_knew=True, line=line)
            if not self.refuses_records:
                data = {"step": step, "digest": checkpoint.digest, "run_id": checkpoint.run_id}
                self.record((Record("checkpoint_verified", "verified", data),))
            return
        ever = self.ever_saved or self.history.knew_checkpoint
        self.choice = conclude_choice(chosen=None, refused=tuple(refused), ever_knew=ever, line=line)

    def record(self, records: tuple[Record, ...]) -> None:
        events = events_of(records, len(self.events), self.now_s)
        self.events += events
        self.history = fold(events, self.history)

    def turn(self) -> None:
        before, seen = self.state, self.look()
        after, plan = decide(before, seen, self.policy)
        assert decide(before, seen, self.policy) == (after, plan), "the same input gives the same plan"
        self.rules.add(plan.rule)
        assert after.phase is before.phase or after.phase in TRANSITIONS[before.phase]
        self.check_plan(before, seen, after, plan)
        lives = self.living is not None and (self.living.leader or self.living.others > 0)
        launches, last = self.history.launches, self.verdict
        verdict = judged(before, seen, after, self.policy, launches=launches, lives=lives, last=last)
        if plan.records and self.refuses_records:
            if not (plan.actions and all(isinstance(action, Leave) for action in plan.actions)):
                self.trouble = seen.trouble
                return  # nothing of it is done, the state stays
        elif plan.records:
            self.record(plan.records)
        self.state, self.verdict = after, verdict
        for action in plan.actions:
            self.check_action(action)
            self.do(action, seen)
        self.check_memory()

    # --- invariants ---------------------------------------------------------------------------------------
    def check_plan(self, before: State, seen: Seen, after: State, plan: Plan) -> None:
        launches = [action for action in plan.actions if isinstance(action, Launch)]
        if launches:
            assert before.phase is Phase.GATING
            assert before.run is None
            assert before.room is not Room.UNDER_WAY, "cache is dropped under a run"
            assert self.living is None or not self.living.lives, "a launch while a run is alive"
            assert seen.gates
            assert all(gate.open for gate in seen.gates)
            (launch,) = launches
            if self.policy.level == 2:
                assert seen.choice is not None
                assert launch.checkpoint == seen.choice.chosen
                if launch.checkpoint is not None:
                    assert launch.checkpoint.run_id in self.proven, "resumed from what an unproven run had saved"
                    line = self.history.line
                    assert not line.abandons(ledgers_word(launch.checkpoint)), "from a branch that was left"
                    assert not line.is_below(launch.checkpoint.step), "further back than was asked for"
                if launch.checkpoint is None:
                    assert seen.choice.first_start
            assert plan.actions[-1] is launch
        if after.phase is Phase.STOPPING and before.phase is Phase.RUNNING:
            assert after.run is not None
            assert after.run.stop is not None
            if after.run.stop.faking:
                assert self.living is not None
                assert self.living.fakes
                assert self.living.work == "nobody works", "ended for a standstill, and it may work"
                assert self.verdict is not None
                assert "steps stand still" in dict(self.verdict.pending), "stopped for what one look has seen"
                assert seen.now_s > self.quiet_from_s, "stopped by what was seen before a gap"
            elif after.run.stop.cause is Cause.STALLED:
                assert not isinstance(seen.beat, Unknown), "unknown is never a reason to kill"
                assert isinstance(seen.beat, Known) or not self.beat_was_seen, "stopped for a beat file that is gone"
                beat = seen.beat.value.beat if isinstance(seen.beat, Known) else None
                deadline = self.policy.deadlines_s["start" if beat is None else beat.phase]
                assert seen.now_s - self.quiet_from_s > deadline, "stopped within the grace that a gap gives"
                assert seen.now_s - (before.run.stale_look_s if before.run else 0) >= LOOK_AGAIN_S
            if after.run.stop.cause in REFUSED:
                assert not isinstance(seen.acknowledgement, Unknown), "unknown is never a reason to kill"
                assert after.run.run_id not in self.proven, "a run that restored the right thing is stopped for it"
        self.check_end(seen, plan)
        for action in plan.actions:
            if isinstance(action, Leave):
                asked = before.wish.value == "leave" or seen.request in (Request.DRAIN, Request.STOP)
                assert after.phase is Phase.LEFT
                match action.code:
                    case 0:
                        assert before.phase is Phase.FINISHED
                    case 3:
                        assert before.phase is Phase.HOLD
                    case 5:
                        assert asked
                    case other:
                        raise AssertionError(f"exit code {other}")

    def check_end(self, seen: Seen, plan: Plan) -> None:
        """What is written down of a run that is over."""
        kinds = [record.kind for record in plan.records]
        for record in plan.records:
            if record.kind != "run_ended":
                continue
            run_id = record.data["run_id"]
            if self.policy.level == 2 and run_id not in self.proven:
                assert record.data["cause"] != "finished", "an unproven run counts as finished"
                known = run_id in self.history.refused_runs
                assert known or kinds.index("run_refused") < kinds.index("run_ended"), "an unproven run is not refused"
            if seen.shim is Shim.LOST:
                assert not seen.members
                cleared = self.history.cleared == run_id or (seen.request is Request.RELAUNCH and "lifted" in kinds)
                assert cleared or not seen.unclear, "a run is called over beside a suspect that nobody has cleared"

    def check_action(self, action: Action) -> None:
        if isinstance(action, KeepStacks | Kill | Terminate):
            assert self.living is not None
            stopping = self.history.stopping
            assert stopping is not None, "a signal without a recorded reason"
            assert stopping["run_id"] == self.living.record.run_id
            assert stopping["reason"]

    def check_memory(self) -> None:
        """What the ledger remembers and what we hold agree, so a restart now would decide the same."""
        state, history = self.state, self.history
        if self.left is not None and self.refuses_records:
            return
        assert state.failures == history.failures
        assert (state.host_failures, state.fault) == (history.host_failures, history.fault)
        assert max(state.failures, state.host_failures) < self.policy.failure_limit or state.phase in _AT_REST
        assert (state.phase is Phase.HOLD) == (history.hold is not None) or state.phase is Phase.LEFT
        living = self.living.record if self.living is not None and history.open_run is not None else None
        again = self.restored(living)
        assert again.failures == state.failures
        assert (again.host_failures, again.fault) == (state.host_failures, state.fault)
        assert again.batch_halvings == state.batch_halvings == history.batch_halvings
        assert (again.run is None) == (state.run is None)
        if state.phase is Phase.BACKOFF and state.retry_at_s > self.now_s:
            assert (again.phase, again.retry_at_s) == (Phase.BACKOFF, state.retry_at_s), "dying is a way around a wait"
        elif state.phase not in (Phase.LEFT, Phase.BACKOFF):
            # A stop for a stall is judged anew after a restart: the run may beat again.
            stall = state.run is not None and state.run.stop is not None and state.run.stop.cause is Cause.STALLED
            assert again.phase is state.phase or (stall and again.phase is Phase.RUNNING)
        assert again.ended == state.ended or state.phase not in (Phase.WEIGHING,)

    # --- doing --------------------------------------------------------------------------------------------
    def do(self, action: Action, seen: Seen) -> None:
        match action:
            case Choose():
                self.choice = self.choice_error = None
                self.choice_due = True
                if self.state.run is None:
                    self.living = None
            case Launch(checkpoint):
                self.launch(checkpoint)
            case MakeRoom():
                assert self.living is None or not self.living.lives, "cache is dropped under a run"
                self.room = False
            case KeepStacks():
                self.stacks_over = False
            case Terminate():
                run = self.state.run
                if run is not None and run.stop is not None and run.stop.faking:
                    assert self.living is not None
                    assert (self.living.fakes, self.living.work) == (True, "nobody works"), "ended, and it may work"
                self.terminate(action, seen)
            case Kill():
                self.kill()
            case Quarantine(refused):
                for refusal in refused:
                    if refusal.step is not None:
                        self.disk.pop(refusal.step, None)
                if self.choice is not None:
                    self.choice = dataclasses.replace(self.choice, refused=())
            case Leave(code):
                self.left = code

    def launch(self, checkpoint: Checkpoint | None) -> None:
        if self.refuses_records:
            return
        there = frozenset(self.disk.values())
        if self.policy.level == 2 and (there - self.listed or not {checkpoint} <= {*there, None}):
            self.trouble = Trouble(words="saved since the checkpoints were verified", passing=True)
            return  # as is looked at under the run lock
        number = self.history.last_number + 1
        baseline = -1 if checkpoint is None else checkpoint.step
        if self.policy.level == 2 and checkpoint is None:
            assert not self.ever_saved, "a first start after a checkpoint"
        if checkpoint is not None:
            assert checkpoint.step not in self.bad or self.disk.get(checkpoint.step) == checkpoint
        expectation = Expectation(
            fresh=checkpoint is None,
            step=None if checkpoint is None else checkpoint.step,
            digest=None if checkpoint is None else checkpoint.digest,
        )
        record = run_record(number, f"{number}-x", baseline, expectation, self.policy.level)
        halvings = halvings_for(self.history.batch_halvings, limit=self.policy.shrink_batch, same_command=True)
        order = launching(number, record.run_id, baseline)
        self.record((dataclasses.replace(order, data={**order.data, "batch_halvings": halvings}),))
        self.state = dataclasses.replace(self.state, batch_halvings=halvings)
        self.launches_without_progress += 1
        # Two ledgers, the trainer's and the host's: the last launch is that of one with all but one of the other spent.
        assert self.launches_without_progress <= 2 * self.policy.failure_limit - 1, "the budgets were overspent"
        self.living = Living(record=record)
        self.state = launched(self.state, run_state(record, self.now_s), self.now_s)
        self.quiet_from_s = self.now_s
        self.beat_was_seen = False
        self.choice = None

    def terminate(self, order: Terminate, seen: Seen) -> None:
        living = self.living
        assert living is not None
        assert order.only_if_seq is None or order.look_again
        unseen = isinstance(seen.beat, Unknown)
        if order.look_again and (unseen or (living.seq or None) != order.only_if_seq):
            self.record((Record("run_goes_on", "it beat"),))
            self.state = resumed(self.state, self.now_s)
            return
        if not living.deaf and not living.stubborn and living.leader:
            if living.step >= 0 and living.acknowledgement is not None and self.policy.level == 2:
                self.save(living, living.step)
            living.die(Cause.FINISHED, "exit 0")

    def kill(self) -> None:
        living = self.living
        assert living is not None
        if living.stubborn:
            living.doomed = True
            return
        living.others = 0
        living.die(Cause.SIGNALLED, "died of SIGKILL, which was not ours")
        living.settle()

    def restart(self) -> None:
        """The supervisor dies and another one begins, with what the ledger remembers."""
        if self.left is not None:
            self.refuses_records = False  # somebody made room and started it again
        self.left = None
        living = self.living if self.history.open_run is not None else None
        self.living, self.verdict = living, None
        self.request = self.trouble = None
        self.choice, self.choice_error, self.choice_due = None, None, True
        self.state = self.restored(None if living is None else living.record)
        owed = living is not None and self.history.line.abandons_run(living.record.run_id)
        if owed and self.state.hold is None:
            self.request = Request.RELAUNCH
        self.quiet_from_s = self.now_s
        self.beat_was_seen = False
        if self.history.finished is not None and living is None:
            assert self.state.phase in (Phase.FINISHED, Phase.HOLD)
