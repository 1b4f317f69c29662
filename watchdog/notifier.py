"""Telling people beside the loop: what is due is started, and what became of it is recorded.

Responsible for at most one command per event at a time, for a record in the ledger before and after each attempt, and
for waiting, when the supervisor leaves, for what is under way, within its deadline. An attempt that the ledger did not
take is made all the same: it harms nobody, and a disk that fails is news.
Refuses to decide what is due (core/notifying.py) and to make the loop wait.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable

from watchdog.actuators.notify import END_S, Outcome, Telling
from watchdog.clock import Clock
from watchdog.core.findings import Finding, Severity
from watchdog.core.history import History, Told
from watchdog.core.notice import DELIVERED, EVENTS, filled
from watchdog.core.notifying import BLIND_CHECK, Notice, due, example, notices, record_of, values_of
from watchdog.core.state import State
from watchdog.errors import EXIT_FAILURE, EXIT_OK, SettingsError
from watchdog.masking import mask_command
from watchdog.places import folders_of, job_options
from watchdog.settings import Settings

_SHOWN_CHARACTERS = 600


def start(settings: Settings, notice: Notice, clock: Clock, attempt: int, ledger: str) -> Telling:
    """One attempt, with the event's own command or the common one. Returns at once."""
    job, host = settings.job.name, os.uname().nodename
    command = filled(settings.notify.command_for(notice.event), values_of(notice, job=job, host=host))
    record = record_of(notice, job=job, host=host, wall_s=round(clock.wall(), 3), attempt=attempt, ledger=ledger)
    return Telling(command, json.dumps(record).encode() + b"\n", settings.notify.timeout_s, clock)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _UnderWay:
    notice: Notice
    attempt: int
    telling: Telling


class Notifier:
    """For use from the loop alone. `note(kind, sentence, **data)` records and never raises; `say` is for people."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        ledger: str,
        note: Callable[..., None],
        say: Callable[[str], None],
        blind_before: int | None,
    ) -> None:
        """`blind_before`: the event with which a blindness began under a supervisor before us that saw no end of it."""
        self._settings, self._clock, self._ledger, self._note, self._say = settings, clock, ledger, note, say
        self._options = job_options(settings)
        self._wanted = tuple(
            event for event in EVENTS if event in settings.notify.events and settings.notify.command_for(event)
        )
        self._blind_before = blind_before
        self._told: dict[str, Told] = {}  # by us; newer than what the ledger says
        self._failed_at_s: dict[str, float] = {}
        self._under_way: dict[str, _UnderWay] = {}
        self._found: tuple[Notice, ...] = ()

    def look(self, state: State, history: History, findings: Iterable[Finding]) -> None:
        """One turn: take in what is over, start what is due. Returns at once."""
        if not self._wanted:
            return
        self._take_in(0.0)
        self._see_again(history, findings)
        self._found = notices(
            state, history, findings, self._clock.monotonic(), job=self._settings.job.name, options=self._options
        )
        self._start_due(history, leaving=False)

    def close(self, history: History) -> None:
        """The loop is over: wait for what is under way, and for its second attempt, until their deadlines."""
        for _ in range(2):
            if not self._under_way:
                return
            until_s = self._clock.monotonic() + self._settings.notify.timeout_s + END_S + 1.0
            while self._under_way and (left_s := until_s - self._clock.monotonic()) > 0:
                self._take_in(left_s)
            self._start_due(history, leaving=True)

    def _start_due(self, history: History, *, leaving: bool) -> None:
        told = {**history.told, **self._told}
        now_s = self._clock.monotonic()
        for notice, attempt in due(
            self._found, told, wanted=self._wanted, failed_at_s=self._failed_at_s, now_s=now_s, leaving=leaving
        ):
            if notice.event in self._under_way:
                continue
            event, episode = notice.event, notice.episode
            # Before it is sent: a supervisor that dies in between must not make the next one send it again.
            self._note("notifying", notice.summary, event=event, episode=episode, attempt=attempt)
            self._told[event] = Told(episode=episode, attempt=attempt, outcome=None)
            telling = start(self._settings, notice, self._clock, attempt, self._ledger)
            self._under_way[event] = _UnderWay(notice=notice, attempt=attempt, telling=telling)

    def _take_in(self, at_most_s: float) -> None:
        for event, each in list(self._under_way.items()):
            outcome = each.telling.wait(at_most_s)
            if outcome is None:
                continue
            del self._under_way[event]
            self._told[event] = Told(episode=each.notice.episode, attempt=each.attempt, outcome=outcome.outcome)
            if outcome.outcome != DELIVERED:
                self._failed_at_s[event] = self._clock.monotonic()
            words = f"notification of {event}, attempt {each.attempt}: {outcome.words} after {outcome.took_s:.1f} s"
            self._note(
                "notified",
                words,
                event=event,
                episode=each.notice.episode,
                attempt=each.attempt,
                outcome=outcome.outcome,
                took_s=round(outcome.took_s, 3),
            )
            self._say("\n".join([words, *_printed(outcome)]))

    def _see_again(self, history: History, findings: Iterable[Finding]) -> None:
        """A blindness that ended while nobody watched is over: the next one is another."""
        if self._blind_before is None or self._blind_before != history.blind_seq:
            return
        for finding in findings:
            if finding.check == BLIND_CHECK and finding.severity is Severity.OK:
                self._blind_before = None
                words = f"{finding.subject} · {finding.check} · in order when this supervisor first saw everything"
                self._note("finding_over", words, check=finding.check, subject=finding.subject)


def _printed(outcome: Outcome) -> list[str]:
    """The end of what the command printed, in few lines."""
    return outcome.output[-_SHOWN_CHARACTERS:].splitlines()[-8:] if outcome.output else []


def notify_by_hand(settings: Settings, event: str, clock: Clock) -> tuple[list[str], int]:
    """Send a test of one event now, recorded nowhere. Lines for a person, and the exit code: 0 only if delivered."""
    if event not in EVENTS:
        raise SettingsError(f"--test {event}: must be one of {', '.join(EVENTS)}")
    template = settings.notify.command_for(event)
    if not template:
        raise SettingsError(f"[notify] has no command for {event}; set [notify] command, or {event}")
    telling = start(settings, example(event), clock, 1, str(folders_of(settings).ledger))
    outcome = telling.wait(settings.notify.timeout_s + END_S + 1.0)
    lines = [f"command   {' '.join(mask_command(template))}"]
    if outcome is None:
        return [*lines, f"failed    no answer within {settings.notify.timeout_s:g} s"], EXIT_FAILURE
    lines.append(f"{outcome.outcome:<9} {outcome.words} after {outcome.took_s:.1f} s")
    if event not in settings.notify.events:
        lines.append(f"note      {event} is not in [notify] events: watchdog run will not send it")
    lines += [f"{'printed' if not number else '':<9} {line}" for number, line in enumerate(_printed(outcome))]
    return lines, EXIT_OK if outcome.outcome == DELIVERED else EXIT_FAILURE
