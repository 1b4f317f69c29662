"""OOM kills, by counters and by the kernel log; old ones are no news."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.checks.ghosts import NO_RUN
from tests.unit.checks.host import AT_S, host
from watchdog.checks import oom_kill
from watchdog.core.facts import Absent, KernelLine, KernelLog, OomKills, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits


def kills(**changes: Any) -> OomKills:
    return OomKills(**(dict(host=0, cgroup=0, cgroup_path="/job", watched_s=600.0) | changes))


def log(*ago_s: float) -> KernelLog:
    lines = tuple(
        KernelLine(
            at_s=AT_S - ago, kind=KernelKind.OOM_KILL, text="Out of memory: Killed process 8123", number=8123,
            subject="chrome",
        )
        for ago in ago_s
    )  # fmt: skip
    return KernelLog(lines=lines, since_s=0.0)


def judge(**changes: Any) -> tuple[Finding, ...]:
    return oom_kill.check(host(**changes), Limits())


def test_a_line_names_the_process() -> None:
    (finding,) = judge(kernel=log(185.0))
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.FREE_MEMORY)
    assert finding.reason == ("1 process killed for lack of memory, the newest 3 min 05 s ago: chrome (pid 8123)")


@pytest.mark.parametrize(
    ("oom", "words"),
    [
        (kills(host=5, since_host=2, cgroup=2, since_cgroup=2), "2 of them counted by cgroup /job"),
        (kills(host=5, since_host=2), "somebody else's process"),
    ],
)
def test_counters_say_whose_it_was(oom: OomKills, words: str) -> None:
    (finding,) = judge(oom=oom)
    assert finding.severity is Severity.WARNING
    assert finding.reason.startswith("2 processes killed for lack of memory in the last 10 min")
    assert words in finding.evidence[-1]


def test_the_same_kill_is_not_counted_twice() -> None:
    (finding,) = judge(oom=kills(host=1, since_host=1, cgroup=1, since_cgroup=1), kernel=log(5.0))
    assert finding.reason.startswith("1 process killed")


def limited(ago_s: float = 5.0, command: str = "postgres") -> KernelLog:
    line = KernelLine(
        at_s=AT_S - ago_s,
        kind=KernelKind.OOM_KILL,
        text=f"Memory cgroup out of memory: Killed process 99 ({command})",
        number=99,
        subject=command,
    )
    return KernelLog(lines=(line,), since_s=0.0)


@pytest.mark.parametrize(
    "oom", [kills(host=9, watched_s=0.0), kills(host=9, cgroup=1, since_host=1), kills(host=9, since_host=1)]
)
def test_the_limit_of_another_group_is_no_warning(oom: OomKills) -> None:
    (finding,) = judge(oom=oom, kernel=limited())
    assert finding.severity is Severity.OK
    assert finding.reason.endswith("postgres (pid 99); by the limit of another cgroup, not of this job")


@pytest.mark.parametrize(
    ("oom", "severity"),
    [
        (kills(host=9, watched_s=0.0), Severity.WARNING),  # the cgroup of somebody's shell: it may have hit the run
        (kills(host=9, watched_s=4.0), Severity.WARNING),
        (kills(host=9, since_host=1), Severity.OK),  # watched since before, and not counted
        (kills(host=9, cgroup=1, since_host=1), Severity.OK),
    ],
)
def test_without_a_living_run_only_a_counter_that_was_watched_acquits(oom: OomKills, severity: Severity) -> None:
    (finding,) = judge(oom=oom, kernel=limited(command="python"), **NO_RUN)
    assert finding.severity is severity
    (finding,) = judge(oom=oom, kernel=limited(), **NO_RUN | {"processes": Unknown("told by run-stuck")})
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("oom", "log"),
    [
        (kills(host=9, cgroup=1, since_host=1, since_cgroup=1), limited()),  # ours
        (kills(host=9, cgroup=1, watched_s=4.0), limited()),  # ours may have counted it before we watched
        (kills(host=9, cgroup=None), limited()),  # ours does not count
        (kills(host=9), limited(command="python")),  # a worker of the run, in a group of its own
        (Absent(), limited()),
    ],
)
def test_the_limit_of_our_group_or_of_one_that_may_be_is_to_be_raised(oom: Any, log: KernelLog) -> None:
    (finding,) = judge(oom=oom, kernel=log)
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.RAISE_LIMIT)
    assert "cgroup" in finding.evidence[-1]


def test_the_hosts_memory_may_hit_the_job_next() -> None:
    (finding,) = judge(oom=kills(host=9, since_host=1), kernel=log(5.0))
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.FREE_MEMORY)


@pytest.mark.parametrize("watched_s", [0.0, 600.0])
def test_old_kills_are_a_figure_only(watched_s: float) -> None:
    (finding,) = judge(oom=kills(host=3, cgroup=3, watched_s=watched_s), kernel=log(3601.0))
    assert finding.severity is Severity.OK
    assert "3 since boot" in finding.reason


def test_unknown_counters_are_told_and_the_log_still_counts() -> None:
    assert [one.severity for one in judge(oom=Unknown("no vmstat"), kernel=log(5.0))] == [
        Severity.UNKNOWN,
        Severity.WARNING,
    ]
    assert judge(oom=Absent(), kernel=Unknown("told by io-errors")) == ()
