"""What a line of the kernel log means to a training host. Pure; the patterns are data.

Responsible for the forms of the lines, each with where it was seen, and for what looks alike and means nothing. A form
is matched from the first character of the message on: text that a user chose (a process's name in an OOM line) can
never begin one.
Refuses to judge what a line is worth, and to raise: any text may come.
"""

from __future__ import annotations

import re

from msgspec import Struct

from watchdog.core.kernel import KernelKind, KernelLine

_TEXT_LENGTH = 300
_LOOKED_AT = 2048  # as long as a record gets (PRINTK_MESSAGE_MAX)

_PCI = r"(?P<subject>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_DEVICE = r"(?P<subject>[\w!.-]{1,64})"
_PID = r"(?P<number>\d{1,10})"
_TASK = r"(?P<subject>.{1,64})"
# "(device sda1)", "(device dm-0 state EA)", "(device sdc: state EA)"
_BTRFS = rf"\(device {_DEVICE}(?::? state \w+)?\)"


class Pattern(Struct, frozen=True, kw_only=True):
    """`marker`: a plain piece of every such line, so that all others cost no regular expression.

    `form` may name `number` and `subject`; `number` here is for a line that does not write its own. Forms are compiled
    when a line first needs one: all of them would cost each start 2.4 ms.
    """

    kind: KernelKind
    marker: str
    form: str
    number: int | None = None


def _pattern(kind: KernelKind, marker: str, form: str, number: int | None = None) -> Pattern:
    return Pattern(kind=kind, marker=marker, form=form, number=number)


PATTERNS: tuple[Pattern, ...] = (
    # NVIDIA. Old drivers write no "PCI:"; pid and name stand only where the driver knows of a process.
    _pattern(KernelKind.XID, "NVRM: Xid", rf"NVRM: Xid \((?:PCI:)?{_PCI}\): (?P<number>\d{{1,4}})\b"),
    # The same at boot, without a number (NVSentinel#155): one record of several lines.
    _pattern(
        KernelKind.XID,
        "NVRM: The NVIDIA GPU",
        rf"NVRM: The NVIDIA GPU {_PCI} \(PCI ID: \S+\) installed in this system has fallen off the bus",
        number=79,
    ),
    # "the client has the version", and of late "the client 'python' (pid 1005) has the version".
    _pattern(
        KernelKind.MISMATCH, "NVRM: API mismatch", r"NVRM: API mismatch: the client\b(?: '(?P<subject>[^']{0,64})')?"
    ),
    # WSL. Of dxgkio_query_adapter_info and dxgkio_is_feature_enabled every healthy boot writes dozens (WSL#40715).
    # Any code (-75 in WSL#41062) but EINTR and ERESTARTSYS, which say that who asked was ended meanwhile.
    _pattern(
        KernelKind.DXG_BRIDGE,
        "dxgvmb_send_create_process",
        r"(?:misc dxg: )?dxgk: dxgvmb_send_create_process: "
        r"(?:.{0,60}failed:? -(?!(?:4|512)\b)(?P<number>\d{1,4})\b|create_process returned 0 handle)",
    ),
    _pattern(
        KernelKind.DXG_RESIDENCY,
        "dxgkio_make_resident",
        r"(?:misc dxg: )?dxgk: dxgkio_make_resident: Ioctl failed: -(?P<number>12)\b",  # ENOMEM
    ),
    # One kill is several lines ("invoked oom-killer", "oom-kill:constraint=", "Kill process ... or sacrifice child",
    # "oom_reaper: reaped"); only this one is written once for each process killed. Bare before 5.1; ", UID 0," on RHEL.
    _pattern(
        KernelKind.OOM_KILL,
        "Killed process",
        r"(?:(?:Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?): )?"
        rf"Killed process {_PID} \({_TASK}\),? (?:UID \d{{1,10}}, )?total-vm:",
    ),
    # Storage. The block layer has changed the word in front at least three times. What fails while discarding or
    # zeroing is a feature that the disk lacks, not data lost.
    _pattern(
        KernelKind.IO_ERROR,
        " error, dev ",
        r"(?:(?:blk_update_request|print_req_error|end_request): )?"
        r"(?:I/O|critical medium|critical target|critical space allocation|recoverable transport|timeout|protection"
        rf"|device offline) error, dev {_DEVICE}, sector \d+(?!.*\((?:DISCARD|SECURE_ERASE|WRITE_ZEROES)\))",
    ),
    _pattern(KernelKind.IO_ERROR, "Buffer I/O error on dev", rf"Buffer I/O error on dev(?:ice)? {_DEVICE}, "),
    _pattern(KernelKind.IO_ERROR, "-fs error (device", rf"EXT[234]-fs error \(device {_DEVICE}\)"),
    # "re-mounted ... ro" is a person's doing.
    _pattern(
        KernelKind.READ_ONLY,
        "Remounting filesystem read-only",
        rf"(?:EXT[234]|F2FS)-fs \({_DEVICE}\): Remounting filesystem read-only",
    ),
    # XFS is never remounted; it shuts itself down, and everything after that is an I/O error.
    _pattern(
        KernelKind.IO_ERROR,
        "XFS (",
        rf"XFS \({_DEVICE}\): (?:metadata I/O error|log I/O error|writeback error|Internal error"
        r"|Metadata (?:corruption|CRC error) detected|Filesystem has been shut down due to"
        r"|(?!User initiated).{1,300}Shutting down filesystem)",
    ),
    _pattern(
        KernelKind.READ_ONLY, "forced readonly", rf"BTRFS (?:info|error|critical) {_BTRFS}: .{{0,200}}forced readonly"
    ),
    _pattern(
        KernelKind.IO_ERROR,
        "BTRFS",
        rf"BTRFS:? (?:error|warning) {_BTRFS}(?: in \S{{1,80}}: errno=-5 |: bdev \S{{1,200}} errs: |: csum failed "
        r"|: block=\d+ write time tree block corruption)",
    ),
    # The seconds are the kernel's own setting; names may hold colons ("kworker/1:2").
    _pattern(
        KernelKind.HUNG_TASK,
        "INFO: task ",
        rf"INFO: task {_TASK}:{_PID} blocked (?:in I/O wait )?for more than \d{{1,10}} seconds",
    ),
)
MARKERS: tuple[bytes, ...] = tuple(pattern.marker.encode() for pattern in PATTERNS)

# No medium in the drive, an image that went away: every desktop has these, and no job lies there.
_NOISY_DEVICE = re.compile(r"(?:fd|sr|loop)\d", re.ASCII)
_NEXT_LINE = re.compile(r"\s*\n(?:NVRM:)?\s*")


def classify(at_s: float, message: str) -> KernelLine | None:
    """The line as a fact, or None when it means nothing here. `message` without its prefix, escapes undone."""
    for pattern in PATTERNS:
        if pattern.marker not in message:
            continue
        flat = _NEXT_LINE.sub(" ", message[:_LOOKED_AT])
        match = re.match(pattern.form, flat, re.ASCII)  # which keeps what it compiled
        if match is None:
            continue
        groups = match.groupdict()
        subject = groups.get("subject") or ""
        if pattern.kind is KernelKind.IO_ERROR and _NOISY_DEVICE.match(subject):
            return None
        number = groups.get("number")
        return KernelLine(
            at_s=at_s,
            kind=pattern.kind,
            text=_shown(flat),
            number=pattern.number if number is None else int(number),
            subject=_address(subject) if pattern.kind is KernelKind.XID else _shown(subject),
        )
    return None


def _address(text: str) -> str:
    """`0000:01:00` as NVML and lspci write it: `0000:01:00.0`."""
    domain, bus, rest = text.lower().split(":")
    device, _, function = rest.partition(".")
    return f"{int(domain, 16):04x}:{bus}:{device}.{function or '0'}"


def _shown(text: str) -> str:
    """Lines joined, whatever a terminal might act on escaped, 300 characters at most."""
    text = text[:_TEXT_LENGTH]
    if not text.isprintable():
        text = "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
            for character in text
        )[:_TEXT_LENGTH]
    return text
