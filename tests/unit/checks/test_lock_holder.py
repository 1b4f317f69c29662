"""Who holds the job: the normal states, and the ones that ask for a word with the holder."""

from __future__ import annotations

from msgspec.structs import replace

from tests.unit.checks.host import host, lock
from watchdog.checks import lock_holder
from watchdog.core.facts import Lock, LockHolder, Supervisor, Unknown
from watchdog.core.findings import Finding, Remedy, Severity
from watchdog.core.limits import Limits

SUPERVISOR = LockHolder(pid=4711, command="/usr/bin/python /home/me/.venv/bin/watchdog run", since_wall_s=1.0)
TRAINER = LockHolder(pid=4790, command="python -m trainer train", since_wall_s=2.0)
SHIM = LockHolder(pid=4788, command="python -I -S shim.py", since_wall_s=2.0)
FREE = lock("supervisor", held=False, exclusive=False, holders=())
HELD = lock("supervisor", holders=(SUPERVISOR,))
RUN = lock("run", holders=(SHIM, TRAINER))


def judge(*given: Lock | Unknown) -> tuple[Finding, ...]:
    return lock_holder.check(host(locks=given), Limits())


def test_a_supervised_run_is_fine_and_everybody_is_named() -> None:
    supervisor, run = judge(HELD, RUN)
    assert (supervisor.severity, run.severity) == (Severity.OK, Severity.OK)
    assert supervisor.reason == "held by pid 4711 (/usr/bin/python /home/me/.venv/bin/watchdog run)"
    assert run.reason == "held by pid 4788 (python -I -S shim.py) and 1 more"
    assert "pid 4790 (python -m trainer train)" in run.evidence


def test_free_is_fine() -> None:
    found = judge(FREE, lock("run", held=False, holders=()))
    assert [finding.severity for finding in found] == [Severity.OK, Severity.OK]


def test_an_heir_that_is_no_supervisor_is_a_warning() -> None:
    (finding,) = judge(lock(holders=(LockHolder(pid=99, command="sleep 1000", since_wall_s=None),)))
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.ASK_HOLDER)
    assert "inherited" in finding.cause


def test_a_holder_whose_command_is_hidden_is_not_accused() -> None:
    (finding,) = judge(lock(holders=(LockHolder(pid=99, command="", since_wall_s=None),)))
    assert finding.severity is Severity.OK
    assert "cannot be read" in finding.reason


def supervised(by: Supervisor | None, *, since_s: float = 3600.0) -> Finding:
    holder = replace(SUPERVISOR, since_wall_s=1.7e9 - since_s)
    (found,) = lock_holder.check(host(locks=(lock(holders=(holder,)),), supervisor=by), Limits())
    return found


SILENT = Supervisor(pid=None, silence="nobody listens at /state/control.sock")


def test_a_supervisor_that_is_not_the_one_that_answers_or_looks_is_told() -> None:
    found = supervised(Supervisor(pid=5))
    assert (found.severity, found.remedy) == (Severity.WARNING, Remedy.ASK_HOLDER)
    assert found.reason == (
        "held by pid 4711 (/usr/bin/python /home/me/.venv/bin/watchdog run), which has lived for 60 min, "
        "and not by the supervisor of this job, pid 5"
    )
    assert supervised(Supervisor(pid=4711)).severity is Severity.OK


def test_a_holder_that_does_not_answer_is_told_with_what_to_do() -> None:
    found = supervised(SILENT)
    assert (found.severity, found.remedy) == (Severity.WARNING, Remedy.ASK_HOLDER)
    assert found.reason.endswith("has lived for 60 min and does not answer: nobody listens at /state/control.sock")
    assert "kill -KILL 4711" in found.evidence[-1]


def test_one_that_has_just_started_or_was_not_asked_is_fine() -> None:
    assert supervised(SILENT, since_s=29.0).severity is Severity.OK
    assert supervised(None).severity is Severity.OK


def test_a_run_without_supervisor_is_a_warning() -> None:
    assert judge(FREE, RUN)[1].severity is Severity.WARNING
    assert judge(Unknown("cannot tell"), RUN)[1].severity is Severity.OK  # not known to be free


def test_ghosts_and_unlinked_locks_are_left_to_their_own_checks() -> None:
    assert judge(lock(holders=())) == ()
    assert judge(lock(unlinked=True)) == ()


def test_unknown_is_told_beside_what_is_known() -> None:
    found = judge(Unknown("held by somebody hidden"), lock("run", held=False, holders=()))
    assert [finding.severity for finding in found] == [Severity.UNKNOWN, Severity.OK]
    assert found[0].reason == "held by somebody hidden"
