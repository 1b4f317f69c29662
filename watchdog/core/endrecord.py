"""What the record of a run's end keeps of its evidence: its last lines, the kernel's, its failure record, last facts.

Run folders go after a while, and facts at once: an autopsy a week later has this and nothing else. Responsible for its
bounds, so that no end makes a ledger grow by more than 24 KiB, and for hiding secrets before anything is written. Pure.
Refuses to judge what it keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from watchdog.contract import Beat
from watchdog.core.facts import Device, Fact, Facts, Known, Progress, value_of
from watchdog.core.figures import gib
from watchdog.core.kernel import KernelLine
from watchdog.masking import hide_values, mask_text, without_keys

_LINES, _LINE_MOST = 20, 300
_TAIL_BYTES, _FAILURE_BYTES, _KERNEL_BYTES, _FACTS_BYTES = 8192, 8192, 4096, 3584
_FAILURE_LINES = 40
_KERNEL_WINDOW_S = 600.0
_EACH = 8  # devices, and disks


def hidden(text: str | None, secrets: Sequence[str] = ()) -> str | None:
    """What a trainer said, without the secrets."""
    return None if text is None else mask_text(hide_values(text, secrets))


def tail_of(log: str, secrets: Sequence[str] = ()) -> list[str]:
    """The last lines that say something, secrets hidden, control characters escaped."""
    text = hide_values(without_keys(log), secrets)
    lines = [line for line in text.splitlines() if line.strip()][-_LINES:]
    return bounded(lines, _TAIL_BYTES)


def failure_of(record: Mapping[str, Any] | None, secrets: Sequence[str] = ()) -> list[str]:
    """A failure record as a person reads it: each link of its chain, and its traceback line by line."""
    return [] if record is None else bounded(failure_lines(record, secrets)[-_FAILURE_LINES:], _FAILURE_BYTES)


def failure_lines(record: Mapping[str, Any], secrets: Sequence[str] = ()) -> list[str]:
    """The same in full."""
    lines: list[str] = []
    for name, value in record.items():
        if name == "format":
            continue
        if name == "chain" and isinstance(value, list):
            lines += [_link(link, number) for number, link in enumerate(value[:_LINES])]
        elif isinstance(value, str) and "\n" in value:
            lines += [f"{name}:", *(f"  {line}" for line in value.splitlines())]
        else:
            lines.append(f"{name}: {value}")
    return hide_values(without_keys("\n".join(lines)), secrets).split("\n")


def _link(link: object, number: int) -> str:
    if not isinstance(link, Mapping):
        return str(link)
    errno = "" if link.get("errno") is None else f" (errno {link['errno']})"
    return f"{'behind it: ' if number else ''}{link.get('class')}: {link.get('message')}{errno}"


def kernel_of(lines: Iterable[KernelLine], *, since_s: float, now_s: float, secrets: Sequence[str] = ()) -> list[str]:
    """What it wrote since the run began, of the last ten minutes, each with how long before now that was."""
    since_s = max(since_s, now_s - _KERNEL_WINDOW_S)
    recent = [line for line in lines if line.at_s >= since_s][-_LINES:]
    told = (f"{line.at_s - now_s:+.1f} s: {hide_values(line.text, secrets)}" for line in recent)
    return bounded(told, _KERNEL_BYTES)


def facts_of(facts: Facts, *, now_s: float, beat: Beat | None = None, secrets: Sequence[str] = ()) -> dict[str, str]:
    """The figures of one look, in words, by what they are about. What is not known is left out.

    `beat`: the run's last one, which may be newer than that look.
    """
    found: dict[str, str] = {"seen": f"{max(0.0, now_s - facts.at_s):.1f} s before the end was noticed"}
    if isinstance(facts.memory, Known):
        memory = facts.memory.value
        words = f"{gib(memory.available_bytes)} of {gib(memory.total_bytes)} GiB available"
        if memory.limit_bytes is not None:
            words += f", the limit of {memory.limit_cgroup} is {gib(memory.limit_bytes)} GiB"
        if memory.swap_total_bytes:
            words += f", swap {gib(memory.swap_free_bytes)} of {gib(memory.swap_total_bytes)} GiB free"
        found["memory"] = words
    for disk in [value_of(each) for each in facts.disks][:_EACH]:
        if disk is not None:
            state = ", read-only" if disk.read_only else ""
            found[f"disk {disk.purpose}"] = f"{gib(disk.free_bytes)} of {gib(disk.total_bytes)} GiB free{state}"
    for device in (value_of(facts.devices) or ())[:_EACH]:
        found[f"device {device.label}"] = _device(device)
    if beat is not None:
        figures = {"step": beat.step, "loss": beat.loss, "gradient norm": beat.gradient_norm}
        told = [f"{name} {value:.6g}" for name, value in figures.items() if value is not None]
        age_s = max(0.0, now_s - beat.monotonic_s)
        found["beat"] = ", ".join([*told, f"in phase {beat.phase}, {age_s:.1f} s before the end was noticed"])
    if loss := _losses(facts.progress):
        found["losses"] = loss
    room, kept = _FACTS_BYTES, {}
    for name, words in found.items():
        name, words = _line(name, secrets), _line(words, secrets)
        if (room := room - _size(name) - _size(words)) < 0:
            break
        kept[name] = words
    return kept


def _device(device: Device) -> str:
    if device.missing:
        return "it is not enumerated any more"
    if device.lost_code is not None:
        return f"it does not answer (code {device.lost_code})"
    now, total = device.now, value_of(device.memory_total_bytes)
    used, figures = value_of(now.memory_used_bytes), []
    if used is not None:
        figures.append(f"{gib(used)}{'' if total is None else f' of {gib(total)}'} GiB used")
    readings: tuple[tuple[Fact[Any], str], ...] = (
        (now.utilization_percent, "% busy"),
        (now.power_watts, "W"),
        (now.temperature_celsius, "°C"),
        (now.sm_clock_mhz, "MHz"),
    )
    figures += [f"{reading.value:.0f} {unit}" for reading, unit in readings if isinstance(reading, Known)]
    xids = value_of(device.xid_counts) or {}
    figures += [f"Xid {number} {count} times" for number, count in list(xids.items())[-3:]]
    return ", ".join(figures) or "nothing of it could be read"


def _losses(progress: Fact[Progress]) -> str | None:
    points = progress.value.points if isinstance(progress, Known) else ()
    told = [f"{point.loss:.4g}" for point in points[-50:] if point.loss is not None]
    return ", ".join(told[-3:]) or None


def bounded(lines: Iterable[str], most_bytes: int) -> list[str]:
    """The last of these lines, masked, each no longer than a person reads, all no longer than that in a ledger."""
    kept: list[str] = []
    for line in reversed([_line(line) for line in lines]):
        if (most_bytes := most_bytes - _size(line)) < 0:
            break
        kept.append(line)
    return kept[::-1]


def _line(text: str, secrets: Sequence[str] = ()) -> str:
    text = mask_text(hide_values(text[: 4 * _LINE_MOST], secrets)).rstrip()
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: _LINE_MOST + 1])
    return text if len(text) <= _LINE_MOST else text[:_LINE_MOST] + "…"


def _size(text: str) -> int:
    """In JSON, where what is no ASCII takes six bytes, or twelve, and quotes take two."""
    return 4 + sum(1 if " " <= char <= "~" and char not in '"\\' else 12 if char > "\uffff" else 6 for char in text)


def left_by(
    *,
    log: str = "",
    failure: Mapping[str, Any] | None = None,
    kernel: Sequence[str] = (),
    facts: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """The fields of the record; what there is nothing of has none."""
    fields: dict[str, Any] = {
        "facts": dict(facts or {}),
        "kernel": list(kernel),
        "tail": tail_of(log, secrets),
        "failure": failure_of(failure, secrets),
    }
    return {name: value for name, value in fields.items() if value}
