"""What an autopsy is: its record, and the rules for every text in it. Pure; made by core/incidents.py.

An autopsy is made to be pasted: every text in it is masked, and no longer than a person reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from watchdog.core.ettr import Ettr
from watchdog.masking import mask_lines, mask_text

TEXT_MOST = 2000
_EVIDENCE_LINES = 40
_MASKED_LINES = 400  # a private key goes over more lines than are shown


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """One record of the timeline. `after_s` since the last sign of life; below 0 for what led to it.

    `role`: "did" for an action of ours, "proof" for what it led to as it was seen, "saw" for the rest.
    """

    after_s: float
    wall_s: float
    role: str
    kind: str
    sentence: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Lines of one source."""

    source: str
    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """How one run ended, in the words of its record."""

    number: int | None
    cause: str
    words: str
    confidence: str | None
    last_step: int | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """One autopsy.

    `outcome`: open, recovered, held, finished (the job was, after all), went on (nothing was done), stopped (by a
    person's wish), archived. `cause`, `words`: of the first failure; what followed from it, or was wished, is in
    `ends`. `also_standing`: findings from before the launch of the run that ended first, or from the first look of a
    supervisor: they may have nothing to do with it.
    `lost_s`: seconds by part; `lost_total_s` their sum, replay included. `wall_s`: what the job had run by then since
    its first launch. `recovered_after_s`: from the last sign of life to the first new step. `confidence`:
    in the cause, "certain" or "likely", where whoever classified it told one.
    """

    id: int
    outcome: str
    began_wall_s: float
    noticed_after_s: float
    recovered_after_s: float | None
    cause: str | None
    words: str
    confidence: str | None
    runs: tuple[int, ...]  # those that ended in it
    next_run: int | None  # that which recovered it, or tries to
    last_step: int | None
    checkpoint_step: int | None
    checkpoint_digest: str | None
    steps_repeated: int | None
    lost_s: Mapping[str, float]
    lost_total_s: float
    wall_s: float | None
    unknown: tuple[str, ...]
    hold: str | None
    findings: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    timeline: tuple[Moment, ...]
    run_ids: tuple[str, ...] = ()  # as `runs`
    ends: tuple[RunEnd, ...] = ()  # of `runs`, the first and the last of many
    also_standing: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Whose autopsy it is, for a report that leaves this host. `ettr`: the job's, up to now; None before its launch."""

    job: str
    host: str
    version: str
    ettr: Ettr | None = None


def shown(text: object, most: int = TEXT_MOST) -> str:
    """Masked, and no longer than a person reads."""
    words = mask_text(str(text)[: 4 * most])
    return words if len(words) <= most else words[:most] + "…"


def lines_of(value: object) -> tuple[str, ...]:
    """Whatever a record holds as evidence, as lines: a text, a list of texts, an object."""
    if isinstance(value, Mapping):
        found = [f"{name}: {each}" for name, each in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        found = [str(each) for each in value]
    else:
        found = [] if value is None else str(value).splitlines()
    masked = mask_lines(line[: 4 * TEXT_MOST] for line in found[-_MASKED_LINES:]) if found else ()
    return tuple(line if len(line) <= TEXT_MOST else line[:TEXT_MOST] + "…" for line in masked[-_EVIDENCE_LINES:])
