"""Which devices the runs of a job used outlives a supervisor: the next one decides at its gate as this one would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.host.bed import CLOCK, SLEEPER
from tests.unit.checks.ghosts import NO_RUN
from tests.unit.checks.host import UUID, gpu, host
from watchdog.core.facts import Driver, Facts, Unknown
from watchdog.errors import RecordingError
from watchdog.ledger import Ledger, read_events
from watchdog.opening import open_job
from watchdog.policy import policy_from
from watchdog.screen import Screen
from watchdog.settings import load
from watchdog.supervisor import Supervisor

OTHER = "GPU-77777777-0000-0000-0000-000000000000"
HUNG = host(
    driver=Driver(version=None, cuda_version=None, devices=None, node="/dev/nvidiactl", silent_s=120.0),
    devices=Unknown("it hangs"),
    **NO_RUN,
)
BESIDE = gpu(uuid=OTHER, index=1, processes=())
ONE_IS_LOST = host(devices=(gpu(processes=()), gpu(uuid=OTHER, index=1, lost_code=15)), **NO_RUN)


@contextmanager
def supervisor(root: Path, monkeypatch: pytest.MonkeyPatch, told: list[Facts]) -> Iterator[Supervisor]:
    """One that sees what is `told`, of a job that names no device."""
    overrides = {"state.folder": str(root / "state"), "job.checkpoints": str(root / "checkpoints"), "disk.need": "0"}
    settings = load(environ={}, home=root, cwd=root, command=SLEEPER, overrides=overrides)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    job = open_job(settings, CLOCK, ["watchdog", "run"])
    found = Supervisor(settings, job, policy_from(settings, leave_on_hold=False), clock=CLOCK, screen=Screen())
    monkeypatch.setattr(found._host._lookout, "poll", lambda run: told[0])
    try:
        yield found
    finally:
        found._host.close()
        job.ledger.close()
        job.lock.close()


def turn(found: Supervisor) -> bool:
    """One look. Whether the gate of the devices is open."""
    seen = found._gather(CLOCK.monotonic(), gap=False)
    (is_open,) = [gate.open for gate in seen.gates if gate.name == "devices"]
    return is_open


def recorded(root: Path) -> list[list[str]]:
    (path,) = (root / "state").rglob("ledger.jsonl")
    return [event.data["uuids"] for event in read_events(path)[0] if event.kind == "uses_gpu"]


def test_it_is_recorded_once_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told = [HUNG]
    with supervisor(tmp_path, monkeypatch, told) as found:
        assert turn(found), "nobody was seen on a device"
        assert recorded(tmp_path) == []
        nowhere = host(devices=(gpu(processes=()), BESIDE))
        for facts in (nowhere, nowhere, host(devices=(gpu(), BESIDE)), nowhere, host(devices=(gpu(), BESIDE))):
            told[0] = facts
            turn(found)
        assert recorded(tmp_path) == [[], [UUID]]
        told[0] = HUNG
        assert not turn(found)
    with supervisor(tmp_path, monkeypatch, told) as found:
        assert not turn(found), "the same ledger, the same decision"
        told[0] = ONE_IS_LOST
        assert turn(found), "no run was ever seen on that one"
    assert recorded(tmp_path) == [[], [UUID]]
    assert "seen on" not in capfd.readouterr().err, "it is for a restart, not for people"


def test_a_record_that_fails_is_tried_again_but_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs keeps each who records waiting."""
    tries = []

    def refuse(self: Ledger, entries: object) -> None:
        tries.append(entries)
        raise RecordingError("the disk is full")

    told = [host()]
    with supervisor(tmp_path, monkeypatch, told) as found:
        found._host.look()
        with monkeypatch.context() as broken:
            broken.setattr(Ledger, "record_all", refuse)
            for now_s in (100.0, 100.2, 129.0):
                found._remember_gpus(now_s)
            assert len(tries) == 1
            found._remember_gpus(131.0)
            assert len(tries) == 2
        found._remember_gpus(162.0)
    assert recorded(tmp_path) == [[UUID]]
