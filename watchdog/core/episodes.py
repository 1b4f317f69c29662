"""Episodes of findings: each is told once when it begins, and once when it is over. Pure.

A fault that comes and goes within a minute is one episode; a check that has become blind ends none. Refuses to judge:
it gets the findings of each look.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from watchdog.core.findings import Finding, Severity

QUIET_S = 60.0  # this long must it be in order before it is over
Key = tuple[str, str]  # check, subject


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """`finding` as it was at its loudest; `since_s` and `last_s` on the monotonic clock."""

    finding: Finding
    since_s: float
    last_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What changed: `begun` includes an episode that became louder."""

    episodes: Mapping[Key, Episode]
    begun: tuple[Finding, ...]
    over: tuple[Episode, ...]


def follow(episodes: Mapping[Key, Episode], findings: Iterable[Finding], now_s: float) -> Turn:
    """One look later. Only warnings and worse make an episode."""
    after = dict(episodes)
    begun: list[Finding] = []
    blind = set()
    for finding in findings:
        key = (finding.check, finding.subject)
        if finding.severity is Severity.UNKNOWN:
            blind.add(finding.check)
        if finding.severity < Severity.WARNING:
            continue
        known = after.get(key)
        if known is None or finding.severity > known.finding.severity:
            begun.append(finding)
        louder = finding if known is None or finding.severity >= known.finding.severity else known.finding
        after[key] = Episode(finding=louder, since_s=now_s if known is None else known.since_s, last_s=now_s)
    for key, episode in after.items():
        if episode.last_s != now_s and episode.finding.check in blind:
            after[key] = dataclasses.replace(episode, last_s=now_s)
    over = tuple(episode for episode in after.values() if now_s - episode.last_s >= QUIET_S)
    ended = {(episode.finding.check, episode.finding.subject) for episode in over}
    return Turn(
        episodes={key: episode for key, episode in after.items() if key not in ended}, begun=tuple(begun), over=over
    )


def unchanged(before: Mapping[Key, Episode], turn: Turn) -> Mapping[Key, Episode]:
    """The episodes where what changed in `turn` could not be recorded: none has begun, become louder or ended."""
    return {
        key: dataclasses.replace(episode, last_s=turn.episodes[key].last_s) if key in turn.episodes else episode
        for key, episode in before.items()
    }
