"""Episodes: told once at the beginning, once when louder, once at the end."""

from __future__ import annotations

from collections.abc import Mapping

from watchdog.core.episodes import QUIET_S, Episode, Key, Turn, follow, unchanged
from watchdog.core.findings import Finding, Severity, fine, unknown

NONE: Mapping[Key, Episode] = {}


def finding(severity: Severity = Severity.WARNING, *, subject: str = "card", reason: str = "hot") -> Finding:
    return Finding(check="thermal", severity=severity, subject=subject, reason=reason)


def looks(*each: tuple[float, tuple[Finding, ...]]) -> list[Turn]:
    """One look after the other."""
    turns, episodes = [], NONE
    for now_s, findings in each:
        turns.append(follow(episodes, findings, now_s))
        episodes = turns[-1].episodes
    return turns


def begun(turns: list[Turn]) -> list[int]:
    return [len(turn.begun) for turn in turns]


def test_a_finding_that_stands_is_told_once() -> None:
    turns = looks(*((float(now_s), (finding(reason=f"hot at {now_s}"),)) for now_s in range(200)))
    assert begun(turns) == [1] + [0] * 199
    assert not any(turn.over for turn in turns)
    (episode,) = turns[-1].episodes.values()
    assert (episode.since_s, episode.last_s, episode.finding.reason) == (0.0, 199.0, "hot at 199")


def test_what_becomes_louder_is_told_again_and_kept_at_its_loudest() -> None:
    turns = looks(
        (0.0, (finding(),)),
        (1.0, (finding(Severity.CRITICAL),)),
        (2.0, (finding(),)),
        (3.0, (finding(Severity.CRITICAL),)),
        (3.0 + QUIET_S, ()),
    )
    assert begun(turns) == [1, 1, 0, 0, 0]
    (over,) = turns[-1].over
    assert (over.finding.severity, over.since_s, over.last_s) == (Severity.CRITICAL, 0.0, 3.0)
    assert not turns[-1].episodes


def test_it_is_over_only_after_a_quiet_minute() -> None:
    turns = looks((0.0, (finding(),)), (1.0, ()), (QUIET_S - 0.1, ()), (QUIET_S, ()), (QUIET_S + 1, ()))
    assert [len(turn.over) for turn in turns] == [0, 0, 0, 1, 0]


def test_what_comes_and_goes_within_a_minute_is_one_episode() -> None:
    turns = looks(
        (0.0, (finding(),)), (59.0, ()), (59.5, (finding(),)), (119.0, ()), (119.5, ()), (300.0, (finding(),))
    )
    assert begun(turns) == [1, 0, 0, 0, 0, 1]  # after a loop that was away, the old one ends by the look before
    assert [len(turn.over) for turn in turns] == [0, 0, 0, 0, 1, 0]


def test_a_check_that_is_blind_ends_nothing_and_begins_nothing() -> None:
    blind = unknown("thermal", "devices", "NVML does not answer")
    turns = looks((0.0, (finding(),)), *((float(now_s), (blind,)) for now_s in range(10, 600, 10)), (640.0, ()))
    assert begun(turns) == [1] + [0] * 60
    assert not any(turn.over for turn in turns)
    assert follow(turns[-1].episodes, (), 590.0 + QUIET_S).over


def test_another_check_that_is_blind_keeps_nothing_open() -> None:
    other = unknown("memory", "memory", "cannot be read")
    assert looks((0.0, (finding(),)), (QUIET_S, (other,)))[-1].over


def test_each_subject_has_an_episode_of_its_own() -> None:
    turns = looks(
        (0.0, (finding(subject="one"),)),
        (10.0, (finding(subject="one"), finding(subject="two"))),
        (75.0, (finding(subject="two"),)),
    )
    assert begun(turns) == [1, 1, 0]
    assert [episode.finding.subject for episode in turns[-1].over] == ["one"]


def test_what_is_in_order_makes_no_episode() -> None:
    assert follow(NONE, (fine("thermal", "card", "71 C"),), 0.0) == Turn(episodes={}, begun=(), over=())


def test_what_could_not_be_recorded_has_not_changed() -> None:
    """But what stands was seen standing: its quiet minute begins anew."""
    stands, louder, quiet = (finding(subject=name) for name in ("stands", "louder", "quiet"))
    (turn,) = looks((0.0, (stands, louder, quiet)))
    before = turn.episodes
    after = follow(before, (stands, finding(Severity.CRITICAL, subject="louder"), finding(subject="new")), QUIET_S)
    assert (len(after.begun), len(after.over)) == (2, 1)
    kept = unchanged(before, after)
    assert {subject: (each.finding.severity, each.last_s) for (_, subject), each in kept.items()} == {
        "stands": (Severity.WARNING, QUIET_S),
        "louder": (Severity.WARNING, QUIET_S),
        "quiet": (Severity.WARNING, 0.0),
    }
    again = follow(kept, (stands, finding(Severity.CRITICAL, subject="louder"), finding(subject="new")), QUIET_S + 1)
    assert (again.begun, len(again.over)) == (after.begun, 1)
