"""Xid numbers: what each asks for, and which lines of the kernel log speak of a device.

Data of the check `xid`, and no check. After NVIDIA's Xid catalogue as of October 2025. Its editions disagree about
some numbers (43, 94, 109), so `limits.xid` overrides each. Refuses to judge.

The words: `restart` the application faulted; `log` nothing to do; `reset` the GPU; `reboot` the host; `cable` power
cable; `driver` the driver or its firmware; `vm` restart the virtual machine; `support` the vendor's matter;
`depends` on other evidence; `ignore` only in overrides.
"""

from __future__ import annotations

from watchdog.core.facts import Device, value_of
from watchdog.core.kernel import KernelKind, KernelLine, KernelLog

ACTIONS = ("restart", "log", "reset", "reboot", "cable", "driver", "vm", "support", "depends", "ignore")

_BY_ACTION: dict[str, tuple[int, ...]] = {
    "restart": (
        *(8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 73), 75, 76, 77, 80, *range(82, 87), 88, 89, 94),
        *(*range(96, 106), *range(126, 136), 139),
    ),
    # 45, the clean-up after another Xid or after a process that was killed, asks for nothing of its own: each end of a
    # run would else be a warning. Alone it means more only where there is a fabric manager. 48 ends in a reset, with or
    # without 63 and 64.
    "log": (37, 38, 43, 44, 45, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161),
    "reset": (46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    "reboot": (79,),
    "cable": (54,),
    "driver": (78,),
    "vm": (151,),
    "support": (142,),
    "depends": (74, *range(144, 151), 154),
}
ACTION: dict[int, str] = {number: action for action, numbers in _BY_ACTION.items() for number in numbers}

# The second repeat is chance, from the third on it is hardware: the same engine (13), or pages of one GPU (31).
REPEATS_MEAN_HARDWARE = (13, 31)
REPEATS = 3

# In few words, where there is more to say than what the action says.
WORDS: dict[int, str] = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "the GPU stopped a process",
    45: "clean-up after another error",
    48: "double-bit memory error",
    54: "power cable is not connected",
    62: "internal controller halted",
    63: "memory page retired or row remapped",
    64: "memory page or row could not be replaced",
    74: "NVLink error",
    79: "fell off the bus",
    92: "many single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timed out",
    119: "GPU system processor does not answer",
    120: "GPU system processor failed",
    140: "memory error that was not recovered",
    154: "recovery action changed",
    **dict.fromkeys(range(144, 151), "NVLink error"),
}


def slot(address: str) -> tuple[int, int, int] | None:
    """Domain, bus and device of a PCI address: `0000:01:00` in the log and `00000000:01:00.0` of NVML are one.

    None for what is no address.
    """
    parts = address.strip().partition(".")[0].split(":")
    try:
        domain, bus, device = (int(part, 16) for part in parts)
    except ValueError:
        return None
    return domain, bus, device


def lines_of(log: KernelLog, device: Device) -> tuple[KernelLine, ...]:
    """The Xid lines that name the slot of this device, oldest first."""
    place = slot(value_of(device.pci_bus_id) or "")
    if place is None:
        return ()
    return tuple(line for line in log.lines if line.kind is KernelKind.XID and slot(line.subject) == place)
