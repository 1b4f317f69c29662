"""Ledgers made by hand: a clock that is moved on, and the records as the supervisor writes them."""

from __future__ import annotations

from typing import Any

from watchdog.core.history import Event


class HandLedger:
    """`at(seconds)` sets the clock; every other method writes one record at that moment."""

    def __init__(self, *, wall_s: float = 1_800_000_000.0, monotonic_s: float = 500.0) -> None:
        self.events: list[Event] = []
        self._origin_wall_s, self._origin_s = wall_s, monotonic_s
        self._now_s = 0.0
        self.boot_id = "boot"

    def at(self, seconds: float) -> HandLedger:
        self._now_s = seconds
        return self

    def monotonic(self, seconds: float) -> float:
        return self._origin_s + seconds

    def wall(self, seconds: float) -> float:
        return self._origin_wall_s + seconds

    def write(self, kind: str, sentence: str = "", **data: Any) -> HandLedger:
        event = Event(
            seq=len(self.events) + 1,
            wall_s=self.wall(self._now_s),
            kind=kind,
            sentence=sentence or kind,
            data=data,
            monotonic_s=self.monotonic(self._now_s),
            boot_id=self.boot_id,
        )
        self.events.append(event)
        return self

    def launch(self, number: int, resume: int | None = None, **more: Any) -> HandLedger:
        baseline = -1 if resume is None else resume
        digest = None if resume is None else "9f2c" * 16
        data = {"number": number, "run_id": f"{number}-a", "resume_step": resume, "digest": digest}
        return self.write("run_launching", f"run {number} starts", **data, baseline_step=baseline, **more)

    def steps(self, number: int, step: int, made: float, kind: str = "run_steps") -> HandLedger:
        return self.write(kind, run_id=f"{number}-a", step=step, made_s=self.monotonic(made))

    def stopping(self, number: int, cause: str = "stalled", beat: float | None = None) -> HandLedger:
        beat_s = None if beat is None else self.monotonic(beat)
        words = f"run {number}: no beat for a while"
        data = {"run_id": f"{number}-a", "cause": cause, "reason": "no beat for a while", "hold_after": False}
        return self.write("run_stopping", words, **data, beat_s=beat_s, died_wall_s=None)

    def ended(
        self, number: int, cause: str = "killed", step: int | None = None, died: float | None = None, **more: Any
    ) -> HandLedger:
        died_wall_s = None if died is None else self.wall(died)
        data = {"number": number, "run_id": f"{number}-a", "cause": cause, "words": "died of SIGKILL"}
        return self.write("run_ended", **data, baseline_step=-1, last_step=step, died_wall_s=died_wall_s, **more)

    def weighed(self, number: int, cause: str = "killed", repeated: int = 0, wait: float = 0.0) -> HandLedger:
        data = {"run_id": f"{number}-a", "cause": cause, "failures": 1, "repeated": repeated, "wait_s": wait}
        return self.write("run_weighed", **data)

    def verified(self, number: int, step: int) -> HandLedger:
        return self.write("checkpoint_verified", step=step, digest=f"d{step}", run_id=f"{number}-a")
