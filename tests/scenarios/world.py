"""A host made of a scenario file: fixture trees for /proc, /sys and /dev, the NVML stand-in, a clock that is told.

Responsible for turning one TOML file into a host that the real collectors read, look after look, through the same
`Lookout` as the supervisor and `watchdog diagnose` use. What cannot be had as a file (beats of a run that does not
exist, a probe, a lock, a full disk) is given as facts. Refuses keys that it does not know: a misspelt scenario is an
error and no quiet pass.

    title = "one line"
    wsl = false                       # true: kernel, namespaces, nodes and library as under WSL2
    container = false                 # true: a pid namespace of its own, and no kernel log
    hidepid = false                   # true: /proc shows us our own processes only, so process 1 is not there
    looks = 6                         # looks in all, `every_s` apart on the told clock
    every_s = 1.0
    deadline_s = 5.0                  # real seconds that a look waits for the driver
    missing = ["nvmlDevice..."]       # functions that the library has not
    nvml = '''...'''                  # see tests/fakes/nvml/standin.py; without it the host has no driver at all
    nodes = ["nvidia0"]               # of /dev, if others than follow from nvml and wsl

    [files]                           # texts of files, by path below the fixture root: "proc/meminfo" = "..."
                                      # in them, and in nodes, @STATE@ and @CHECKPOINTS@ are the job's folders
    [[process]]                       # pid, ppid = 1, command, state = "S", kernel = false, nodes = ["/dev/nvidia0"],
                                      # threads = ["S", "D"], wchan = "x", start = 100 (ticks)
    [[kernel]]                        # age_s = 10.0, text = "NVRM: ...", facility = 0, times = 1: a line of its log
    [job]                             # fields of core.limits.Limits
    [run]                             # the living run; without it none is alive
    shim = 4700                       # pid of a [[process]]; the run is what descends from it
    beat = { phase = "train", age_s = 0.5, step = 420, ... }            # fields of BeatFact, sensible defaults
    progress = { stands_s = 0.8, heard_s = 0.8, ... }                   # see `_progress`; or "none"
    [[disk]], [[lock]]                # facts that replace the looked-at ones: fields of Disk and Lock
                                      # without a [[disk]] the looked-at ones have 200 of 500 GiB free, always
                                      # free_inodes = "none": not counted
    [[probe]]                         # fields of Probe; with `why` there was no answer
    [clocks], [oom], [pressure]       # facts that replace the looked-at ones; [clocks] jumps = [{kind=..., ...}]
    blind_s = 0.0
    supervisor = 3100                 # pid of who answers at the job's socket; a text: why nobody does
    unknown = { kernel = "why" }      # facts that could not be seen
    absent = { kernel = "why" }       # facts that are not there for this user

    [[then]]                          # before look number `look` (2 is the second):
    look = 4
    nvml = '''...'''                  # the whole text anew, or
    replace = [["old", "new"]]        # in the nvml text
    [then.files]                      # written anew; an empty text removes the file
    kernel = [{...}]                  # further lines
    wait_s = 61.0                     # the told clock goes on by this much more
    leap_s = 28800.0                  # the wall clock alone leaps by this much
    gone = [8123]                     # processes that end
    start = [{pid = ...}]             # processes that begin

    [expect]
    findings = [{ check = "ghost-context", severity = "critical", remedy = "relaunch", subject = "part of it" }]
                                      # ALL findings that are unknown, warning or critical; remedy, subject optional
    near = ["lost-pid"]               # checks for which this is a near miss: they must say nothing loud here
    silent = { NAME = "told by OTHER" }   # of those: says nothing at all, since another one speaks, or why
    says = ["part of a reason or evidence", ...]
    measure = "part of why not"       # what is said to who wants to measure now; "" = a device may be measured
    [[expect.at]]                     # what an earlier look must have said, as in `findings` above
    look = 4
    findings = []
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.fakes.nvml import standin
from tests.unit.checks import host as healthy
from watchdog.checks import catalogue
from watchdog.collectors.roots import Roots
from watchdog.core.facts import (
    Absent,
    Clocks,
    Disk,
    Fact,
    Facts,
    Jump,
    Known,
    NotMeasured,
    OomKills,
    Pressure,
    Probe,
    Probed,
    Supervisor,
    Unknown,
)
from watchdog.core.findings import Finding, Severity
from watchdog.core.identity import ProcessId
from watchdog.core.limits import GIB, Limits
from watchdog.lookout import Lookout, OfRun, Targets

FOLDER = Path(__file__).parent
BOOT_ID = "5b1f7a4c-6f0e-4d57-9d0a-3c1f0e9a7b21"
START_S = 10_000.0
_KEYS = frozenset(
    (
        *("title", "wsl", "container", "hidepid", "looks", "every_s", "deadline_s"),
        *("missing", "nvml", "nodes", "files", "process", "kernel"),
        *("job", "run", "disk", "lock", "probe", "clocks", "oom", "pressure", "blind_s", "unknown", "then", "expect"),
        *("absent", "supervisor"),
    )
)
_PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def scenario_files() -> list[Path]:
    return sorted(FOLDER.glob("*.toml"))


class ToldClock:
    """Goes on only when it is told to."""

    def __init__(self) -> None:
        self.now_s = START_S
        self.leapt_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now_s + self.leapt_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    facts: Facts
    findings: tuple[Finding, ...]
    each: tuple[tuple[Finding, ...], ...]  # of every look, oldest first

    @property
    def loud(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is not Severity.OK]


class World:
    """One scenario's host, under `folder`."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.told = tomllib.loads(path.read_text(encoding="utf-8"))
        if unknown := set(self.told) - _KEYS:
            raise ValueError(f"{path.name}: unknown keys {sorted(unknown)}")
        self.expect: dict[str, Any] = self.told["expect"]
        self.clock = ToldClock()
        self.limits = _limits(self.told.get("job", {}))
        self._folder = folder
        self.root = folder / "root"
        self.roots = Roots(str(self.root))
        self.environ = {"PATH": os.environ.get("PATH", os.defpath)}
        self._wsl = self.told.get("wsl", False)
        self._nvml: standin.Scenario | None = None
        self._make_tree()
        self._make_driver()

    # --- the tree ------------------------------------------------------------------------------------------
    def _make_tree(self) -> None:
        release = "5.15.153.1-microsoft-standard-WSL2" if self._wsl else "6.1.0-28-amd64"
        contained = self.told.get("container", False)
        namespace = 4026532201 if self._wsl or contained else 4026531836
        files = {
            "proc/meminfo": "MemTotal: 33554432 kB\nMemFree: 16777216 kB\nMemAvailable: 20971520 kB\n"
            "Cached: 4194304 kB\nSReclaimable: 262144 kB\nShmem: 65536 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
            "proc/vmstat": "pgmajfault 1000\npswpin 0\npswpout 0\noom_kill 0\n",
            "proc/pressure/memory": _PRESSURE,
            "proc/self/cgroup": "0::/user.slice/job.scope\n",
            "proc/self/mountinfo": "25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
            "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
            "proc/locks": "",
            "proc/version": f"Linux version {release} (builder) #1 SMP\n",
            "proc/sys/kernel/osrelease": f"{release}\n",
            "proc/sys/kernel/pid_max": "4194304\n",
            "proc/sys/kernel/random/boot_id": f"{BOOT_ID}\n",
            "proc/stat": "btime 1699990000\n",
            "dev/kmsg": "",
            "sys/fs/cgroup/user.slice/job.scope/memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
            "sys/fs/cgroup/user.slice/memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
        }
        if self._wsl:
            files |= {
                "etc/wsl.conf": "[boot]\nsystemd=true\n",
                "mnt/c/Users/me/.wslconfig": "[general]\ninstanceIdleTimeout=-1\n[wsl2]\nvmIdleTimeout=-1\n",
            }
            if self.told.get("nodes") is None:
                files["dev/dxg"] = ""
        if contained:
            del files["dev/kmsg"]
        for name, text in (files | self.told.get("files", {})).items():
            self._write(name, text)
        (self.root / "proc/self/ns").mkdir(parents=True)
        (self.root / "proc/self/ns/pid").symlink_to(f"pid:[{namespace}]")
        if not self.told.get("hidepid", False):
            self._write_process({"pid": 1, "ppid": 0, "command": "systemd", "start": 1})
        for process in self.told.get("process", []):
            self._write_process(process)
        for line in self.told.get("kernel", []):
            self._kernel(line)

    def _write(self, name: str, text: str) -> None:
        path = self.root / name
        if not text and name not in ("proc/locks", "dev/kmsg", "dev/dxg"):
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._placed(text))

    def _placed(self, text: str) -> str:
        for name in ("state", "checkpoints"):
            text = text.replace(f"@{name.upper()}@", str(self._folder / name))
        return text

    def _write_process(self, told: Mapping[str, Any]) -> None:
        given = {"ppid": 1, "command": "python", "state": "S", "start": 100, "kernel": False} | dict(told)
        if extra := set(given) - {"pid", "ppid", "command", "state", "start", "kernel", "nodes", "threads", "wchan"}:
            raise ValueError(f"unknown keys of a process: {sorted(extra)}")
        pid = given["pid"]
        parent = 2 if given["kernel"] else given["ppid"]

        def stat(number: int, state: str) -> str:
            rest = f"{parent} {pid} {pid} 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 {given['start']} 0 0"
            return f"{number} ({given['command']}) {state} {rest} 18446744073709551615 0 0 0\n"

        folder = f"proc/{pid}"
        self._write(f"{folder}/stat", stat(pid, given["state"]))
        self._write(f"{folder}/comm", given["command"][:15] + "\n")
        if "wchan" in given:
            self._write(f"{folder}/wchan", given["wchan"])
        self._write(f"{folder}/status", f"Name:\t{given['command']}\nTracerPid:\t0\n")
        for number, state in enumerate(given.get("threads", [given["state"]])):
            self._write(f"{folder}/task/{pid + number}/stat", stat(pid + number, state))
            if "wchan" in given:
                self._write(f"{folder}/task/{pid + number}/wchan", given["wchan"])
        descriptors = self.root / folder / "fd"
        shutil.rmtree(descriptors, ignore_errors=True)
        descriptors.mkdir(parents=True)
        for number, node in enumerate(given.get("nodes", [])):
            (descriptors / str(number + 3)).symlink_to(self._placed(node))

    def _kernel(self, told: Mapping[str, Any]) -> None:
        at_us = int((self.clock.now_s - float(told.get("age_s", 1.0))) * 1e6)
        priority = 8 * int(told.get("facility", 0)) + 4
        with open(self.root / "dev/kmsg", "a", encoding="utf-8") as file:
            file.write(f"{priority},{at_us // 1000},{at_us},-;{told['text']}\n" * int(told.get("times", 1)))

    # --- the driver ----------------------------------------------------------------------------------------
    def _make_driver(self) -> None:
        text = self.told.get("nvml")
        nodes = self.told.get("nodes")
        if text is not None:
            place = self.root / "usr/lib/wsl/lib" if self._wsl else self._folder / "driver"
            place.mkdir(parents=True)
            standin.build(place, missing=self.told.get("missing", ()), wsl=self._wsl)
            self._nvml = standin.Scenario(self._folder / "nvml.conf", text)
            self.environ |= standin.environment(place, self._nvml.path)
            if nodes is None and not self._wsl:
                nodes = ["nvidiactl", *(f"nvidia{number}" for number in range(text.count("[device]")))]
        for node in nodes or []:
            self._write_node(node)

    def _write_node(self, name: str) -> None:
        (self.root / "dev").mkdir(exist_ok=True)
        (self.root / "dev" / name).touch()

    @property
    def devices(self) -> list[str]:
        """The UUIDs that the scenario writes out, in the order of their indexes."""
        lines = (line.split("=") for line in self.told.get("nvml", "").splitlines())
        return [words[1].strip() for words in lines if words[0].strip() == "uuid"]

    # --- looking -------------------------------------------------------------------------------------------
    def look(self) -> Outcome:
        """Every look of the scenario; the findings are those of the last."""
        lookout = Lookout(self.targets(), roots=self.roots, clock=self.clock, environ=self.environ)
        each = []
        try:
            for number in range(1, self.told.get("looks", 6) + 1):
                for change in self.told.get("then", []):
                    if change["look"] == number:
                        self._change(change)
                facts = self._given(lookout.gather(self.run(), float(self.told.get("deadline_s", 5.0))))
                each.append(catalogue.judge(facts, self.limits))
                self.clock.now_s += float(self.told.get("every_s", 1.0))
        finally:
            lookout.close()
        return Outcome(facts=facts, findings=each[-1], each=tuple(each))

    def targets(self) -> Targets:
        shim = self.told.get("run", {}).get("shim")
        starts = {process["pid"]: process.get("start", 100) for process in self.told.get("process", [])}
        state, checkpoints = self._folder / "state", self._folder / "checkpoints"
        state.mkdir(exist_ok=True)
        checkpoints.mkdir(exist_ok=True)
        return Targets(
            disks=[(str(state), "state"), (str(checkpoints), "checkpoints")],
            locks=[(str(state / "supervisor.lock"), "supervisor"), (str(state / "run.lock"), "run")],
            root=None if shim is None else ProcessId(shim, starts[shim]),
        )

    def _change(self, change: Mapping[str, Any]) -> None:
        known = {"look", "nvml", "replace", "files", "kernel", "wait_s", "leap_s", "gone", "start"}
        if extra := set(change) - known:
            raise ValueError(f"unknown keys of a change: {sorted(extra)}")
        self.clock.now_s += float(change.get("wait_s", 0.0))
        self.clock.leapt_s += float(change.get("leap_s", 0.0))
        if "nvml" in change:
            assert self._nvml is not None
            self._nvml.write(change["nvml"])
        for old, new in change.get("replace", []):
            assert self._nvml is not None
            self._nvml.replace(old, new)
        for name, text in change.get("files", {}).items():
            self._write(name, text)
        for line in change.get("kernel", []):
            self._kernel(line)
        for pid in change.get("gone", []):
            shutil.rmtree(self.root / f"proc/{pid}")
        for process in change.get("start", []):
            self._write_process(process)

    # --- what is given as facts ----------------------------------------------------------------------------
    def run(self) -> OfRun:
        told = self.told.get("run")
        now_s = self.clock.now_s
        probes = tuple(map(_probed, self.told.get("probe", [])))
        probe = Known(probes, now_s) if probes else Absent("not measured")
        known: dict[str, Any] = {"probe": probe, "blind_s": float(self.told.get("blind_s", 0.0))}
        if (by := self.told.get("supervisor")) is not None:
            known["supervisor"] = Supervisor(pid=by) if isinstance(by, int) else Supervisor(pid=None, silence=by)
        if told is None:
            none = Absent("no run of this job is alive")
            return OfRun(beat=none, progress=none, **known)
        beat: Any = Absent("the run makes no beats")
        if told.get("beat") != "none":
            beat = Known(
                healthy.beat(**({"pid": told.get("pid", told.get("shim", 4700))} | told.get("beat", {}))), now_s
            )
        progress: Any = Absent("the run has shown no progress that could be read")
        if told.get("progress") != "none":
            progress = Known(self._progress(told.get("progress", {})), now_s)
        return OfRun(beat=beat, progress=progress, **known)

    def _progress(self, told: Mapping[str, Any]) -> Any:
        """`stands_s`, `heard_s`: ages; `count`, `every_s`, `loss` (a list: the last ones; a number: all), `phase`."""
        given = dict(told)
        now_s = self.clock.now_s
        stands_s, heard_s = float(given.pop("stands_s", 0.8)), float(given.pop("heard_s", 0.8))
        told_loss = given.pop("loss", [])
        count, every_s = int(given.pop("count", 60)), float(given.pop("every_s", 1.0))
        losses = [float(loss) for loss in (told_loss if isinstance(told_loss, list) else count * [told_loss])]
        same = {name: given.pop(name) for name in ("phase", "gradient_norm", "step", "tokens") if name in given}
        points = list(healthy.points(count, every_s=every_s, **same))
        for back, loss in enumerate(reversed(losses), 1):
            points[-back] = replace(points[-back], loss=loss)
        shift = now_s - heard_s - points[-1].at_s
        moved = tuple(replace(point, at_s=point.at_s + shift) for point in points)
        return healthy.progress(points=moved, step_changed_s=now_s - stands_s, heard_s=now_s - heard_s, **given)

    def _given(self, facts: Facts) -> Facts:
        changes: dict[str, Any] = {}
        now_s = self.clock.now_s
        if "disk" in self.told:
            disks = [dict(disk) for disk in self.told["disk"]]
            for disk in disks:  # ages on paper, moments in the fact
                earlier = disk.pop("earlier", ())
                if disk.get("free_inodes") == "none":
                    disk["free_inodes"] = None
                disk["earlier"] = tuple((now_s - float(age_s), int(free)) for age_s, free in earlier)
            changes["disks"] = tuple(Known(healthy.disk(**disk), now_s) for disk in disks)
        else:  # how full this machine is must not be told as the scenario's
            changes["disks"] = tuple(map(_roomy, facts.disks))
        if "lock" in self.told:
            changes["locks"] = tuple(Known(healthy.lock(**_lock(lock)), now_s) for lock in self.told["lock"])
        if "clocks" in self.told:
            told = dict(self.told["clocks"])
            jumps = tuple(
                Jump(kind=jump["kind"], seconds=jump["seconds"], at_s=now_s - jump["age_s"])
                for jump in told.pop("jumps", [])
            )
            changes["clocks"] = Known(Clocks(**({"boot_id": BOOT_ID, "asleep_s": 0.0} | told), jumps=jumps), now_s)
        if "oom" in self.told:
            given = {"host": 0, "cgroup": 0, "cgroup_path": "/"} | self.told["oom"]
            changes["oom"] = Known(OomKills(**given), now_s)
        if "pressure" in self.told:
            changes["pressure"] = Known(Pressure(**({"from_psi": True} | self.told["pressure"])), now_s)
        for name, why in self.told.get("unknown", {}).items():
            changes[name] = (Unknown(why),) if name in ("disks", "locks") else Unknown(why)
        changes |= {name: Absent(why) for name, why in self.told.get("absent", {}).items()}
        return replace(facts, **changes)


def _roomy(fact: Fact[Disk]) -> Fact[Disk]:
    if not isinstance(fact, Known):
        return fact
    room = {"free_bytes": 200 * GIB, "total_bytes": 500 * GIB, "free_inodes": 30_000_000}
    return replace(fact, value=replace(fact.value, **room, earlier=()))


def _limits(told: Mapping[str, Any]) -> Limits:
    given = dict(told)
    if "devices" in given:
        given["devices"] = tuple(given["devices"])
    if "off" in given:
        given["off"] = frozenset(given["off"])
    if "xid" in given:
        given["xid"] = {int(number): action for number, action in given["xid"].items()}
    return Limits(**({"disk_need_bytes": 1, "inodes_least": 1} | given))


def _lock(told: Mapping[str, Any]) -> dict[str, Any]:
    from watchdog.core.facts import LockHolder

    given = dict(told)
    if "holders" in given:
        given["holders"] = tuple(LockHolder(**({"since_wall_s": None} | holder)) for holder in given["holders"])
    return given


def _probed(told: Mapping[str, Any]) -> Probed:
    if "why" not in told:
        return Probe(**_probe(told))
    label = f"NVIDIA GeForce RTX 3060 ({told['device'][:12]})"
    return NotMeasured(device=told["device"], label=label, why=told["why"], tried=True)


def _probe(told: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(
        name="NVIDIA GeForce RTX 3060",
        dtype="bf16",
        size=8192,
        seconds=0.05,
        correct=True,
        worst_error=0.01,
        baseline_tflops=24.1,
        baseline_count=8,
    )
    return given | dict(told)
