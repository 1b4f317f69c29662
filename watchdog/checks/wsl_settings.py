"""WSL is set up so that a long run may be cut short.

Proves: by its version, process 1 and the two settings files: WSL 1 has no GPU; without systemd no service starts the
supervisor; without negative idle timeouts Windows ends the instance when the last window is closed;
autoMemoryReclaim=gradual has broken docker and apt.

Near misses: a `wsl.exe` that is kept open on the Windows side keeps the instance alive as well, and cannot be seen
from here: hence a warning. No settings file means the defaults; one that cannot be read means nothing.
"""

from __future__ import annotations

from watchdog.core.facts import Facts, Known, Unknown, Wsl, value_of
from watchdog.core.findings import Finding, Remedy, Severity, fine, unknown
from watchdog.core.limits import Limits

NAME = "wsl-settings"
NEEDS = ("wsl",)
LIMITS = ()
WORST = Severity.CRITICAL
REMEDIES = (Remedy.WSL_SETTINGS, Remedy.LOOK)
# Both: the first ends one distribution, the second the virtual machine under all of them.
_IDLE = (("general", "instanceIdleTimeout"), ("wsl2", "vmIdleTimeout"))
_RECLAIM = ("experimental.automemoryreclaim", "wsl2.automemoryreclaim")  # it moved between releases


def check(facts: Facts, limits: Limits) -> Finding | tuple[Finding, ...]:
    """One finding for each setting that is amiss; the one place where WSL that could not be made out is told."""
    if isinstance(facts.wsl, Unknown):
        return unknown(NAME, "WSL", facts.wsl.why)
    if not isinstance(facts.wsl, Known):
        return ()
    wsl = facts.wsl.value
    if wsl.version == 1:
        return _amiss(
            "WSL",
            "version 1: no GPU and no Linux kernel of its own",
            ("in Windows: wsl --set-version DISTRIBUTION 2",),
            "the distribution was made for WSL 1, or virtualisation is off",
            Severity.CRITICAL,
        )
    found = (*_systemd(wsl), *_windows(wsl))
    return found or fine(NAME, "WSL", f"version {wsl.version}, {wsl.kernel}, settings in order")


def _systemd(wsl: Wsl) -> tuple[Finding, ...]:
    if isinstance(wsl.guest_settings, Unknown):
        return (unknown(NAME, "wsl.conf", wsl.guest_settings.why),)
    if wsl.systemd:
        return ()
    if wsl.systemd is None:
        return (unknown(NAME, "systemd", "whether systemd is process 1 cannot be told"),)
    written = (value_of(wsl.guest_settings) or {}).get("boot.systemd", "").lower() == "true"
    line = "in /etc/wsl.conf: [boot] systemd=true" + (", which is there already" if written else "")
    cause = "WSL was not restarted since, or is too old for it" if written else ""
    return (_amiss("systemd", "process 1 is not systemd: no service can start the supervisor", (line,), cause),)


def _windows(wsl: Wsl) -> tuple[Finding, ...]:
    if isinstance(wsl.windows_settings, Unknown):
        return (unknown(NAME, ".wslconfig", wsl.windows_settings.why),)
    settings = value_of(wsl.windows_settings) or {}
    where = wsl.windows_settings_path or ".wslconfig in the Windows home"
    found = []
    short = [(section, key) for section, key in _IDLE if not _is_negative(settings.get(f"{section}.{key}".lower()))]
    if short:
        told = ", ".join(f"{key} is {settings.get(f'{section}.{key}'.lower(), 'not set')}" for section, key in short)
        lines = tuple(f"in {where}: [{section}] {key}=-1" for section, key in short)
        found.append(_amiss("idle timeout", f"{told}: WSL ends when its last window is closed", lines))
    if any(settings.get(key, "").lower() == "gradual" for key in _RECLAIM):
        reason = "autoMemoryReclaim is gradual, which has broken docker and apt"
        found.append(_amiss("memory reclaim", reason, (f"in {where}: autoMemoryReclaim=disabled",)))
    return tuple(found)


def _is_negative(text: str | None) -> bool:
    try:
        return text is not None and int(text) < 0
    except ValueError:
        return False


def _amiss(
    subject: str, reason: str, lines: tuple[str, ...], cause: str = "", severity: Severity = Severity.WARNING
) -> Finding:
    return Finding(
        check=NAME,
        severity=severity,
        subject=subject,
        reason=reason,
        evidence=lines,
        cause=cause,
        remedy=Remedy.WSL_SETTINGS,
    )
