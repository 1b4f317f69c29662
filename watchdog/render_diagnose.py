"""A diagnosis as people and as programs read it.

Responsible for the order (the loudest first), for plain words, and for making what other processes may have written
(command lines, paths) harmless to a terminal. Colour only repeats what a word says.
Refuses to print and to judge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from watchdog.checks.catalogue import CATALOGUE, Check
from watchdog.core.diagnosis import EXIT_UNKNOWN, Diagnosis, JobSeen
from watchdog.core.fact import Absent
from watchdog.core.findings import Finding, Remedy, Severity, next_step
from watchdog.core.limits import Limits
from watchdog.render_facts import record_of
from watchdog.render_limits import key_of, shown

FORMAT = 1
_WORDS = {
    Severity.CRITICAL: "CRITICAL",
    Severity.WARNING: "WARNING",
    Severity.UNKNOWN: "unknown",
    Severity.OK: "ok",
}
_COLOURS = {Severity.CRITICAL: "\x1b[1;31m", Severity.WARNING: "\x1b[33m", Severity.UNKNOWN: "\x1b[36m"}
_RESET = "\x1b[0m"
_ABSENT = "absent"
_QUIET_STATES = ("running", "never started")
_WIDTH = 10  # of the first word, so that what follows stands in one column


class _Stream(Protocol):
    def isatty(self) -> bool: ...


def wants_colour(stream: _Stream, environ: Mapping[str, str]) -> bool:
    """Only on a terminal that knows colours, and not where NO_COLOR is set (no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"


def printable(text: str) -> str:
    """Control characters and broken bytes as escapes: a process may call itself what it likes."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode()
        for character in text
    )


def human(diagnosis: Diagnosis, *, colour: bool = False, everything: bool = False, options: str = "") -> str:
    """Lines for a person, without a newline at the end. `everything` also shows what is ok.

    `options` are the words that a command needs to mean this job.
    """
    lines: list[str] = []
    quiet = 0
    start = "" if diagnosis.job is None else diagnosis.job.start
    head = [] if diagnosis.job is None else _job_lines(diagnosis.job, colour, everything)
    for other in diagnosis.others:
        head.extend(_job_lines(other, colour, everything))
    for finding in sorted(diagnosis.findings, key=lambda finding: -finding.severity):
        is_absent = finding.severity is Severity.OK and finding.check in diagnosis.absent
        if finding.severity is Severity.OK and not is_absent and not everything:
            quiet += 1
            continue
        lines.extend(_lines(finding, is_absent, colour, options, start))
    if everything:
        lines.extend(_silent(diagnosis))
    if quiet:
        more = " more" if lines else ""
        lines.append(f"{'ok':<{_WIDTH}}{quiet}{more} {'finding' if quiet == 1 else 'findings'}   (--all to see them)")
    return "\n".join(head + lines)


def _job_lines(job: JobSeen, colour: bool, everything: bool) -> list[str]:
    """What the job is; a job that runs, or never did, is nothing to tell unasked."""
    if job.state in _QUIET_STATES and job.severity is Severity.OK and not everything:
        return []
    own = {"hold": "HOLD", "finished": "finished", "stopped": "stopped"}
    word = own.get(job.state, "job" if job.severity is Severity.OK else _WORDS[job.severity])
    state = "" if job.state in own else f" · {job.state}"
    lines = [f"{_padded(word, job.severity, colour)}job {job.name}{state} · {printable(job.reason)}"]
    lines.extend(f"  {printable(line)}" for line in job.evidence)
    if job.next:
        lines.append(f"  {'next':<{_WIDTH - 2}}{printable(job.next)}")
    return lines


def _padded(word: str, severity: Severity, colour: bool) -> str:
    """The first word of a finding, as wide as all of them."""
    if colour and severity in _COLOURS:
        return f"{_COLOURS[severity]}{word}{_RESET}{' ' * (_WIDTH - len(word))}"
    return f"{word:<{_WIDTH}}"


def _silent(diagnosis: Diagnosis) -> list[str]:
    """Checks that had nothing to look at and said nothing; last, in one line, those that saw nothing to judge."""
    lines = []
    spoken = {finding.check for finding in diagnosis.findings}
    for check in CATALOGUE:
        if check.name in diagnosis.absent and check.name not in spoken:
            fact = getattr(diagnosis.facts, check.needs[0])
            why = fact.why if isinstance(fact, Absent) and fact.why else "there is nothing to look at"
            lines.append(f"{_ABSENT:<{_WIDTH}}{check.name} · {printable(why)}")
    rest = [check.name for check in CATALOGUE if check.name not in spoken and check.name not in diagnosis.absent]
    if rest and diagnosis.job is not None:  # else only some checks were asked for
        lines.append(f"{_ABSENT:<{_WIDTH}}not judged here: {', '.join(rest)}")
    return lines


def _lines(finding: Finding, is_absent: bool, colour: bool, options: str, start: str) -> list[str]:
    word = _ABSENT if is_absent else _WORDS[finding.severity]
    title = printable(finding.subject)
    if finding.subject not in (finding.check, finding.check.replace("-", " ")):
        title += f" · {finding.check}"
    lines = [f"{_padded(word, finding.severity, colour)}{title} · {printable(finding.reason)}"]
    lines.extend(f"  {printable(line)}" for line in finding.evidence)
    if finding.cause:
        lines.append(f"  {'cause':<{_WIDTH - 2}}{printable(finding.cause)}")
    if finding.remedy is not Remedy.NONE:
        lines.append(f"  {'next':<{_WIDTH - 2}}{printable(next_step(finding, options, start))}")
    return lines


def to_json(diagnosis: Diagnosis, options: str = "") -> dict[str, Any]:
    """A diagnosis for programs, as docs/diagnose.schema.json says. `options` as for `human`.

    `format` is raised when a field changes its meaning or goes away.
    """
    start = "" if diagnosis.job is None else diagnosis.job.start
    return {
        "format": FORMAT,
        "exit_code": diagnosis.exit_code,
        "taken_wall_s": diagnosis.taken_wall_s,
        "job": None if diagnosis.job is None else _job_record(diagnosis.job),
        "others": [_job_record(other) for other in diagnosis.others],
        "findings": [
            {
                "check": finding.check,
                "severity": finding.severity.name.lower(),
                "absent": finding.severity is Severity.OK and finding.check in diagnosis.absent,
                "subject": printable(finding.subject),
                "device": finding.device,
                "reason": printable(finding.reason),
                "evidence": [printable(line) for line in finding.evidence],
                "cause": printable(finding.cause) or None,
                "remedy": finding.remedy.name.lower(),
                "next": None if finding.remedy is Remedy.NONE else printable(next_step(finding, options, start)),
            }
            for finding in diagnosis.findings
        ],
        "collectors": {name: dataclasses.asdict(view) for name, view in diagnosis.collectors.items()},
        "facts": record_of(diagnosis.facts),
    }


def _job_record(job: JobSeen) -> dict[str, Any]:
    return {
        "name": job.name,
        "state": job.state,
        "severity": job.severity.name.lower(),
        "reason": printable(job.reason),
        "evidence": [printable(line) for line in job.evidence],
        "next": printable(job.next) or None,
    }


def failure(words: str) -> dict[str, Any]:
    """What a program gets where there is no answer: why."""
    return {"format": FORMAT, "exit_code": EXIT_UNKNOWN, "error": printable(words)}


def listing() -> str:
    """The catalogue: what each check proves, in the order in which they are told."""
    width = max(len(check.name) for check in CATALOGUE) + 2
    return "\n".join(f"{check.name:<{width}}{check.proves}" for check in CATALOGUE)


def explanation(check: Check, limits: Limits) -> str:
    """Everything about one check: what it proves, what only looks like it, its limits and its remedies."""
    lines = [f"{check.name}: {check.about.strip()}", ""]
    lines.append(
        f"loudest   {_WORDS[check.worst]}{' (switched off: [checks] off)' if check.name in limits.off else ''}"
    )
    lines.append(f"looks at  {', '.join(check.needs)}")
    for number, name in enumerate(check.limits):
        lines.append(
            f"{'limits' if number == 0 else '':<{_WIDTH}}{key_of(name)} = {shown(name, getattr(limits, name))}"
        )
    for number, remedy in enumerate(check.remedies):
        lines.append(f"{'next' if number == 0 else '':<{_WIDTH}}{remedy.value}")
    return "\n".join(lines)
