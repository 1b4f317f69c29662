"""Programs that keep the device nodes open all day to ask, and own no memory there.

The one list of them: who looks for holders of a device, and who looks for owners of its memory, leaves them out.
Refuses to know who belongs to a run: a member of it is never left out by its name.
"""

from __future__ import annotations

_COMM_LENGTH = 15  # as the kernel cuts a command
# The first two keep the driver initialised, the next two are DCGM, then programs that show NVML's figures, ours among
# them: another supervisor's sampling child, and that of a diagnosis (collectors/nvml_child.py). Then WSLg's desktop.
ASKERS = frozenset(
    {
        "nvidia-persiste",
        "nvidia-powerd",
        "nv-hostengine",
        "dcgm-exporter",
        "nvidia-smi",
        "nvtop",
        "nvitop",
        "gpustat",
        "watchdog-nvml",
        "WSLGd",
        "weston",
        "Xwayland",
    }
)


def only_asks(command: str) -> bool:
    """By its `/proc/PID/comm`."""
    return command[:_COMM_LENGTH] in ASKERS
