"""The proof by drills: every fault in every phase in which it can be made, watched by an independent eye, and counted.

    python -P -m bench.recovery [--only NAME ...] [--list] [--record]

Each pair of fault and phase is one drill (watchdog/drills) with more around it: an observer that reads the process
table every 10 ms, the rules of campaign_judge over the ledger, and innocent processes beside it. Those are: two with
the words of the trainer's command line, one of them the leader of a session with such a child, one that is given the
number of the trainer that died (root only), and on the stand-in for NVIDIA's driver one that holds device memory.
Exit codes: 0 each pair ended as it should, every count that must be 0 is 0, and the eyes have seen something (with
`--only`: of what was named); 1 that is not so, too few pairs could be made for a proof, or not one; 2 usage.
Refuses to record a part. Two pairs run at a time, the ones that could be taken for another's alone. Driver faults need
tests/fakes and a C compiler.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import fnmatch
import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import campaign_judge as judge
from bench import record
from bench.campaign_bed import Bed, BedError, Living, wait_for
from bench.campaign_observer import is_living
from watchdog.actuators.signals import signal_process
from watchdog.collectors.processes import process_table
from watchdog.core.causes import Cause
from watchdog.drills.faults import FAULTS, Fault, Outcome
from watchdog.drills.making import Ring
from watchdog.drills.run import Result, drill

LEAST_PAIRS = 45
_BYSTANDER = "import time\nwhile True: time.sleep(0.2)"
_LEADER = (
    "import subprocess, sys, time\n"
    f"child = subprocess.Popen([sys.executable, '-c', {_BYSTANDER!r}, *sys.argv[1:]])\n"
    "print(child.pid, flush=True)\nwhile True: time.sleep(0.2)"
)
_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
_HEALTHY = "[device]\n"
# What the probe would say of a card in order; there is none behind the stand-in that could be measured.
_PROBED = {
    **{"device": "stand-in", "tflops": 8.0, "seconds": 0.01, "dtype": "bfloat16", "size": 4096, "correct": True},
    **{"worst_error": 0.001, "threads": None, "total_s": 0.1, "torch": "none"},
}


@dataclasses.dataclass
class Tally:
    """What is counted over all pairs; for use from several threads."""

    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    runs: int = 0
    looks: int = 0
    bystanders: int = 0
    recycled: int = 0
    harmed: int = 0
    double_runs: int = 0
    bad_resumes: int = 0
    unrecorded_kills: int = 0


# --- bystanders ---------------------------------------------------------------------------------------------------
class Bystanders:
    """Processes that look like the job's and are none of it."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self._started: list[subprocess.Popen[bytes]] = []
        self._known: dict[int, int] = {}  # pid -> start time
        self.recycled = 0

    def start(self) -> int:
        """One with the words of the trainer, and a leader of a session with another one. Returns the first's pid."""
        first = self._spawn(_BYSTANDER)
        self._remember(first.pid)
        leader = self._spawn(_LEADER, stdout=subprocess.PIPE)
        assert leader.stdout is not None
        self._remember(leader.pid)
        self._remember(int(leader.stdout.readline()))
        return first.pid

    def _spawn(self, body: str, **how: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", body, *self._words], start_new_session=True, cwd="/", **how)
        self._started.append(process)
        return process

    def _remember(self, pid: int) -> None:
        started = is_living(pid, None)
        assert started is not None, f"the bystander {pid} did not start"
        self._known[pid] = started

    def take_number(self, pid: int, patience_s: float) -> None:
        """Be given the number of a process that died, if the kernel plays along."""
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s and not os.path.exists(f"/proc/{pid}"):
            try:
                _LAST_PID.write_text(str(pid - 1))
            except OSError:
                return  # not root, or no such file in this container
            process = self._spawn(_BYSTANDER)
            if process.pid == pid:
                self._remember(pid)
                self.recycled += 1
                return
            self._started.remove(process)
            process.kill()
            process.wait()

    @property
    def count(self) -> int:
        return len(self._known)

    def harmed(self) -> list[str]:
        """Those that are gone, or stopped."""
        return [
            f"the bystander {pid} was harmed"
            for pid, started in self._known.items()
            if is_living(pid, started) is None or _state(pid) in "Tt"
        ]

    def close(self) -> None:
        """Our own children, not reaped; and the leader's child, by the start time that it was seen with."""
        own = {process.pid for process in self._started}
        for pid in self._known.keys() - own:
            if is_living(pid, self._known[pid]) is not None:
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _state(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X"
    return stat[stat.rindex(")") + 2]


# --- one pair -----------------------------------------------------------------------------------------------------
def watch(tally: Tally, fault: Fault, on_bystander: Callable[[int], None] | None) -> Any:
    """The eyes of a drill: see `watchdog.drills.run.drill`."""

    @contextlib.contextmanager
    def eyes(plain: Any) -> Iterator[Callable[[], Sequence[str]]]:
        bed: Bed = plain
        words = tomllib.loads(bed.config.read_text())["job"]["command"][1:]
        bystanders = Bystanders(words)
        stop = threading.Event()
        taker = threading.Thread(target=_recycle, args=(bed, bystanders, stop), daemon=True)
        try:
            first = bystanders.start()
            if on_bystander is not None:
                on_bystander(first)
            bed.observe()
            if fault.name != "pid-reused":  # that one takes the number itself
                taker.start()
            yield lambda: _judged(bed, fault, bystanders, tally, stop, taker)
        finally:
            stop.set()
            if taker.ident is not None:
                taker.join(10)
            bystanders.close()

    return eyes


def _recycle(bed: Bed, bystanders: Bystanders, stop: threading.Event) -> None:
    """Once the trainer of the first run is dead and reaped, its number is somebody else's."""
    with contextlib.suppress(BedError, FileNotFoundError):
        found: list[Living] = []

        def begun() -> bool:
            run = bed.living()
            found.extend([] if run is None else [run])
            return stop.is_set() or run is not None

        wait_for(begun, "the first run", timeout_s=30)
        if not found:
            return
        pid = found[0].trainer
        wait_for(lambda: stop.is_set() or not os.path.exists(f"/proc/{pid}"), "its end", timeout_s=60)
        if not stop.is_set():
            bystanders.take_number(pid, 0.5)


def _judged(
    bed: Bed, fault: Fault, bystanders: Bystanders, tally: Tally, stop: threading.Event, taker: threading.Thread
) -> list[str]:
    stop.set()
    if taker.ident is not None:
        taker.join(10)
    events = bed.events()
    report = bed.observed()
    doubled = [*judge.observed(report, events), *judge.alternation(events)]
    resumed = [*judge.resumes(events), *judge.acknowledgements(events)]
    killed = bed.kill_problems(events)
    harmed = bystanders.harmed()
    blind = [] if report["runs"] else ["the observer saw no process of any run"]
    with tally.lock:
        tally.runs += len(judge.of_kind(events, "run_launching"))
        tally.looks += report["looks"]
        tally.bystanders += bystanders.count
        tally.recycled += bystanders.recycled
        tally.harmed += len(harmed)
        tally.double_runs += len(doubled)
        tally.bad_resumes += len(resumed)
        tally.unrecorded_kills += len(killed)
    return [*blind, *doubled, *resumed, *killed, *harmed]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """One fault in one phase; `perform` is the drill."""

    fault: Fault
    phase: str
    perform: Callable[[Tally], Result]

    @property
    def name(self) -> str:
        return f"{self.fault.name}/{self.phase}"


def _on_the_cpu(fault: Fault, phase: str) -> Pair:
    def perform(tally: Tally) -> Result:
        return drill(fault, phase, make_bed=Bed, eyes=watch(tally, fault, None))

    return Pair(fault=fault, phase=phase, perform=perform)


# --- faults of the driver, on the stand-in ------------------------------------------------------------------------
class StandIn:
    """A stand-in driver with one device, for one drill."""

    def __init__(self, folder: Path) -> None:
        # Not an import: from an installed command line the folder of tests is on no path.
        path = record.ROOT / "tests" / "fakes" / "nvml" / "standin.py"
        spec = importlib.util.spec_from_file_location("standin", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.scenario = module.Scenario(folder / "scenario", _HEALTHY)
        self.environment: dict[str, str] = module.environment(module.build(folder), self.scenario.path)
        self.process = ""
        self.python = folder / "python"
        self.python.write_text(f"#!{sys.executable} -ISB\nimport json\nprint(json.dumps({_PROBED!r}))\n")
        self.python.chmod(0o755)

    def hold_memory(self, pid: int) -> None:
        """An innocent process that is listed on the device."""
        self.process = f"process = {pid} 900 compute /usr/bin/other\nmemory_used_mib = 1200\n"
        self.write()

    def write(self, top: str = "", device: str = "") -> None:
        self.scenario.write(f"{top}[device]\n{self.process}{device}")

    def close(self) -> None:
        """End the children that asked it: one that is stuck outlives its supervisor, until its alarm."""
        marker = os.fsencode(f"FAKE_NVML={self.scenario.path}\0")
        for process in process_table():
            with contextlib.suppress(OSError):
                asks = b"/nvml_child.py\0" in Path(f"/proc/{process.id.pid}/cmdline").read_bytes()
                if asks and marker in Path(f"/proc/{process.id.pid}/environ").read_bytes():
                    signal_process(process.id, signal.SIGKILL)


def _driver_bed(driver: StandIn) -> Callable[..., Bed]:
    class DriverBed(Bed):
        def environment(self) -> dict[str, str]:
            return super().environment() | driver.environment

    return DriverBed


def _driver_faults(driver: StandIn | None) -> list[Fault]:
    """`driver` None: only to name them."""
    python = "" if driver is None else str(driver.python)

    def write(top: str = "", device: str = "") -> Callable[[Ring], None]:
        def make(_ring: Ring) -> None:
            assert driver is not None
            driver.write(top, device)

        return make

    def write_and_kill(top: str = "", device: str = "") -> Callable[[Ring], None]:
        def make(ring: Ring) -> None:
            write(top, device)(ring)
            time.sleep(1.0)  # for so long it is seen, before a run is needed
            ring.bed.strike(ring.trainer)

        return make

    def heal(_ring: Ring) -> None:
        assert driver is not None
        driver.process = ""  # nothing is measured beside another's work
        driver.write()

    def fault(name: str, words: str, make: Callable[[Ring], None], **more: Any) -> Fault:
        settings: dict[str, dict[str, Any]] = {
            "job": {"devices": ["0"]},
            "relaunch": {"gate_wait": "4s"},
            "probe": {"python": python},
        }
        return Fault(name=name, words=words, make=make, settings=settings, **more)

    killed = frozenset({Cause.KILLED})
    hang = "hang nvmlDeviceGetUtilizationRates\n"
    unharmed: dict[str, Any] = {"outcome": Outcome.UNHARMED}
    held: dict[str, Any] = {"outcome": Outcome.HELD, "causes": killed, "mend": heal}
    return [
        fault("driver-hangs", "the driver hangs beside a living run", write(hang), **unharmed),
        fault("driver-crashes", "its library crashes", write("crash nvmlDeviceGetTemperature\n"), **unharmed),
        fault(
            "driver-hangs-at-relaunch",
            "the driver hangs when a run is needed",
            write_and_kill(hang),
            hold="does not answer",
            **held,
        ),
        fault(
            "gpu-lost-at-relaunch",
            "the device is lost when a run is needed",
            write_and_kill("", "lost = 1\n"),
            hold="it is lost",
            **held,
        ),
        fault("gpu-held-by-another", "another's process holds device memory", write_and_kill(), causes=killed),
    ]


def _on_the_stand_in(place: int, name: Fault) -> Pair:
    def perform(tally: Tally) -> Result:
        with tempfile.TemporaryDirectory(prefix="gpuhost-watchdog-driver-") as folder:
            driver = StandIn(Path(folder))
            with contextlib.closing(driver):
                fault = _driver_faults(driver)[place]
                eyes = watch(tally, fault, driver.hold_memory)
                return drill(fault, "train", make_bed=_driver_bed(driver), eyes=eyes)

    return Pair(fault=name, phase="train", perform=perform)


def pairs() -> list[Pair]:
    """Every pair there is, whether this host can make it or not."""
    found = [_on_the_cpu(fault, phase) for fault in FAULTS for phase in fault.phases]
    return [*found, *(_on_the_stand_in(place, fault) for place, fault in enumerate(_driver_faults(None)))]


# --- all of them --------------------------------------------------------------------------------------------------
def perform_all(chosen: Sequence[Pair], tally: Tally, *, at_a_time: int) -> list[Result]:
    """Each pair; those that must be alone come last."""
    results: list[Result] = []

    def one(pair: Pair) -> Result:
        result = pair.perform(tally)
        verdict = "as it should" if result.ok else "NOT AS IT SHOULD"
        cause = (result.detected_as or "-").replace("_", " ")
        print(f"{pair.name:<34} {cause:<16} {result.outcome:<10} {result.took_s:>5.1f} s  {verdict}", flush=True)
        for problem in result.problems:
            print("    " + problem.replace("\n", "\n    "), flush=True)
        return result

    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        results += pool.map(one, [pair for pair in chosen if not pair.fault.alone])
    for pair in chosen:
        if pair.fault.alone:
            results.append(one(pair))
    return results


def summary(results: Sequence[Result], tally: Tally) -> dict[str, Any]:
    """The figures of the judged sentence."""

    def middle(values: Sequence[float | None]) -> object:
        known = [value for value in values if value is not None]
        return f"{statistics.median(known):.2f} (of {len(known)} pairs)" if known else "none"

    wrong = sum("the weights are" in problem for result in results for problem in result.problems)
    return {
        "pairs": len(results),
        "as they should": sum(result.ok for result in results),
        "bystanders": tally.bystanders,
        "with a recycled pid": tally.recycled,
        "bystanders harmed": tally.harmed,
        "double runs": tally.double_runs,
        "bad resumes": tally.bad_resumes,
        "unrecorded kills": tally.unrecorded_kills,
        "wrong final weights": wrong,
        "noticed after, median s": middle([result.detected_s for result in results]),
        "new step after, median s": middle([result.next_step_s for result in results]),
    }


def misses(results: Sequence[Result], tally: Tally, *, whole: bool, may_recycle: bool) -> list[str]:
    """A sentence for all that keeps this from being a proof. `may_recycle`: this user may choose a process number."""
    found = [f"{each.fault}/{each.phase} did not end as it should" for each in results if not each.ok]
    if not results:
        found.append("not one pair was made")
    for count, what in (
        (tally.harmed, "bystanders were harmed"),
        (tally.double_runs, "double runs were seen"),
        (tally.bad_resumes, "resumes were bad"),
        (tally.unrecorded_kills, "kills are on no record"),
    ):
        if count:
            found.append(f"{count} {what}")
    if whole:
        if len(results) < LEAST_PAIRS:
            found.append(f"{len(results)} pairs were made, {LEAST_PAIRS} are the least for a proof")
        if may_recycle and not tally.recycled:
            found.append("no bystander was ever given the number of a trainer that died")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m bench.recovery", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="pairs by name or pattern, such as kill/train 'stop/*'"
    )
    parser.add_argument("--list", action="store_true", help="the pairs, and what cannot be made here")
    parser.add_argument("--at-a-time", type=int, default=2, help="drills beside each other (2)")
    parser.add_argument("--record", action="store_true", help="add the result to docs/benchmarks.md")
    wishes = parser.parse_args(argv)
    if wishes.record and (wishes.only or wishes.list):
        parser.error("only all pairs are a result to record")
    known = pairs()
    chosen = [
        pair for pair in known if not wishes.only or any(fnmatch.fnmatch(pair.name, name) for name in wishes.only)
    ]
    if not chosen:
        parser.error(f"no pair is called {' or '.join(wishes.only)}; --list names them")
    possible = {pair.name for pair in chosen if not pair.fault.why_not()}
    for pair in chosen:
        if wishes.list or pair.name not in possible:
            print(f"{pair.name:<34} {pair.fault.why_not() or 'can be made'}")
    if wishes.list:
        return 0
    began_s, tally = time.monotonic(), Tally()
    results = perform_all([pair for pair in chosen if pair.name in possible], tally, at_a_time=wishes.at_a_time)
    row = summary(results, tally)
    details = {
        "minutes": round((time.monotonic() - began_s) / 60, 1),
        "runs": tally.runs,
        "looks of the observers": tally.looks,
        "not made here": sorted({pair.name for pair in chosen} - possible),
        "outcomes": {f"{result.fault}/{result.phase}": [result.detected_as, result.outcome] for result in results},
    }
    shown = {**row, **{key: value for key, value in details.items() if key != "outcomes"}}
    print("\n".join(f"{key}: {value}" for key, value in shown.items()))
    whole = not wishes.only
    found = misses(results, tally, whole=whole, may_recycle=os.access(_LAST_PID, os.W_OK))
    for words in found:
        print(words, file=sys.stderr)
    if wishes.record and len(results) >= LEAST_PAIRS:
        record.append("recovery by drills", [row], details=details)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
