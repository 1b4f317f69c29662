"""Hearing the end of a run: its last words, and what the kernel says of it, gathered beside the loop.

Responsible for the time this may take: what hangs (a disk under the log, the kernel log) is given up after two
seconds, and the end is then judged by what is known; and for what of it the record keeps (core/endrecord.py), with the
secrets of the run's environment hidden. Refuses to judge: that is classify/ends.py.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from watchdog.classify.ends import Evidence, Kernel, asks_the_kernel, classify
from watchdog.clock import Clock
from watchdog.collectors.run import LastWords, RunWatch, read_last_words
from watchdog.collectors.runner import Runner
from watchdog.contract import Beat
from watchdog.core.endrecord import facts_of, hidden, kernel_of, left_by
from watchdog.core.facts import Absent, Fact, Facts, Known, OomKills
from watchdog.core.seen import EndSeen

_PATIENCE_S = 2.0
_OF_A_GOOD_END_S = 0.25  # what it said last is of interest only where it left too early: not worth more
_AT_ONCE_S = 0.01  # 64 KiB take 1 ms: waiting for them in the turn itself is quicker than another turn
_NAME = "last_words"
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_SLACK_S = 1.0
_COUNTED_BEFORE_S = 3.0  # a counter that is read so shortly before an end may hold the kill already


class EndEyes:
    """For use from the loop alone. `awaiting`: the end that was looked at last is not known in full yet."""

    def __init__(self, clock: Clock, facts: Callable[[bool], Facts] | None, secrets: Sequence[str] = ()) -> None:
        """`facts(anew)`: the newest facts of the host; with `anew` the kernel is asked once more, beside the loop.

        `secrets`: values that are written nowhere, see masking.secret_values.
        """
        self._clock = clock
        self._facts = facts
        self._secrets = secrets
        self._last: Facts | None = None  # the last look while the run lived
        self._counts: list[Known[OomKills]] = []  # the last looks at the counters while the run lived
        self.forget()

    def forget(self) -> None:
        """The run is over, or another begins."""
        self.awaiting = False
        self._counts.clear()
        self._last = None
        self._again()
        self._over = False

    def _again(self) -> None:
        self._runner: Runner | None = None
        self._since_s = 0.0
        self._asked_s: float | None = None

    def remember(self) -> None:
        """The run lives: what is seen now is from before its end."""
        self._last = None if self._facts is None else self._facts(False)
        oom = None if self._last is None else self._last.oom
        if isinstance(oom, Known) and (not self._counts or oom.at_s > self._counts[-1].at_s):
            self._counts = [*self._counts[-2:], oom]

    def look(
        self, watch: RunWatch, *, over: bool, beat_pid: int | None, ours: bool, beat: Beat | None = None
    ) -> EndSeen:
        """How the run, or its leader alone while not `over`, ended: as far as it is known by now."""
        if over and not self._over:  # what it left behind may have said more
            self._over = True
            self._again()
        record = watch.exit_record()
        end = None if record is None else record.decisive(beat_pid)
        well = end is not None and end.code == 0
        left = LastWords() if well and ours else self._last_words(watch)
        words = LastWords() if well else left  # who ended well is not asked why
        kernel = Kernel()
        self.awaiting = left is None
        if words is not None and not ours and asks_the_kernel(record, beat_pid=beat_pid, log=words.log):
            kernel, heard = self._kernel(watch)
            self.awaiting = not heard
        if self._clock.monotonic() - self._since_s > (_OF_A_GOOD_END_S if well else _PATIENCE_S):
            self.awaiting = False
        words = words or LastWords()
        seen = classify(
            Evidence(
                record=record,
                beat_pid=beat_pid,
                failure=words.failure,
                log=words.log,
                kernel=kernel,
                ours=ours,
                memory=self._memory(),
            )
        )
        whole = over and not self.awaiting and not (well and ours)
        kept = self._kept(watch, left or LastWords(), beat) if whole else {}
        said, error, fault = (hidden(text, self._secrets) for text in (seen.words, seen.error, seen.fault))
        return dataclasses.replace(seen, words=said or "", error=error, fault=fault, left=kept)

    def _memory(self) -> tuple[int, int] | None:
        memory = None if self._last is None else self._last.memory
        return (memory.value.available_bytes, memory.value.total_bytes) if isinstance(memory, Known) else None

    def _kept(self, watch: RunWatch, left: LastWords, beat: Beat | None) -> dict[str, Any]:
        """What the record of this end keeps of it."""
        now_s, secrets = self._clock.monotonic(), self._secrets
        newest = None if self._facts is None else self._facts(False)
        lines: list[str] = []
        if newest is not None and isinstance(newest.kernel, Known):
            lines = kernel_of(newest.kernel.value.lines, since_s=_began_s(watch, newest), now_s=now_s, secrets=secrets)
        last = self._last or newest
        facts = None if last is None else facts_of(last, now_s=now_s, beat=beat, secrets=secrets)
        return left_by(log=left.log, failure=left.told, kernel=lines, facts=facts, secrets=secrets)

    def _last_words(self, watch: RunWatch) -> LastWords | None:
        """None while they are on their way."""
        now_s = self._clock.monotonic()
        folder, clock = watch.folder, self._clock
        if self._runner is None:
            self._runner, self._since_s = Runner(clock), now_s  # one that hangs keeps its runner, and is let go with it
            self._runner.start(_NAME, lambda: Known(read_last_words(folder), clock.monotonic()))
        fact: Fact[LastWords] = self._runner.wait(_NAME, now_s - self._since_s + _AT_ONCE_S)
        return fact.value if isinstance(fact, Known) else None

    def _kernel(self, watch: RunWatch) -> tuple[Kernel, bool]:
        """What the kernel says, and whether that is all: it was asked after the end, or cannot be asked here."""
        if self._facts is None:
            return Kernel(), True
        anew = self._asked_s is None
        if self._asked_s is None:
            self._asked_s = self._clock.monotonic()
        facts = self._facts(anew)
        lines = None
        if isinstance(facts.kernel, Known):
            since_s = _began_s(watch, facts)  # what ended the run before this one did not end this one
            lines = tuple(line for line in facts.kernel.value.lines if line.at_s >= since_s)
        heard = isinstance(facts.kernel, Absent) or _since(facts.kernel, self._asked_s)
        if lines is None:
            heard = heard and (isinstance(facts.oom, Absent) or _since(facts.oom, self._asked_s))
        return Kernel(lines=lines, kills=self._kills(facts.oom)), heard

    def _kills(self, oom: Fact[OomKills]) -> int | None:
        """How many processes the kernel has killed since shortly before the end."""
        before = [count for count in self._counts if self._since_s - count.at_s >= _COUNTED_BEFORE_S]
        if not isinstance(oom, Known) or not self._counts:
            return None
        earlier = (before or self._counts[:1])[-1]
        pairs = [(earlier.value.host, oom.value.host)]
        if earlier.value.cgroup_path == oom.value.cgroup_path:
            pairs.append((earlier.value.cgroup, oom.value.cgroup))
        risen = [now - then for then, now in pairs if then is not None and now is not None]
        return max(risen) if risen else None


def _began_s(watch: RunWatch, facts: Facts) -> float:
    """When the run began, on the clock of the kernel's stamps, which do not count suspends."""
    asleep_s = facts.clocks.value.asleep_s if isinstance(facts.clocks, Known) else 0.0
    return watch.record.started_ticks / _TICKS_A_SECOND - asleep_s - _SLACK_S


def _since(fact: Fact[Any], moment_s: float) -> bool:
    return isinstance(fact, Known) and fact.at_s >= moment_s
