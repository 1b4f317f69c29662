"""Findings: what a check made of the facts. Closed enums, so that everything downstream can be exhaustive."""

from __future__ import annotations

import enum

from msgspec import Struct

from watchdog.core.devicefacts import NAMELESS


class Severity(enum.IntEnum):
    """Ordered by how loudly it is said. UNKNOWN ranks above OK: what was not seen is not fine."""

    OK = 0
    UNKNOWN = 1
    WARNING = 2
    CRITICAL = 3


class Remedy(enum.Enum):
    """The closed set of next steps; the value is what a person reads."""

    NONE = "nothing to do"
    # on this host, by a person
    FREE_MEMORY = "free host memory, or lower [memory] need"
    RAISE_LIMIT = "raise the memory limit of the cgroup named, or let the job need less"
    FREE_DISK = "make room there: delete what is not needed"
    MOVE_STATE = "put the folder on a native Linux file system: [state] folder, [job] checkpoints"
    REMOUNT = "before anything else look at the kernel log (dmesg): the disk failed, or was remounted read-only"
    CHECK_DISK = "look at the disk (smartctl, dmesg) and copy the newest checkpoint elsewhere"
    ASK_HOLDER = "see who holds the job: watchdog status; a run that nobody watches is adopted by: watchdog run"
    FIND_HOLDER = (
        "as root, outside any container: fuser -v on the lock file names its holder, which has to end; "
        "where it names nobody, reboot"
    )
    ASK_OWNER = "ask the owner of the process named; the watchdog ends nothing that is not its own"
    # the job
    RELAUNCH = "watchdog relaunch"
    WAIT = "wait: the supervisor acts by itself; where none runs: watchdog run"
    SMALLER = "let the job need less device memory: a smaller batch, or free what else uses the device"
    LOOK_AT_TRAINING = "look at the training itself: data, learning rate, loss"
    # the device and its driver
    WAIT_LONGER = "watchdog diagnose --wait 70"
    CHECK_DRIVER = "look at the NVIDIA driver: nvidia-smi, and dmesg for lines with NVRM or dxg"
    CHECK_DEVICES = "name devices that are there: [job] devices, CUDA_VISIBLE_DEVICES; nvidia-smi -L lists them"
    RELOAD_DRIVER = "load the driver that fits its library: reboot, or with no GPU in use reload the nvidia modules"
    RESET_DEVICE = "end what uses the device, then reset it: sudo nvidia-smi --gpu-reset -i DEVICE, or reboot"
    REBOOT = "reboot the host"
    WSL_SHUTDOWN = "in Windows: wsl --shutdown; then open WSL again, and: watchdog run"
    COOL = "look at fans, dust, air and power supply"
    RESEAT = "look at the card in its slot: risers, cables, BIOS lanes"
    REPLACE = "take the device out of use: it computes wrongly or loses memory"
    PROBE = "measure the device: watchdog probe"
    # the surroundings
    WSL_SETTINGS = "change the settings named, then in Windows: wsl --shutdown"
    SET_CLOCK = "let NTP keep the clock (timedatectl shows it), and find out who sets it"
    LOOK = "look at what is said here; no command of the watchdog mends it"


class Finding(Struct, frozen=True, kw_only=True):
    """One check's word about one subject.

    `reason` is a sentence with figures and units; `evidence` are further lines; `subject` names the device, disk
    or process meant; `cause` says in words what is most likely behind it ("" where there is nothing behind it).
    `device` is the UUID, for a finding about one device. `looks_wanted`: the check has seen something that one look
    does not prove, and would judge anew with that many further looks.
    """

    check: str
    severity: Severity
    subject: str
    reason: str
    evidence: tuple[str, ...] = ()
    cause: str = ""
    remedy: Remedy = Remedy.NONE
    device: str | None = None
    looks_wanted: int = 0


_RUN = "watchdog run"
_COMMANDS = (
    "watchdog relaunch",
    _RUN,
    "watchdog status",
    "watchdog probe",
    Remedy.WAIT_LONGER.value,
)
_DEVICE_SHOWN = 12  # of a UUID: "GPU-3f1c0a52", as labels have it


def next_step(finding: Finding, options: str, start: str = "") -> str:
    """The remedy in words; `options` are what a command of ours needs to mean the job.

    `start` is the whole command that supervises it again, where options alone do not say which trainer that is.
    """
    words = finding.remedy.value
    for command in _COMMANDS:
        words = words.replace(command, (command == _RUN and start) or command + options)
    device = finding.device or ""
    if device.startswith(("GPU-", "MIG-")):
        words = words.replace(" -i DEVICE", f" -i {device}")
        if finding.remedy is Remedy.PROBE:
            words += f" --device {device[:_DEVICE_SHOWN]}"
    elif device.startswith(NAMELESS) and device.rpartition(" ")[2].isdecimal():  # "no UUID, index 1"
        words = words.replace(" -i DEVICE", f" -i {device.rpartition(' ')[2]}")
    return words


def calls_for_a_stop(finding: Finding) -> bool:
    """Whether it is a reason to end a living run: critical, and a relaunch is what helps."""
    return finding.severity is Severity.CRITICAL and finding.remedy is Remedy.RELAUNCH


def unknown(check: str, subject: str, why: str, remedy: Remedy = Remedy.LOOK, *, device: str | None = None) -> Finding:
    """We looked and could not see."""
    return Finding(check=check, severity=Severity.UNKNOWN, subject=subject, reason=why, remedy=remedy, device=device)


_FAILED = "the check itself failed: "


def failed(check: str, error: Exception) -> Finding:
    """A bug of ours: nobody has looked."""
    return unknown(check, check, f"{_FAILED}{type(error).__name__}: {error}")


def is_failure(finding: Finding) -> bool:
    """Whether it is the word of a check that failed, and not of one that looked."""
    return finding.severity is Severity.UNKNOWN and finding.reason.startswith(_FAILED)


def fine(check: str, subject: str, reason: str, *evidence: str, device: str | None = None) -> Finding:
    """Seen, and in order."""
    return Finding(check=check, severity=Severity.OK, subject=subject, reason=reason, evidence=evidence, device=device)


def unsure(check: str, subject: str, reason: str, looks: int, *evidence: str, device: str | None = None) -> Finding:
    """Suspicious, and not proven by the looks there were: `looks` more are wanted. Not said to anybody as it is."""
    return Finding(
        check=check,
        severity=Severity.OK,
        subject=subject,
        reason=reason,
        evidence=evidence,
        device=device,
        looks_wanted=looks,
    )
