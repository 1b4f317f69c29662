"""Device memory could not be made resident under WSL.

Proves: the kernel wrote within the window that Windows could not back the memory asked for (`dxgkio_make_resident`,
-12), although the free figure may say otherwise. Once may be a game that was closed since; twice is a job too large.

Near misses: other failed ioctls of this driver are not among these lines. A relaunch of the same size meets the same
wall, so none is advised.
"""

from __future__ import annotations

from watchdog.checks.figures import duration
from watchdog.core.facts import Facts, Known
from watchdog.core.findings import Finding, Remedy, Severity, fine
from watchdog.core.kernel import KernelKind
from watchdog.core.limits import Limits

NAME = "dxg-residency"
NEEDS = ("wsl", "kernel")
LIMITS = ("dxg_window_s",)
WORST = Severity.CRITICAL
REMEDIES = (Remedy.SMALLER,)


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """Nothing without a kernel log (io-errors tells of it), and nothing to praise where this is no WSL."""
    if not isinstance(facts.kernel, Known):
        return ()
    lines = facts.kernel.value.recent(KernelKind.DXG_RESIDENCY, now_s=facts.at_s, window_s=limits.dxg_window_s)
    if not lines:
        return fine(NAME, "device memory", "no residency failed") if isinstance(facts.wsl, Known) else ()
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL if len(lines) > 1 else Severity.WARNING,
        subject="device memory",
        reason=f"could not be made resident {'once' if len(lines) == 1 else f'{len(lines)} times, the last one'} "
        f"{duration(facts.at_s - lines[-1].at_s)} ago",
        evidence=(lines[-1].text,),
        cause="Windows has no room for what the job allocates, whatever the free figure says",
        remedy=Remedy.SMALLER,
    )
