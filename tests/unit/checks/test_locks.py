"""Who holds the job: the normal states, and the ones that stop a launch."""

from __future__ import annotations

from watchdog.checks import locks
from watchdog.core.facts import Absent, Facts, Known, Lock, LockHolder, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

SUPERVISOR = LockHolder(pid=4711, command="/usr/bin/python /home/me/.venv/bin/watchdog run", since_wall_s=1.0)
TRAINER = LockHolder(pid=4790, command="python -m trainer train", since_wall_s=2.0)
SHIM = LockHolder(pid=4788, command="python -I -S shim.py", since_wall_s=2.0)


def lock(purpose: str, *holders: LockHolder, held: bool = True, exclusive: bool = True, unlinked: bool = False) -> Lock:
    return Lock(
        path=f"/c/{purpose}.lock",
        purpose=purpose,
        held=held,
        exclusive=exclusive,
        holders=holders,
        unlinked=unlinked,
    )


def judge(*given: Lock | Unknown) -> tuple[Finding, ...]:
    facts = tuple(one if isinstance(one, Unknown) else Known(one, 1.0) for one in given)
    return locks.check(
        Facts(at_s=1.0, memory=Absent(), disks=(), locks=facts, driver=Absent(), beat=Absent()), Limits()
    )


FREE = lock("supervisor", held=False, exclusive=False)
HELD = lock("supervisor", SUPERVISOR)


def test_a_supervised_run_is_fine_and_everybody_is_named() -> None:
    supervisor, run = judge(HELD, lock("run", SHIM, TRAINER, exclusive=False))
    assert (supervisor.severity, run.severity) == (Severity.OK, Severity.OK)
    assert supervisor.reason == "held by pid 4711 (/usr/bin/python /home/me/.venv/bin/watchdog run)"
    assert run.reason == "held by pid 4788 (python -I -S shim.py) and 1 more"
    assert "pid 4790 (python -m trainer train)" in run.evidence


def test_free_is_fine() -> None:
    assert [finding.severity for finding in judge(FREE, lock("run", held=False))] == [Severity.OK, Severity.OK]


def test_held_by_nobody_that_lives_is_critical() -> None:
    (finding,) = judge(lock("supervisor"))
    assert finding.severity is Severity.CRITICAL
    assert "no living process" in finding.reason


def test_an_unlinked_lock_is_critical() -> None:
    (finding,) = judge(lock("supervisor", SUPERVISOR, unlinked=True))
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, Remedy.ASK_HOLDER)
    assert "4711" in finding.reason


def test_an_heir_that_is_no_supervisor_is_a_warning() -> None:
    sleeper = LockHolder(pid=99, command="sleep 1000", since_wall_s=None)
    (finding,) = judge(lock("supervisor", sleeper))
    assert finding.severity is Severity.WARNING
    assert "inherited" in finding.reason


def test_a_holder_whose_command_is_hidden_is_not_accused() -> None:
    (finding,) = judge(lock("supervisor", LockHolder(pid=99, command="", since_wall_s=None)))
    assert finding.severity is Severity.OK
    assert "cannot be read" in finding.reason


def test_a_run_without_supervisor_is_a_warning() -> None:
    run = lock("run", SHIM, TRAINER, exclusive=False)
    assert judge(FREE, run)[1].severity is Severity.WARNING
    assert judge(Unknown("cannot tell"), run)[1].severity is Severity.OK  # not known to be free


def test_unknown_is_told_beside_what_is_known() -> None:
    found = judge(Unknown("held by somebody hidden"), lock("run", held=False))
    assert [finding.severity for finding in found] == [Severity.UNKNOWN, Severity.OK]
    assert found[0].reason == "held by somebody hidden"
