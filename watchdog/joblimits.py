"""What one job asks of its host, as the limits that checks compare with.

Responsible for the way from settings and environment to `core.limits.Limits`, and for the devices that are meant:
[job] devices, else CUDA_VISIBLE_DEVICES as the trainer would get it, else all. Refuses to look at the host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from watchdog.core.limits import Limits
from watchdog.settings import Settings

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ON_PURPOSE = ("-1", "NoDevFiles")  # what people, and Slurm, write to hide the rest
_INDEX = re.compile("[0-9]{1,4}")  # not isdigit: that takes a superscript two, too


def limits_of(settings: Settings, environ: Mapping[str, str]) -> Limits:
    """The limits of a job; what is not configured has the defaults of core/limits.py."""
    visible = settings.job.environment.get(_VISIBLE, environ.get(_VISIBLE))
    named = _taken(visible or "")[0] if settings.job.devices == "all" else settings.job.devices
    given = {name: getattr(settings.limits, name) for name in settings.limits.__struct_fields__}
    return Limits(
        memory_need_bytes=settings.memory.need_bytes,
        disk_need_bytes=settings.disk.need_bytes,
        devices=visible_devices(visible) if settings.job.devices == "all" else _whole(settings.job.devices),
        devices_named=bool(named),
        devices_doubt=visible_doubt(visible) if settings.job.devices == "all" else "",
        train_deadline_s=settings.deadlines.train_s,
        first_step_deadline_s=settings.deadlines.first_step_s,
        off=frozenset(settings.checks.off),
        xid={int(number): action for number, action in settings.checks.xid.items()},
        **given,
    )


def visible_devices(text: str | None) -> tuple[str, ...] | None:
    """The devices that CUDA shows for this value of CUDA_VISIBLE_DEVICES; None = all, () = none.

    CUDA stops at the first entry that means no device, and shows none when an entry is there twice. Its indexes are
    those of NVML only with CUDA_DEVICE_ORDER=PCI_BUS_ID or where all cards are alike; UUIDs have no such doubt.
    """
    return None if text is None else _whole(_taken(text)[0])


def visible_doubt(text: str | None) -> str:
    """What a person should be told of a value that CUDA takes for less than it says; "" where it does not."""
    if text is None:
        return ""
    devices, wrong = _taken(text)
    if wrong is None or wrong in _ON_PURPOSE:
        return ""
    after = text.split(",")[len(devices) + 1 :]
    if not wrong and not any(entry.strip() for entry in after):  # a comma at the end takes nothing away
        return ""
    seen = f"only {', '.join(devices)}" if devices else "no GPU"
    twice = _INDEX.fullmatch(wrong) or wrong.startswith(("GPU-", "MIG-"))
    why = "is named twice" if twice else "names no device that NVIDIA would know"
    return f"{_VISIBLE}={_short(text)}: {_short(wrong) or 'an empty entry'} {why}, so CUDA programs see {seen}"


def _taken(text: str) -> tuple[tuple[str, ...], str | None]:
    """The entries that CUDA takes, and the one at which it stops."""
    devices: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if not (_INDEX.fullmatch(entry) or entry.startswith(("GPU-", "MIG-"))):
            return tuple(devices), entry
        if entry in devices:
            return (), entry
        devices.append(entry)
    return tuple(devices), None


def _short(text: str) -> str:
    """As an environment may hold anything."""
    return "".join(each if each.isprintable() else "?" for each in text[:60]) + ("..." if len(text) > 60 else "")


def _whole(devices: tuple[str, ...]) -> tuple[str, ...] | None:
    """A MIG instance does not say which device it is a part of: then every device may be meant."""
    return None if any(name.startswith("MIG-") for name in devices) else devices
