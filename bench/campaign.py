"""The large form of the end-to-end proof: random faults at random moments against the real trainer, counted.

    python -P -m bench.campaign [--minutes M] [--seed S] [--no-record]

Each job gets a few faults, drawn with the seed; an independent observer watches it, copies of its command line stand
beside it, and at its end every digit of its losses is compared with an undisturbed run's. The result goes to
docs/benchmarks.md with commit and seed. Exit 0: every count that must be 0 is 0. What went wrong is printed with the
job's own seed and its ledger. The order of faults follows the seed; the moments also depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench import campaign_judge as judge
from bench import record
from bench.campaign_bed import Bed, BedError, Living, Outcome, wait_for
from bench.campaign_faults import COMPANIES, FAULTS, PHASES, SHELL, Ring, alive, clear, possible
from bench.campaign_workshop import PRESET, STEPS, Workshop, differences
from watchdog.contract import Beat

# A stopped trainer must be found in any phase; importing torch on a busy machine takes its time.
SETTINGS: dict[str, dict[str, Any]] = {
    "deadlines": {
        "start": "20s",
        "import": "30s",
        "prepare": "20s",
        "load": "10s",
        "first_step": "5s",
        "train": "2s",
        "evaluate": "3s",
        "save": "5s",
        "drain": "5s",
        "finished": "5s",
    }
}
_BYSTANDER = "import time\nwhile True: time.sleep(1)"


@dataclasses.dataclass
class Tally:
    """What is counted."""

    jobs: int = 0
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    phases: Counter[str] = dataclasses.field(default_factory=Counter)
    runs: int = 0
    looks: int = 0
    longest_gap_s: float = 0.0
    double_runs: int = 0
    wrong_losses: int = 0
    bad_resumes: int = 0
    bystanders_harmed: int = 0
    unrecorded_kills: int = 0
    unfinished: int = 0
    broken_ledgers: int = 0
    detected_s: list[float] = dataclasses.field(default_factory=list)
    relaunched_s: list[float] = dataclasses.field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(
            (
                self.double_runs,
                self.wrong_losses,
                self.bad_resumes,
                self.bystanders_harmed,
                self.unrecorded_kills,
                self.unfinished,
                self.broken_ledgers,
            )
        )

    def row(self) -> dict[str, Any]:
        def middle(values: list[float]) -> object:
            return round(statistics.median(values), 2) if values else "none"

        return {
            "jobs": self.jobs,
            "faults": sum(self.faults.values()),
            "runs": self.runs,
            "double runs": self.double_runs,
            "wrong final losses": self.wrong_losses,
            "resumes from bad checkpoints": self.bad_resumes,
            "bystanders harmed": self.bystanders_harmed,
            "unrecorded kills": self.unrecorded_kills,
            "broken ledgers": self.broken_ledgers,
            "unfinished jobs": self.unfinished,
            "death to record, median s": middle(self.detected_s),
            "record to restored, median s": middle(self.relaunched_s),
        }


def struck_at(chance: random.Random) -> tuple[str, float, int]:
    """(phase, how long into it, step): when the next fault strikes."""
    phase = chance.choice(PHASES)
    return phase, chance.uniform(0.0, 0.3 if phase in ("import", "load") else 0.05), chance.randrange(1, STEPS)


def wait_for_moment(bed: Bed, supervisor: subprocess.Popen[bytes], chance: random.Random) -> tuple[Living | None, str]:
    """The living run at a moment that chance chose, or (None, "") when the job was over before."""
    phase, later_s, step = struck_at(chance)

    def there(beat: Beat | None) -> bool:
        if beat is None:
            return False
        return beat.phase == phase and (phase != "train" or (beat.step or 0) >= step)

    began_s = time.monotonic()

    def look() -> tuple[Living | None, str] | None:
        if supervisor.poll() is not None:
            return None, ""
        run = bed.living()
        if run is None:
            return None
        beat = run.beat()
        # A phase that is over already does not come again in this run: after a while any moment will do.
        if there(beat) or time.monotonic() - began_s > 6.0:
            return run, "none yet" if beat is None else beat.phase
        return None

    run, name = wait_for(look, "a moment to strike", every_s=0.002)
    if run is not None:
        time.sleep(later_s)
    return run, name


def play(bed: Bed, workshop: Workshop, company: str, chance: random.Random, tally: Tally) -> None:
    """One job with its faults, to its end."""
    supervisor = bed.start()
    for _ in range(chance.randrange(1, 5)):
        run, phase = wait_for_moment(bed, supervisor, chance)
        if run is None:
            break
        name = chance.choice(possible(company))
        ring = Ring(bed=bed, chance=chance, stranger=workshop.stranger(), supervisor=supervisor)
        wall_s, known = time.time(), len(bed.kinds("run_ended", "run_stopping"))
        FAULTS[name](ring, run)
        tally.faults[name] += 1
        tally.phases[phase] += 1
        print(f"          {name} in phase {phase}, run {run.number}", flush=True)
        if ring.restart:
            supervisor = bed.start()
        elif name == "kill trainer":  # a killed shell leaves a trainer that goes on, and is no end
            with contextlib.suppress(BedError):
                wait_for(lambda: len(bed.kinds("run_ended", "run_stopping")) > known, "a record", timeout_s=10)  # noqa: B023
                tally.detected_s.append(bed.kinds("run_ended", "run_stopping")[known]["wall_s"] - wall_s)
    code = bed.ended(supervisor, timeout_s=180)
    if code != 0:
        raise BedError(f"the supervisor left with {code}\n{bed.tell()}")


def one_job(root: Path, workshop: Workshop, seed: int, tally: Tally) -> list[str]:
    """Returns what went wrong."""
    chance = random.Random(seed)
    company, in_shell = chance.choice(sorted(COMPANIES)), chance.random() < 0.25
    preset = chance.choice([PRESET, PRESET, "bitmamba-test"])
    command = workshop.command(preset=preset, delay_s=chance.choice([0.01, 0.03]), disturbed=COMPANIES[company])
    root.mkdir()
    place = ", in a shell" if in_shell else ""
    print(f"job {tally.jobs + 1:<5} seed {seed}, {preset}, trainer {company}{place}", flush=True)
    bystanders = [
        subprocess.Popen([sys.executable, "-c", _BYSTANDER, *command[1:]], start_new_session=True, cwd="/")
        for _ in range(2)
    ]
    found: list[str] = []
    tally.jobs += 1
    try:
        with Bed(root, [*SHELL, *command] if in_shell else command, settings=SETTINGS) as bed:
            bed.observe()
            try:
                play(bed, workshop, company, chance, tally)
            except (BedError, AssertionError) as error:
                tally.unfinished += 1
                found.append(str(error))
            found += judge_job(bed, workshop.reference(preset), tally, finished=not found)
            if found:
                found.append(bed.tell())
    finally:
        harmed = [process.pid for process in bystanders if process.poll() is not None or not alive(process.pid)]
        tally.bystanders_harmed += len(harmed)
        found += [f"bystander {pid} was harmed" for pid in harmed]
        for process in bystanders:
            process.kill()
            process.wait()
    return found


def judge_job(bed: Bed, reference: Outcome, tally: Tally, *, finished: bool) -> list[str]:
    """Every rule, counted apart."""
    report = bed.observed()
    tally.looks += report["looks"]
    tally.longest_gap_s = max(tally.longest_gap_s, report["longest_gap_s"])
    try:
        events = bed.events()
    except ValueError as error:
        tally.broken_ledgers += 1
        return [f"the ledger is not intact: {error}"]
    tally.runs += len(judge.of_kind(events, "run_launching"))
    tally.relaunched_s += judge.relaunch_times(events)
    doubled = [*judge.observed(report, events), *judge.alternation(events)]
    resumed = [*judge.resumes(events), *judge.acknowledgements(events)]
    killed = bed.kill_problems(events)
    tally.double_runs += len(doubled)
    tally.bad_resumes += len(resumed)
    tally.unrecorded_kills += len(killed)
    wrong = differences(bed.outcome(), reference) if finished else []
    tally.wrong_losses += bool(wrong)
    return [*doubled, *resumed, *killed, *wrong]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m bench.campaign", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long new jobs are begun (30)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (1)")
    parser.add_argument("--no-record", action="store_true", help="print only; leave docs/benchmarks.md alone")
    wishes = parser.parse_args(argv)
    tally = Tally()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpuhost-watchdog-campaign-") as name:
        workshop = Workshop(Path(name) / "workshop")
        for preset in (PRESET, "bitmamba-test"):
            workshop.reference(preset)
        workshop.stranger()
        seeds = random.Random(wishes.seed)
        while time.monotonic() - began_s < wishes.minutes * 60:
            root = Path(name) / f"job{tally.jobs}"
            found = one_job(root, workshop, seeds.randrange(2**31), tally)
            print("\n".join(found) if found else "          as undisturbed", flush=True)
            clear(root)
    rows = [tally.row()]
    details = {
        "minutes": round((time.monotonic() - began_s) / 60, 1),
        "faults": dict(sorted(tally.faults.items())),
        "phases": dict(sorted(tally.phases.items())),
        "observer": {"looks": tally.looks, "longest gap, s": round(tally.longest_gap_s, 3)},
    }
    print("\n".join(f"{key}: {value}" for key, value in {**rows[0], **details}.items()))
    if not wishes.no_record:
        record.append("campaign of faults", rows, seed=wishes.seed, details=details)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
