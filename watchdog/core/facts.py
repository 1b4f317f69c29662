"""Facts: what was seen, when, and what could not be seen. Frozen, and without an opinion.

Every field is `Known(value, at_s)`, `Unknown(why)` (we looked and could not see) or `Absent()` (there is nothing to
see on this host). Where one look proves nothing, a fact carries the looks before it.
Refuses to read anything: collectors make facts, checks judge them.
"""

from __future__ import annotations

from msgspec import Struct

from watchdog.core.devicefacts import Device, DeviceProcess, DeviceSample, Driver, NotMeasured, Probe, Probed
from watchdog.core.fact import Absent, Fact, Known, Unknown, value_of
from watchdog.core.kernel import KernelLine, KernelLog

__all__ = [
    "Absent",
    "BeatFact",
    "CgroupLimit",
    "Clocks",
    "CpuLook",
    "Device",
    "DeviceHolder",
    "DeviceProcess",
    "DeviceSample",
    "Disk",
    "Driver",
    "Fact",
    "Facts",
    "Jump",
    "KernelLine",
    "KernelLog",
    "Known",
    "Lock",
    "LockHolder",
    "Memory",
    "NotMeasured",
    "OomKills",
    "Pressure",
    "Probe",
    "Probed",
    "Processes",
    "Progress",
    "ProgressPoint",
    "RunProcess",
    "Supervisor",
    "Unknown",
    "Wsl",
    "value_of",
]


class CgroupLimit(Struct, frozen=True, kw_only=True):
    """One ancestor cgroup with a memory limit. `held_bytes` is usage without file pages, which can be had."""

    cgroup: str
    limit_bytes: int
    held_bytes: int


class Memory(Struct, frozen=True, kw_only=True):
    """Host memory in bytes. `limit_*` come from the tightest ancestor cgroup, where there is one.

    `available_bytes` is what the job can get: the least of MemAvailable and, for each ancestor cgroup,
    limit - (usage - inactive_file - active_file).
    """

    total_bytes: int
    available_bytes: int
    host_available_bytes: int
    limit_bytes: int | None = None
    limit_cgroup: str | None = None
    limits: tuple[CgroupLimit, ...] = ()  # every ancestor's, our own group first
    cached_bytes: int = 0  # page cache of the host
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0


class Pressure(Struct, frozen=True, kw_only=True):
    """Pressure stall information of memory, percent of time (Documentation/accounting/psi.rst).

    Without PSI (`from_psi` false) the two figures are 0 and `major_faults_per_s` and `swapped_in_per_s` (pages) speak;
    None before there were two looks, but 0 pages where none was ever swapped in.
    """

    from_psi: bool
    some_avg10_percent: float = 0.0
    some_avg60_percent: float = 0.0
    full_avg10_percent: float = 0.0
    full_avg60_percent: float = 0.0
    major_faults_per_s: float | None = None
    swapped_in_per_s: float | None = None


class OomKills(Struct, frozen=True, kw_only=True):
    """Processes that the kernel killed for memory. Counters never go back; `since_*` are deltas over `watched_s`.

    A single look has watched nothing: its deltas are 0, and the kernel log has to tell.
    """

    host: int | None  # /proc/vmstat oom_kill, since boot
    cgroup: int | None  # the tightest counting ancestor's
    cgroup_path: str
    since_host: int = 0
    since_cgroup: int = 0
    watched_s: float = 0.0


class Disk(Struct, frozen=True, kw_only=True):
    """One path the job writes to, and the file system under it."""

    path: str
    purpose: str  # "state", "checkpoints"; "windows" is the drive behind a WSL disk
    filesystem: str  # as in mountinfo: ext4, tmpfs, 9p, ...
    free_bytes: int
    total_bytes: int
    free_inodes: int | None  # None where the file system does not count them
    read_only: bool
    true_flock: bool
    drvfs: bool = False  # a Windows drive: DrvFs over 9p, virtiofs or WSL 1's own
    devices: tuple[str, ...] = ()  # block devices that it lies on, and the system's root: sda1, sda, dm-0; () not told
    earlier: tuple[tuple[float, int], ...] = ()  # (monotonic s, free bytes) of looks before, oldest first


class LockHolder(Struct, frozen=True, kw_only=True):
    """A process that has the lock file open while the kernel lists a lock on its inode."""

    pid: int
    command: str  # masked; "" where it cannot be read
    since_wall_s: float | None


class Lock(Struct, frozen=True, kw_only=True):
    """A lock as the kernel sees it (`/proc/locks`, matched by device and inode), without touching it."""

    path: str
    purpose: str  # "supervisor" or "run"
    held: bool
    exclusive: bool
    holders: tuple[LockHolder, ...]  # living processes; empty while held = a ghost's, or another namespace's
    unlinked: bool = False


class Supervisor(Struct, frozen=True, kw_only=True):
    """Who supervises: the one who looks, or who answered at the job's control socket. `pid` None: nobody did."""

    pid: int | None
    silence: str = ""  # why there was no answer


class BeatFact(Struct, frozen=True, kw_only=True):
    """The run's last beat as facts. `age_s` is measured on the monotonic clock."""

    run_id: str
    pid: int
    phase: str
    age_s: float
    deadline_s: float  # what its phase and its own wish allow; infinite: it promised no more beats
    step: int | None
    target_step: int | None
    alive: bool | None  # the beating process is alive and is the one that beat; None: it cannot be seen from here


class ProgressPoint(Struct, frozen=True, kw_only=True):
    """One look at the run's progress; what the trainer did not say is None."""

    at_s: float
    step: int | None = None
    tokens: int | None = None
    loss: float | None = None  # may be nan or infinite: that is what was reported
    gradient_norm: float | None = None
    phase: str | None = None  # of the beat; None from a log


class Progress(Struct, frozen=True, kw_only=True):
    """The run's progress over time, from its beats or from its log. `points`: oldest first, each a new word of the run.

    `step_changed_s` is the moment at which the step was first seen as it is now. `step_s` are seconds a step:
    `typical_step_s` the median over this job's own history, `recent_step_s` over the last points; None before there
    were enough. `printed_s`: when the run last printed anything, told where no step is.
    """

    run_id: str
    source: str  # "beats", or "log (huggingface)" and its like
    points: tuple[ProgressPoint, ...]
    step_changed_s: float | None = None
    heard_s: float | None = None  # the moment of the newest word, whatever it said
    typical_step_s: float | None = None
    recent_step_s: float | None = None
    printed_s: float | None = None
    watched_from_s: float | None = None  # there was a time before that of which nothing is known
    ledger_step_s: float | None = None  # what a step of this job took before, as the ledger has it


class DeviceHolder(Struct, frozen=True, kw_only=True):
    """A process that has a device node open. Our own sampling child is left out."""

    pid: int
    command: str
    nodes: tuple[str, ...]  # "/dev/nvidia0", "/dev/dxg"
    of_run: bool  # it belongs to the run of this job


class RunProcess(Struct, frozen=True, kw_only=True):
    """A process of the run. `states` counts its threads by their letter in `/proc`; `stuck_s`: how long in state D."""

    pid: int
    command: str
    state: str  # of the leader thread
    states: tuple[tuple[str, int], ...] = ()
    wait_channel: str = ""  # /proc/PID/wchan of a thread in state D, "" where it cannot be read
    stuck_s: float = 0.0  # seen in state D at every look since; 0 at the first
    defunct_s: float = 0.0  # the same for Z


class CpuLook(Struct, frozen=True, kw_only=True):
    """CPU time that the run's processes had used by then, since the first look: rather too much than too little.

    A child that was waited for counts twice, and one that was not seen counts from its beginning.
    """

    at_s: float
    seconds: float


class Processes(Struct, frozen=True, kw_only=True):
    """The process table as far as the checks need it."""

    # Are our pids those of the kernel itself, which NVML speaks of? None: not to be told, or some are hidden from us.
    initial_namespace: bool | None
    pid_max: int
    run: tuple[RunProcess, ...]  # () without a living run
    holders: tuple[DeviceHolder, ...]
    unreadable: int = 0  # processes whose open files are hidden from us
    stuck: tuple[RunProcess, ...] = ()  # of the whole host, in state D
    cpu: tuple[CpuLook, ...] = ()  # of this run, oldest first, some seconds apart; () where it is not told
    gone: tuple[int, ...] = ()  # pids that were seen alive in this run, and are in the table no more


class Jump(Struct, frozen=True, kw_only=True):
    """A leap of the clocks. `kind`: "suspend" (the machine slept), "step" (wall clock set), "freeze" (we slept)."""

    kind: str
    at_s: float
    seconds: float  # negative: the wall clock was set back


class Clocks(Struct, frozen=True, kw_only=True):
    """Boot id and what the clocks did. `asleep_s`: CLOCK_BOOTTIME - CLOCK_MONOTONIC, since boot; 0 on WSL, always."""

    boot_id: str
    asleep_s: float
    watched_s: float = 0.0  # how long jumps have been looked for
    jumps: tuple[Jump, ...] = ()  # oldest first, the last few


class Wsl(Struct, frozen=True, kw_only=True):
    """Windows Subsystem for Linux. Settings are as written in wsl.conf and .wslconfig, by "section.key", lower case."""

    version: int  # 1 or 2
    kernel: str
    systemd: bool | None  # process 1 is systemd
    guest_settings: Fact[dict[str, str]]  # /etc/wsl.conf
    windows_settings: Fact[dict[str, str]]  # .wslconfig
    windows_settings_path: str = ""
    dxg: bool = False  # /dev/dxg is there


class Facts(Struct, frozen=True, kw_only=True):
    """One frozen snapshot of the host, as far as the checks need it."""

    at_s: float
    wall_s: float
    memory: Fact[Memory]
    pressure: Fact[Pressure]
    oom: Fact[OomKills]
    disks: tuple[Fact[Disk], ...]
    locks: tuple[Fact[Lock], ...]
    driver: Fact[Driver]
    devices: Fact[tuple[Device, ...]]
    probe: Fact[tuple[Probed, ...]]
    processes: Fact[Processes]
    beat: Fact[BeatFact]
    progress: Fact[Progress]
    kernel: Fact[KernelLog]
    clocks: Fact[Clocks]
    wsl: Fact[Wsl]
    blind_s: float = 0.0  # the longest that any one fact was unseen without a break, measured by who watches
    supervisor: Supervisor | None = None  # None: nobody asked, or nobody may
