"""The GPU bridge of WSL makes no more processes.

Proves: the kernel wrote within the window that the Windows side refused a new GPU process
(`dxgvmb_send_create_process`): no relaunch can get at the device before WSL itself was restarted.

Near misses: `dxgkio_query_adapter_info: Ioctl failed` at boot is noise and not among these lines. An NVML that fails
while this log is quiet is the driver's matter.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits

NAME = "dxg-bridge"
NEEDS = ("wsl", "kernel")
LIMITS = ("dxg_window_s",)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.WSL_SHUTDOWN,)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """Nothing without a kernel log (io-errors tells of it), and nothing to praise where this is no WSL."""
    if not isinstance(facts.kernel, Known):
        return ()
    lines = facts.kernel.value.recent(KernelKind.DXG_BRIDGE, now_s=facts.at_s, window_s=limits.dxg_window_s)
    if not lines:
        return fine(NAME, "GPU bridge", "no complaint in the kernel log") if isinstance(facts.wsl, Known) else ()
    count = f"{len(lines)} {'process' if len(lines) == 1 else 'processes'}"
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        subject="GPU bridge",
        reason=f"{count} could not be made on the Windows side, the last one {duration(facts.at_s - lines[-1].at_s)} "
        "ago; a relaunch cannot help",
        evidence=(lines[-1].text,),
        cause="the bridge between WSL and the Windows driver is broken; processes killed in a CUDA call do that",
        remedy=Remedy.WSL_SHUTDOWN,
    )
