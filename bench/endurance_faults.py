"""The faults of the endurance run: those of the drills, and the death of the supervisor in the middle of anything.

Responsible for doing one fault to one job from outside, and for the words of the hold that must follow from it, if one
must. How most are made stands in watchdog/drills/making.py. Refuses to judge what comes of them: bench/audit.py does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from bench.campaign_bed import wait_for
from watchdog import contract
from watchdog.core.identity import ProcessId
from watchdog.drills import damage, making
from watchdog.drills import job as small
from watchdog.drills.bed import Bed, BedError
from watchdog.ledger import parse_line

BUDGET_WORDS = "in a row ended without a new checkpoint"  # right at any time, and counted anew by the audit
_ASKED_S = 15.0  # so long a supervisor may leave that was asked to; a command may reach the one after it
# A supervisor that was killed right after one of these has left the most behind.
_NEXT = ("run_ended", "run_weighed", "run_launching", "run_beats", "run_acknowledged")
_STOP = ("run_stopping", "stacks_kept", "signal_sending", "signal_sent", "run_killing", "run_killed", *_NEXT[:3])
_SHIM = ("run_stopping", "run_killing", "run_killed", *_NEXT[:3])
_ASKED = ("run_stopping", "signal_sending", "signal_sent", *_NEXT[:3])
_SPOILT = ("checkpoint_doubtful", "checkpoint_refused", "checkpoint_moved", *_NEXT)
_HELD = ("hold", *_NEXT[:3])


class Watching:
    """The eye of all jobs (bench/audit_eye.py), told what is done from outside; for use from several threads."""

    def __init__(self, orders: IO[bytes], answers: IO[bytes]) -> None:
        self._orders, self._answers = orders, answers
        self._lock = threading.Lock()

    def _say(self, *words: object) -> None:
        line = " ".join(str(word) for word in words)
        with self._lock:
            self._orders.write(line.encode() + b"\n")
            self._orders.flush()
            answer = self._answers.readline().decode().strip()
        if answer != " ".join(line.split()[:2]):
            raise BedError(f"the eye answered {answer!r} to {line!r}")

    def begin(self, job: str) -> None:
        self._say("begin", job)

    def struck(self, job: str, pid: int, number: int) -> None:
        self._say("struck", job, pid, int(number), round(time.monotonic(), 4))

    def end(self, job: str) -> None:
        self._say("end", job)


class WatchedBed(Bed):
    """A bed of a drill that says beforehand whom it is about to signal."""

    watching: Watching

    def events(self) -> list[dict[str, Any]]:
        """What is a record; lines that are none are the audit's to judge."""
        try:
            lines = (self.state / "ledger.jsonl").read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        parsed = ((line, parse_line(line)) for line in lines)
        return [{**json.loads(line), "data": dict(event.data)} for line, event in parsed if event is not None]

    def strike(self, identity: ProcessId, number: signal.Signals = signal.SIGKILL) -> None:
        self.watching.struck(self.root.name, identity.pid, number)
        super().strike(identity, number)

    def kill_supervisor(self, supervisor: Any) -> None:
        self.watching.struck(self.root.name, supervisor.pid, signal.SIGKILL)
        super().kill_supervisor(supervisor)


class Tail:
    """What was added to a ledger since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.last_hold = ""

    def new(self) -> list[str]:
        """The kinds of the records since then, whole lines only."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        kinds = []
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            kinds.append(str(record["event"]))
            if kinds[-1] == "hold":
                self.last_hold = str(record["data"]["reason"])
        return kinds


class Lessons:
    """The data of a job, of which so much is there as the job may train by now."""

    def __init__(self, path: Path, steps: int) -> None:
        self.path, self.whole = path, path.with_name("all-lessons.gz")
        small.write_data(self.whole, steps)
        self._lines = small.get_data(self.whole).splitlines(keepends=True)

    def reach(self, step: int) -> None:
        small.put_data(self.path, "".join(self._lines[:step]))


@dataclasses.dataclass(kw_only=True)
class Ring(making.Ring):
    """What a fault has to work with."""

    chance: random.Random
    tail: Tail
    may_leave_until_s: float = 0.0  # somebody has asked the supervisor to leave

    def told(self, pid: int, number: int) -> None:
        """The eye is to know that we do it."""
        assert isinstance(self.bed, WatchedBed)
        self.bed.watching.struck(self.bed.root.name, pid, number)


# --- faults that are no drill's -----------------------------------------------------------------------------------
def kill_shim_and_trainer(ring: making.Ring) -> None:
    for identity in (ring.run.shim_id, ring.trainer):
        ring.bed.strike(identity)


def relaunch(ring: making.Ring) -> None:
    """A person asks for it, and is not waited for."""
    _command(ring, "relaunch", "--no-wait")


def leave(ring: making.Ring) -> None:
    """A person asks the supervisor to save and leave; it is started again."""
    assert isinstance(ring, Ring)
    number = ring.chance.choice([signal.SIGINT, signal.SIGTERM])
    ring.may_leave_until_s = time.monotonic() + _ASKED_S
    ring.told(ring.supervisor.pid, number)
    ring.supervisor.send_signal(number)


def stop_at_once(ring: making.Ring) -> None:
    assert isinstance(ring, Ring)
    ring.may_leave_until_s = time.monotonic() + _ASKED_S
    _command(ring, "stop", "--now")


def _command(ring: making.Ring, *words: str) -> None:
    """A command of the watchdog beside everything else."""
    process = subprocess.Popen(
        ring.bed.command(*words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ring.bed.environment(),
        cwd="/",
        start_new_session=True,
    )
    ring.cleanup.callback(process.wait, 60)


def second_supervisor(ring: making.Ring) -> None:
    """Must leave with 4, unless the first one has just left by itself."""
    second = ring.bed.start()
    _soon(lambda: second.poll() is not None or ring.supervisor.poll() is not None, 30.0)
    if ring.supervisor.poll() is not None and second.poll() is None:
        ring.bed.kill_supervisor(second)
    elif second.poll() != 4:
        raise BedError(f"a second supervisor left with {second.returncode}, not with 4\n{ring.bed.tell()}")


def break_settings(ring: making.Ring) -> None:
    """A person who saves half an edit; the run dies meanwhile."""
    pid = ring.supervisor.pid
    _soon(
        lambda: any(event["data"]["pid"] == pid for event in ring.bed.kinds("supervisor_started")), 5.0
    )  # has read them
    text = ring.bed.config.read_text()
    ring.bed.config.write_text(text[: len(text) // 2] + "= [")
    try:
        ring.bed.strike(ring.trainer)
        _soon(lambda: _next_run(ring) or ring.supervisor.poll() is not None, 3.0)
    finally:
        ring.bed.config.write_text(text)


def _next_run(ring: making.Ring) -> bool:
    run = ring.bed.living()
    return run is not None and run.number > ring.run.number


def _step(manifest: Path) -> int:
    return int(manifest.name.removesuffix(contract.MANIFEST_SUFFIX).removeprefix("step-"))


def _newest(ring: making.Ring) -> Path | None:
    """The newest manifest, if it was verified and two older ones that were can be gone back to."""
    known = {event["data"]["step"] for event in ring.bed.kinds("checkpoint_verified")}
    there = sorted(ring.bed.checkpoints.glob("step-*" + contract.MANIFEST_SUFFIX), key=_step)
    older = [path for path in there[:-1] if _step(path) in known]
    # What nobody has verified cannot be told from what it is replaced by.
    return there[-1] if len(older) >= 2 and _step(there[-1]) in known else None


def spoil(how: Callable[[Path], None]) -> Callable[[making.Ring], None]:
    """The newest checkpoint, and the death of the trainer, which saves no more meanwhile."""

    def make(ring: making.Ring) -> None:
        ring.bed.strike(ring.trainer, signal.SIGSTOP)
        newest = _newest(ring)
        if newest is not None:
            with contextlib.suppress(FileNotFoundError, contract.ContractError):
                how(newest)
        ring.bed.strike(ring.trainer)

    return make


def swap_before_load(ring: making.Ring) -> None:
    """After the next run was launched from it, before that has loaded it, if the moment is met."""
    ring.bed.strike(ring.trainer, signal.SIGSTOP)
    newest = _newest(ring)
    ring.bed.strike(ring.trainer)
    if newest is not None and _soon(lambda: _next_run(ring) or ring.supervisor.poll() is not None, 3.0):
        with contextlib.suppress(FileNotFoundError, contract.ContractError):
            damage.replace(newest)


def newest_step(ring: making.Ring) -> int:
    """As far as the job is, by its checkpoints and by its beat."""
    beat = ring.run.beat()
    saved = [_step(path) for path in ring.bed.checkpoints.glob("step-*" + contract.MANIFEST_SUFFIX)]
    return max(0, *saved, 0 if beat is None or beat.step is None else beat.step)


def spoil_a_lesson(ring: making.Ring) -> None:
    """One that is still to come, from wherever the run may go on."""
    at = 3 + newest_step(ring)
    lines = small.get_data(ring.data).splitlines()
    ring.kept["data"] = "\n".join(lines) + "\n"
    lines[at] = f"{at + 1} rubbish"
    small.put_data(ring.data, "\n".join(lines) + "\n")


def remove_beats(ring: making.Ring) -> None:
    with contextlib.suppress(FileNotFoundError):
        making.remove_beats(ring)


def end_holder(ring: making.Ring) -> None:
    assert isinstance(ring, Ring)
    ring.told(ring.kept["holder"].pid, signal.SIGKILL)
    making.end_holder(ring)


def fill_disk(ring: making.Ring) -> None:
    """Full until a person has made room: the gates are given up before that."""
    assert ring.disk is not None
    ring.disk.fill()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """`hold`: words of the hold that must follow, lifted by a person after `mend`. `spots`: after which records the
    supervisor may be killed on top of it; none: it is not. `weight`: how often it is drawn."""

    make: Callable[[making.Ring], None]
    hold: str = ""
    mend: Callable[[making.Ring], None] | None = None
    spots: tuple[str, ...] = ()
    weight: int = 4
    shim: bool = False  # the shim dies of it
    beats: bool = False  # nothing follows for a run whose beats cannot be read: to be blind is no reason to end it
    disk: bool = False  # only on a disk of its own
    plain: bool = False  # only where the checkpoints lie on an ordinary disk


FAULTS: dict[str, Fault] = {
    "kill trainer": Fault(make=making.signalled(signal.SIGKILL), spots=_NEXT, weight=8),
    "segv trainer": Fault(make=making.signalled(signal.SIGSEGV), spots=_NEXT),
    "term trainer": Fault(make=making.signalled(signal.SIGTERM), spots=_NEXT),
    "cpu limit": Fault(make=making.signalled(signal.SIGXCPU), spots=_NEXT, weight=2),
    "stop trainer": Fault(make=making.signalled(signal.SIGSTOP), spots=_STOP, beats=True, weight=8),
    "kill shim": Fault(make=making.kill_shim, spots=_SHIM, shim=True),
    "kill shim and trainer": Fault(make=kill_shim_and_trainer, spots=_SHIM, shim=True),
    "ghost": Fault(make=making.ghost, spots=_SHIM, shim=True),
    "kill supervisor": Fault(make=making.kill_supervisor, weight=8),
    "kill supervisor and trainer": Fault(make=making.kill_supervisor_and_trainer, weight=6),
    "kill supervisor and shim": Fault(make=making.kill_supervisor_and_shim, shim=True),
    "kill everybody": Fault(make=making.kill_everybody, shim=True),
    "freeze everybody": Fault(make=making.freeze_everybody, weight=2),
    "second supervisor": Fault(make=second_supervisor, weight=2),
    "torn ledger": Fault(make=making.tear_ledger),
    "relaunch": Fault(make=relaunch, spots=_ASKED, weight=6),
    "leave": Fault(make=leave, spots=(*_ASKED, "supervisor_leaving"), weight=6),
    "stop at once": Fault(make=stop_at_once, spots=(*_SHIM, "supervisor_leaving"), weight=2),
    **{
        f"checkpoint {name}": Fault(make=spoil(how), spots=_SPOILT, weight=2)
        for name, (_, how) in damage.DAMAGES.items()
        if name != "unlisted"  # without its manifest it is no checkpoint any more, which no record tells
    },
    "checkpoint swapped": Fault(make=swap_before_load, weight=2),
    "beats gone": Fault(make=remove_beats, weight=2),
    "beats garbled": Fault(make=making.garble_beats, weight=2),
    "settings broken": Fault(make=break_settings, weight=2),
    "lock held": Fault(make=making.foreign_holder, hold="run.lock is held", mend=end_holder, spots=_HELD, weight=2),
    "error repeated": Fault(
        make=spoil_a_lesson,
        hold="twice the same: ValueError",
        mend=making.mend_data,
        spots=_HELD,
        weight=2,
    ),
    "data gone": Fault(make=making.remove_data, hold="data", mend=making.mend_data, spots=_HELD, weight=2),
    "read-only": Fault(
        make=making.read_only, hold="PermissionError", mend=making.writable, spots=_HELD, plain=True, weight=2
    ),
    "disk full": Fault(make=fill_disk, hold="disk", mend=making.free_disk, disk=True, weight=12),
}


def draw(chance: random.Random, *, child: bool, disk: bool) -> str:
    """A fault that a job can have: what outlives its shim may be a hold, by design, so a child's shim is left alone."""
    able = [
        name
        for name, fault in FAULTS.items()
        if not (child and fault.shim) and (disk or not fault.disk) and not (disk and fault.plain)
    ]
    return chance.choices(able, [FAULTS[name].weight for name in able])[0]


# --- moments ------------------------------------------------------------------------------------------------------
_PHASES = ("import", "load", "first_step", "train", "train", "save", "evaluate")
_ORDINARY = ("checkpoint_verified", "run_adopted", "run_stopping", "signal_sent", *_NEXT)


def await_moment(ring: Ring) -> str:
    """A moment that chance chose: any, right after a record of a kind, or in a phase of the run. Says which."""
    chance, how = ring.chance, ring.chance.random()
    if how < 0.4:
        _pass(ring, chance.uniform(0.0, 0.4))
        return "any"
    if how < 0.7:
        kind = chance.choice(_ORDINARY)
        return f"after {kind}" if _after_record(ring, kind, 1.5) else "any"
    phase = chance.choice(_PHASES)

    def there() -> bool:
        run = ring.bed.living()
        beat = None if run is None else run.beat()
        return ring.supervisor.poll() is not None or (beat is not None and beat.phase == phase)

    return f"in {phase}" if _soon(there, 1.5) and ring.supervisor.poll() is None else "any"


def ambush(ring: Ring, spots: Sequence[str]) -> str:
    """Kill the supervisor at an instant after a fault: soon, or right after a record of a drawn kind. Says when."""
    chance, moment = ring.chance, "after a while"
    if chance.random() < 0.7:
        kind = chance.choice(spots)
        if _after_record(ring, kind, 2.5):
            moment = f"after {kind}"
            _pass(ring, chance.choice([0.0, 0.0, chance.uniform(0.0, 0.02)]))
    else:
        _pass(ring, chance.uniform(0.0, 0.5))
    if ring.supervisor.poll() is not None:
        return ""
    ring.bed.kill_supervisor(ring.supervisor)
    return moment


def _after_record(ring: Ring, kind: str, timeout_s: float) -> bool:
    """Whether a record of that kind that nobody has looked at came while the supervisor lived."""
    seen = _soon(lambda: kind in ring.tail.new() or ring.supervisor.poll() is not None, timeout_s)
    return seen and ring.supervisor.poll() is None


def _soon(look: Callable[[], bool], timeout_s: float) -> bool:
    try:
        return wait_for(look, "a moment", timeout_s=timeout_s, every_s=0.002)
    except BedError:
        return False


def _pass(ring: Ring, seconds: float) -> None:
    """Time that passes, unless the supervisor leaves."""
    since_s = time.monotonic()
    _soon(lambda: time.monotonic() - since_s > seconds or ring.supervisor.poll() is not None, seconds + 1)
