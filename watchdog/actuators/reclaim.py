"""Telling the kernel to give memory back: the only code that writes to the files which reclaim.

Responsible for one step after the other, each in a disposable child with a deadline (a write to `memory.reclaim` may
block for minutes, `drop_caches` cannot be interrupted), for looking again before each, and for what was freed.
Refuses to choose (core/reclaiming.py plans), to record (who calls does, before and after), and a global sync: it would
wait for every network mount, so only the job's own native file systems are synced.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from watchdog.clock import Clock
from watchdog.collectors.child import DisposableChild
from watchdog.collectors.filesystems import locate
from watchdog.collectors.reclaimable import HELPER, read_layout
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Unknown
from watchdog.core.figures import gib
from watchdog.core.reclaiming import Goal, How, Layout, Plan, Step, plan
from watchdog.units import format_size

STEP_S = 20.0  # for one step
ALL_S = 60.0  # for all of them: after that none is begun
_CHUNK_BYTES = 256 * 1024**2  # what was reclaimed before the deadline is kept
_SUDO = "/usr/bin/sudo"
_WHAT = {How.FORCE_EMPTY: "0", How.DROP_CACHES: "3", How.COMPACT: "1"}

# Its first lines are `child.end_after`, written out: a child that imports nothing of ours is up in 10 ms. syncfs is
# not in `os`. The helper is exec'd, so that the alarm goes with it.
_CHILD = """
import errno, json, os, signal, sys
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))
order = json.loads(sys.argv[1])
if order["sync"]:
    import ctypes
    for path in order["sync"]:
        try:
            fd = os.open(path, os.O_RDONLY)
            ctypes.CDLL(None).syncfs(fd)
            os.close(fd)
        except OSError:
            pass
if order["helper"]:
    os.execv(order["helper"][0], order["helper"])
def tell(text):
    fd = os.open(order["path"], os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
left, code, plain = order["amount"], 0, False
try:
    if order["what"]:
        tell(order["what"])
    while left > 0:
        part = min(left, order["chunk"])
        try:
            tell(str(part) if plain else f"{part} swappiness=0")
        except OSError as error:
            if error.errno != errno.EINVAL or plain:
                raise
            plain = True
            continue
        left -= part
except OSError as error:
    code = error.errno
print(json.dumps({"errno": code, "asked": order["amount"] - left, "plain": plain}))
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What became of one step. `freed_bytes`: by how much the host's MemFree grew meanwhile, whoever freed it."""

    step: Step
    words: str
    failed: bool
    freed_bytes: int
    duration_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A reclaim that is over: what was planned, done and seen."""

    goal: Goal
    plan: Plan
    before: Layout
    after: Layout
    done: tuple[Done, ...] = ()
    note: str = ""  # why it stopped before its steps were all tried

    @property
    def met(self) -> bool:
        return self.goal.is_met(self.after)

    @property
    def freed_bytes(self) -> int:
        """Of the guest: by how much MemFree grew. What Windows got of it cannot be seen from here."""
        return max(0, self.after.host_free_bytes - self.before.host_free_bytes)

    @property
    def refused(self) -> tuple[Step, ...]:
        """The steps that this user may not take."""
        return tuple(done.step for done in self.done if not done.step.permitted)


def as_root(target_bytes: int) -> str:
    """The one command that would be permitted everything."""
    return f"sudo {shlex.quote(str(Path(sys.executable).parent / 'watchdog'))} reclaim --target {_size(target_bytes)}"


def _size(size_bytes: int) -> str:
    return format_size(-(-size_bytes // 1024**2) * 1024**2)  # whole MiB, upwards: people read it


class Reclaimer:
    """For one caller at a time. `look` and `act` block, `act` for ALL_S and one step at most: not for the loop."""

    def __init__(
        self,
        roots: Roots,
        clock: Clock,
        *,
        sync: Sequence[str | os.PathLike[str]],
        helper: str = HELPER,
        sudo: str = _SUDO,
    ) -> None:
        """`sync`: paths of the job, whose file systems are synced before clean pages are dropped."""
        self._roots = roots
        self._clock = clock
        self._sync = sync
        self._helper = helper
        self._sudo = sudo
        self._child = DisposableChild("the kernel, asked to give memory back", clock)

    def look(self) -> Layout:
        """Raises OSError, ValueError."""
        return read_layout(self._roots, helper=self._helper)

    def act(
        self,
        goal: Goal,
        before: Layout,
        *,
        run_lives: Callable[[], bool] | None = None,
        step_s: float = STEP_S,
        all_s: float = ALL_S,
    ) -> Outcome:
        """Take the planned steps until the goal is met. `run_lives` is asked again before each. Raises OSError."""
        started_s = self._clock.monotonic()
        first, now, note = plan(before, goal), before, ""
        done: list[Done] = []
        while True:
            if run_lives is not None:
                goal = Goal(
                    target_bytes=goal.target_bytes, free=goal.free, run_lives=run_lives(), beside_run=goal.beside_run
                )
            steps = plan(now, goal, frozenset((each.step.how, each.step.path) for each in done)).steps
            if not steps:
                break
            if self._clock.monotonic() - started_s > all_s:
                note = f"no step was begun after {all_s:.0f} s"
                break
            result, now = self._take(steps[0], now, step_s)
            done.append(result)
        return Outcome(goal=goal, plan=first, before=before, after=now, done=tuple(done), note=note)

    def _take(self, step: Step, before: Layout, step_s: float) -> tuple[Done, Layout]:
        began_s = self._clock.monotonic()
        failed, words = (True, self._forbidden(step)) if not step.permitted else self._tell(step, step_s)
        after = self.look()
        freed = max(0, after.host_free_bytes - before.host_free_bytes)
        took_s = self._clock.monotonic() - began_s
        return Done(step=step, words=words, failed=failed, freed_bytes=freed, duration_s=took_s), after

    def _forbidden(self, step: Step) -> str:
        if os.geteuid() == 0:
            return f"{step.path} is read-only here, also for root (a container?): reclaim outside of it"
        return f"uid {os.geteuid()} may not write {step.path}"

    def _tell(self, step: Step, step_s: float) -> tuple[bool, str]:
        """Failed, and what is to be said of it."""
        helper: list[str] = []
        if step.how in (How.DROP_CACHES, How.COMPACT) and not os.access(step.path, os.W_OK):
            helper = [self._sudo, "-n", self._helper, step.how.value]
        order = {
            "path": step.path,
            "what": _WHAT.get(step.how, ""),
            "amount": step.amount_bytes,
            "chunk": _CHUNK_BYTES,
            "sync": self._synced() if step.how is How.DROP_CACHES else [],
            "helper": helper,
        }
        try:
            argv = [sys.executable, "-I", "-S", "-c", _CHILD, json.dumps(order), repr(step_s)]
            answer = self._child.ask(argv, step_s)
        except OSError as error:
            return True, f"no child could be started for it: {error.strerror}"
        if isinstance(answer, Unknown):
            hint = f"; is the line of {self._helper} in sudoers?" if helper and "ended with code" in answer.why else ""
            return True, answer.why + hint
        return (False, "done by the helper") if helper else _said(step, json.loads(answer))

    def _synced(self) -> list[str]:
        """Existing folders on native file systems: a lookup on another may hang."""
        found = []
        for path in self._sync:
            try:
                system = locate(path, self._roots.proc)
            except (OSError, ValueError):
                continue
            if system.safe and not system.read_only:
                found.append(system.existing)
        return found


def _said(step: Step, answer: dict[str, Any]) -> tuple[bool, str]:
    """The kernel's answer in words. EAGAIN: less came back than was asked for, which is no failure."""
    code, how = int(answer["errno"]), ""
    if step.how is How.RECLAIM and answer["plain"]:
        how = ", without swappiness=0, which this kernel does not know"
    if code == 0:
        return False, f"done{how}"
    if code == errno.EAGAIN:
        return False, f"partly: the kernel gave less than {gib(step.amount_bytes)} GiB back (EAGAIN){how}"
    return True, f"refused: {os.strerror(code)} ({errno.errorcode.get(code, code)}){how}"


# --- for records and people ---------------------------------------------------------------------------------
def layout_record(layout: Layout) -> dict[str, Any]:
    """The figures of a moment, bytes."""
    tightest = layout.tightest
    return {
        "available_bytes": layout.available_bytes,
        "host_available_bytes": layout.host_available_bytes,
        "free_bytes": layout.free_bytes,
        "host_free_bytes": layout.host_free_bytes,
        "cached_bytes": layout.cached_bytes,
        "tightest_cgroup": None if tightest is None else tightest.path,
        "tightest_cgroup_free_bytes": None if tightest is None else tightest.free_bytes,
    }


def outcome_record(outcome: Outcome) -> dict[str, Any]:
    """For the ledger and for `--json`."""
    return {
        "target_bytes": outcome.goal.target_bytes,
        "of": "free" if outcome.goal.free else "available",
        "met": outcome.met,
        "freed_bytes": outcome.freed_bytes,
        "before": layout_record(outcome.before),
        "after": layout_record(outcome.after),
        "steps": [
            {
                "step": done.step.words,
                "path": done.step.path,
                "failed": done.failed,
                "result": done.words,
                "freed_bytes": done.freed_bytes,
                "duration_s": round(done.duration_s, 3),
            }
            for done in outcome.done
        ],
        "left_out": list(outcome.plan.left_out),
        "note": outcome.note or outcome.plan.why_not,
    }


def outcome_words(outcome: Outcome) -> str:
    """What was freed and what there is now, in a line."""
    before, after = outcome.before, outcome.after
    words = (
        f"the guest freed {gib(outcome.freed_bytes)} GiB (MemFree {gib(before.host_free_bytes)} to "
        f"{gib(after.host_free_bytes)}), available {gib(before.available_bytes)} to {gib(after.available_bytes)} GiB"
    )
    tightest = after.tightest
    if tightest is not None:
        words += f"; cgroup {tightest.path} leaves {gib(tightest.free_bytes or 0)} GiB"
    return words
