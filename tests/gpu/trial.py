"""One supervised job on a card, a fault that is made in it, and what became of it, by the word of an eye of our own.

Responsible for the job and its orders (workloads/on_device.py), for a stranger beside it, and for judging the end: the
weights are an undisturbed job's, and between two runs eye.py, not the watchdog, saw the device's memory back at what
was in use before. Refuses to believe the watchdog's word where a look of our own is to be had, and to go on for longer
than a case may take.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.gpu.card import HERE, NOISE_MIB, Card
from watchdog.drills import job
from watchdog.drills.bed import Bed, BedError, Living, wait_for

T = TypeVar("T")
STEPS = 30
STRIKE_STEP = 12  # past two checkpoints
LATE_S = 1.0  # a stall is called within its deadline and so much
_WORKLOADS = HERE / "workloads"
_FIRST_SIGNS = ("run_stopping", "run_killing", "run_ended")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cured:
    """What became of one case. `problems` empty: it was cured.

    Seconds are from the fault; of a stall from the last beat, of the half batch from the end of the first run.
    `after_mib`: the least in use between two runs; where there were more of them, between those that left most.
    """

    case: str
    detected_as: str
    detected_s: float | None
    before_mib: float
    peak_mib: float
    after_mib: float | None
    back_s: float | None
    recovered: bool
    steps_lost: int
    runs: int
    words: str
    problems: tuple[str, ...]
    told: str  # the ledger in words, where there are problems

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def seen(self) -> str:
        """One line for the table."""

        def mib(value: float | None) -> str:
            return "?" if value is None else f"{value:.0f}"

        after = "never" if self.detected_s is None else f"after {self.detected_s:.1f} s"
        back = "" if self.back_s is None else f", back {self.back_s:.1f} s after the fault"
        line = (
            f"{self.detected_as.replace('_', ' ')} {after}; {mib(self.before_mib)} -> {mib(self.peak_mib)} -> "
            f"{mib(self.after_mib)} MiB{back}; {'recovered' if self.recovered else 'NOT RECOVERED'}, "
            f"{self.steps_lost} steps lost"
        )
        return "; ".join(filter(None, (line, self.words, *self.problems)))


class Trial:
    """One supervised job on the card. Leaving it ends everything that it started."""

    def __init__(
        self,
        card: Card,
        root: Path,
        *,
        kind: str,
        mib: int,
        sample_mib: int = 0,
        steps: int = STEPS,
        job_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._until_s = time.monotonic() + card.case_s
        self.card = card
        self._orders, self._data = root / "orders", root / "lessons.gz"
        self._orders.mkdir(parents=True)
        job.write_data(self._data, steps)
        words = [kind, self._orders, self._data, steps, mib, sample_mib]
        deadline = f"{card.deadline_s:g}s"
        settings: dict[str, dict[str, Any]] = {
            "job": {"devices": [card.eye.uuid], "environment": card.environment, **(job_settings or {})},
            "deadlines": {"train": deadline, "save": deadline},
            "relaunch": {"gate_wait": "60s"},
            "stop": {"grace": "1s", "kill_wait": "30s"},  # a driver may take seconds over a context with a kernel in it
        }
        if card.probe_python is not None:
            settings["probe"] = {"python": str(card.probe_python)}
        self.bed = Bed(
            root, [sys.executable, "-P", str(_WORKLOADS / "on_device.py"), *map(str, words)], settings=settings
        )
        self._mib, self._steps = mib, steps
        self._began_s = self._struck_s = 0.0
        self._last_beat_s: float | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self.before_mib = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bed.close()

    @property
    def left_s(self) -> float:
        return max(1.0, self._until_s - time.monotonic())

    def order(self, what: str, words: str) -> None:
        """The trainer sees the whole of it or nothing."""
        temporary = self._orders / f"{what}.new"
        temporary.write_text(words)
        os.replace(temporary, self._orders / what)

    def obeyed(self, what: str) -> str | None:
        try:
            return (self._orders / what).read_text()
        except FileNotFoundError:
            return None

    def start(self) -> None:
        self.before_mib = self.card.eye.calm_mib()
        self._began_s = time.time()
        self._supervisor = self.bed.start()

    def wait(self, look: Callable[[], T | None], what: str) -> T:
        """As long as the case may take. Raises BedError; at once when the supervisor is gone before `look` is true."""

        def seen() -> T | None:
            assert self._supervisor is not None
            gone = self._supervisor.poll()
            found = look()
            if not found and gone is not None:
                raise BedError(f"the supervisor left with {gone}, before there was {what}")
            return found

        try:
            return wait_for(seen, what, timeout_s=self.left_s, every_s=0.005)
        except BedError as error:
            raise BedError(f"{error}\n{self.bed.tell()}") from None

    def event(self, kind: str, count: int = 1) -> Mapping[str, Any]:
        """The `count`-th of that kind."""
        return self.wait(lambda: next(iter(self.bed.kinds(kind)[count - 1 : count]), None), f"{kind} number {count}")

    def training(self) -> Living:
        """The run, once it is past its second checkpoint."""

        def look() -> Living | None:
            run = self.bed.living()
            beat = None if run is None else run.beat()
            trains = beat is not None and beat.phase == "train" and (beat.step or 0) >= STRIKE_STEP
            return run if trains else None

        return self.wait(look, "a run that trains on the device")

    def strikes(self) -> None:
        """The fault is made now."""
        self._struck_s = time.time()

    def struck_by_itself(self, run_id: str) -> None:
        """The fault was the end of that run: the shim's word, from the moment at which it reaped the trainer."""
        record = json.loads((self.bed.state / "runs" / run_id / "exit.json").read_bytes())
        self._struck_s = float(record["leader"]["wall_s"])

    def silent(self, run: Living) -> None:
        """Waits until its beats have stopped, for less than the deadline; the last one is what the deadline counts
        from."""
        newest: list[tuple[int, float]] = []

        def still() -> bool:
            beat = run.beat()
            now_s = time.monotonic()
            if beat is not None and (not newest or newest[-1][0] != beat.seq):
                newest.append((beat.seq, now_s))
                self._last_beat_s = time.time() - (now_s - beat.monotonic_s)
            return bool(newest) and now_s - newest[-1][1] > 0.4

        self.wait(still, "the end of its beats")

    # --- what became of it ------------------------------------------------------------------------------------
    def finish(self, case: str, expected: Sequence[str], *, words: str = "", problems: Sequence[str] = ()) -> Cured:
        """Sees the job to its end. `expected`: the causes that the first end may have. Raises BedError."""
        assert self._supervisor is not None
        found = list(problems)
        code = self.bed.ended(self._supervisor, timeout_s=self.left_s)
        ended_s = time.time()
        weights = self.bed.checkpoints / "weights.json"
        right = weights.exists() and json.loads(weights.read_bytes()) == job.final_weights(self._data, self._steps)
        with contextlib.suppress(AssertionError):  # said below, with figures
            self.card.eye.calm_mib(timeout_s=10)
        events = self.bed.events()
        ends = [event for event in events if event["event"] == "run_ended" and event["wall_s"] >= self._struck_s]
        runs = sum(event["event"] == "run_launching" for event in events)
        cause = str(ends[0]["data"]["cause"]) if ends else "nothing"
        limit_mib = self.before_mib + NOISE_MIB
        after_mib = self._between_runs(ends, found, limit_mib)
        looks = self.card.eye.looks(self._struck_s)
        back = [look.ended_s for look in looks if look.used_mib <= limit_mib]
        peak_mib = max((look.used_mib for look in self.card.eye.looks(self._began_s, ended_s)), default=0.0)
        if code != 0:
            found.append(f"the supervisor left with {code}")
        if not right:
            found.append("the weights are not an undisturbed job's")
        if cause not in expected:
            found.append(f"it was called {cause}, should be {' or '.join(expected)}")
        if runs < 2:
            found.append("nothing was launched again")
        if peak_mib - self.before_mib < self._mib:
            found.append(f"the job was to hold {self._mib} MiB, and {peak_mib - self.before_mib:.0f} were seen")
        if not looks or looks[-1].used_mib > limit_mib:
            found.append(f"at the end {looks[-1].used_mib:.0f} MiB are in use" if looks else "NVML answered no more")
        detected_s = self._detected_s(events, found)
        return Cured(
            case=case,
            detected_as=cause,
            detected_s=detected_s,
            before_mib=round(self.before_mib, 1),
            peak_mib=round(peak_mib, 1),
            after_mib=after_mib,
            back_s=round(back[0] - self._struck_s, 2) if back else None,
            recovered=code == 0 and right and runs > 1,
            steps_lost=sum(e["data"].get("repeated") or 0 for e in events if e["event"] == "run_weighed"),
            runs=runs,
            words=words,
            problems=tuple(found),
            told=self.bed.tell() if found else "",
        )

    def _detected_s(self, events: Sequence[Mapping[str, Any]], found: list[str]) -> float | None:
        signs = [event for event in events if event["event"] in _FIRST_SIGNS and event["wall_s"] >= self._struck_s]
        if not signs:
            return None
        if self._last_beat_s is None:
            return round(float(signs[0]["wall_s"]) - self._struck_s, 2)
        late_s = float(signs[0]["wall_s"]) - self._last_beat_s
        least_s = self.card.deadline_s
        if not least_s <= late_s <= least_s + LATE_S:
            found.append(f"called {late_s:.2f} s after its last beat, not within {least_s:g} to {least_s + LATE_S:g}")
        return round(late_s, 2)

    def _between_runs(self, ends: Sequence[Mapping[str, Any]], found: list[str], limit_mib: float) -> float | None:
        """Between the end of each run and the moment at which the next one first touched the device."""
        kept: list[float] = []
        launched = [event["data"]["run_id"] for event in self.bed.kinds("run_launching")]
        for event in ends:
            after = launched[launched.index(event["data"]["run_id"]) + 1 :]
            if not after:
                continue
            touched = self.obeyed(f"touched-{after[0]}")
            if touched is None:
                continue  # it ended before it touched the device
            used = [look.used_mib for look in self.card.eye.looks(event["wall_s"], float(touched))]
            if not used:
                found.append(f"after run {event['data']['run_id']} nobody saw the device's memory")
                continue
            kept.append(min(used))
            if kept[-1] > limit_mib:
                found.append(f"after run {event['data']['run_id']} {kept[-1]:.0f} MiB stayed in use")
        if not kept:
            found.append("there was no moment between two runs")
            return None
        return round(max(kept), 1)


class Stranger:
    """A process that is not of the job and takes the device's memory. Leaving it ends it, if it has not left."""

    def __init__(self, card: Card) -> None:
        words = [sys.executable, "-P", str(_WORKLOADS / "holder.py"), card.light]
        environment = os.environ | card.environment
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=environment
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._input.close()
        self._output.close()

    def _answer(self, timeout_s: float) -> str:
        said: list[bytes] = []

        def whole() -> bool:
            said.append(self._output.read() or b"")
            if self._process.poll() is not None:
                raise BedError(f"the stranger on the device is gone: exit {self._process.returncode}")
            return said[-1].endswith(b"\n")

        wait_for(whole, "a stranger on the device", timeout_s=timeout_s, every_s=0.01)
        return b"".join(said).decode()

    def ready(self, timeout_s: float) -> None:
        """It is on the device, and has taken nothing yet."""
        self._answer(timeout_s)

    def take(self, *, leave_mib: int, timeout_s: float) -> int:
        """All that is free but so much; how much that was, in MiB."""
        self._input.write(f"{leave_mib}\n".encode())
        self._input.flush()
        return int(self._answer(timeout_s))

    def leave(self) -> None:
        """Raises BedError when somebody has ended it before."""
        if self._process.poll() is not None:
            raise BedError(f"the stranger was ended by somebody: exit {self._process.returncode}")
        self._input.close()
        self._process.wait(30)
