"""The disk under state and checkpoints is filled to the last byte while all runs: nothing lost, nothing unrecorded.

The disk is a small tmpfs in a mount namespace of its own, which ends with the process that holds it.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.campaign_bed import Bed, wait_for
from bench.campaign_counter import final_value
from bench.campaign_observer import is_living
from bench.campaign_workshop import Workshop, differences
from watchdog.drills import places

DISK = "12m"


class Disk(places.Disk):
    def fill_with(self, ledger: Path) -> None:
        """Also the rest of the ledger's last page: with empty lines, which are no records and harm none."""
        while not self.is_full() or ledger.stat().st_size % 4096:
            self.fill()
            with open(ledger, "ab", buffering=0) as file, contextlib.suppress(OSError):
                file.write(b"\n" * (-ledger.stat().st_size % 4096))


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """Its size may be given as the fixture's parameter."""
    with contextlib.ExitStack() as cleanup:
        try:
            made = Disk(tmp_path / "disk", cleanup, getattr(request, "param", DISK))
        except places.PlaceError as why:
            pytest.skip(str(why))
        yield made


def test_filled_to_the_last_byte(disk: Disk, workshop: Workshop) -> None:
    """The real trainer dies on a full disk: its end is recorded, and what follows is a relaunch or a hold in order.

    With space again the job ends as if nothing had been.
    """
    bed = Bed(disk.path, workshop.command(delay_s=0.03), prefix=disk.prefix, seen_root=disk.seen)
    with bed:
        bed.observe()
        supervisor = bed.start()
        run = bed.run_at_step(12)
        wait_for(lambda: (bed.state / "ballast").exists(), "the ballast")
        disk.fill()
        full_at = run.beat()
        assert disk.is_full()
        assert full_at is not None
        run = bed.run_at_step((full_at.step or 0) + 3)
        bed.harm(run.trainer)
        bed.wait_event("run_ended")
        wait_for(lambda: supervisor.poll() is not None or bed.living(), "a hold or another run", every_s=0.02)
        if supervisor.poll() is None:
            disk.free()
            code = bed.ended(supervisor)
        else:
            code = supervisor.returncode
            disk.free()
        if code == 3:
            assert bed.kinds("hold"), bed.tell()
            assert bed.call("relaunch").returncode == 0
            code = bed.ended(bed.start())
        assert code == 0, bed.tell()
        found = [*bed.problems(), *differences(bed.outcome(), workshop.reference())]
        assert not found, "\n".join([*found, bed.tell()])


def test_nothing_is_killed_unrecorded(disk: Disk) -> None:
    """A stall on a full disk is acted upon as long as the ballast can be given up for its record; after that, a run
    whose stop cannot be recorded is left alone until there is space."""
    bed = Bed(
        disk.path,
        [sys.executable, "-P", "-m", "bench.campaign_counter", "--steps", "200", "--delay", "0.03", "--ignore-term"],
        settings={"deadlines": {"train": "1s"}},
        prefix=disk.prefix,
        seen_root=disk.seen,
    )
    with bed:
        bed.observe()
        supervisor = bed.start()
        run = bed.run_at_step(12)
        wait_for(lambda: (bed.state / "ballast").exists(), "the ballast")
        disk.fill_with(bed.state / "ledger.jsonl")
        bed.harm(run.trainer, signal.SIGSTOP)
        stopping = bed.wait_event("run_stopping")
        assert stopping["data"]["cause"] == "stalled"
        assert not (bed.state / "ballast").exists(), "nothing else can have made room for the record"
        run = bed.run_at_step(12, after=run.number)
        disk.fill_with(bed.state / "ledger.jsonl")
        before = len(bed.events())
        bed.harm(run.trainer, signal.SIGSTOP)
        stopped_s = time.monotonic()
        wait_for(lambda: time.monotonic() - stopped_s > 4.0, "deadline and grace, twice over", every_s=0.1)
        assert is_living(run.trainer, None) is not None, "killed without a record\n" + bed.tell()
        assert len(bed.events()) == before, bed.tell()
        assert supervisor.poll() is None, bed.tell()
        assert "took no record" in bed.screen, bed.tell()
        disk.free()
        assert bed.ended(supervisor) == 0, bed.tell()
        assert not bed.problems(), bed.tell()
        assert final_value(200) in (bed.checkpoints / "count.json").read_text()


def test_a_start_on_a_full_disk(disk: Disk, tmp_path: Path) -> None:
    """Nothing can be recorded, so nothing is started; one clear error; with space again it simply works."""
    bed = Bed(
        disk.path,
        [sys.executable, "-P", "-m", "bench.campaign_counter", "--delay", "0.0"],
        prefix=disk.prefix,
        seen_root=disk.seen,
        settings={"relaunch": {"gate_wait": "1s"}},
    )
    with bed:
        disk.fill()
        process = subprocess.run(
            bed.command("run"), env=bed.environment(), cwd="/", capture_output=True, text=True, timeout=30
        )
        assert process.returncode in (1, 2, 3), process.stdout + process.stderr
        assert "Traceback" not in process.stderr, process.stderr
        assert "No space left on device" in process.stdout + process.stderr
        assert not bed.kinds("run_launching")
        disk.free()
        if process.returncode == 3:
            assert bed.call("relaunch").returncode == 0
        assert bed.ended(bed.start()) == 0, bed.tell()
