"""A cgroup close to its limit, page cache left out."""

from __future__ import annotations

import pytest

from tests.unit.checks.host import GIB, host, memory
from watchdog.checks import cgroup_limit
from watchdog.core.facts import CgroupLimit, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits


def judge(*held: int) -> tuple[Finding, ...]:
    groups = tuple(
        CgroupLimit(cgroup=f"/group-{number}", limit_bytes=10 * GIB, held_bytes=count)
        for number, count in enumerate(held)
    )
    found = cgroup_limit.check(host(memory=memory(limits=groups)), Limits())
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize(
    ("held", "severity"),
    [(9 * GIB - 1, Severity.OK), (9 * GIB, Severity.WARNING), (11 * GIB, Severity.WARNING), (0, Severity.OK)],
)
def test_the_fraction_is_the_line(held: int, severity: Severity) -> None:
    (finding,) = judge(held)
    assert finding.severity is severity
    assert (finding.remedy is Remedy.RAISE_LIMIT) is (severity is Severity.WARNING)


def test_each_group_has_its_word_and_figures() -> None:
    own, parent = judge(GIB, int(9.5 * GIB))
    assert (own.severity, parent.severity) == (Severity.OK, Severity.WARNING)
    assert parent.subject == "cgroup /group-1"
    assert parent.reason == "9.5 GiB of 10.0 GiB held, page cache not counted: over 90 % of the limit"


def test_no_limit_is_fine_and_unknown_memory_is_left_to_memory() -> None:
    assert judge()[0].severity is Severity.OK
    assert cgroup_limit.check(host(memory=Unknown("no meminfo")), Limits()) == ()
