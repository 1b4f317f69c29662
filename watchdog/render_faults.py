"""docs/faults.md: the table of faults and remedies, made from the catalogue, so that it cannot say anything else.

    python -P -m watchdog.render_faults > docs/faults.md

Refuses to hold a word about any single check.
"""

from __future__ import annotations

import re
import sys

from watchdog.checks.catalogue import CATALOGUE, Check
from watchdog.core.findings import Remedy
from watchdog.core.limits import Limits
from watchdog.settings_meta import key_name

_HEAD = """\
# Faults and remedies

What `watchdog diagnose` looks for, in the order in which it tells. This page is written by
`python -P -m watchdog.render_faults` from the catalogue (`watchdog/checks/catalogue.py`); a test fails when it is
stale.
`watchdog diagnose --explain NAME` shows one of them with the limits as they are configured.

- **Loudest** is the most that a check ever says. What could not be seen is `unknown`, never fine; what is not there is
  `absent`, and no fault. A device that the job does not name is never critical.
- A check is switched off with `[checks] off = ["name"]`; a limit is changed in `[limits]`.
- Exit codes of `watchdog diagnose`: 0 ok, 1 warning, 2 critical, 3 unknown (also a usage error or a failure of its
  own).

"""
_ELSEWHERE = {  # limits that are no keys of [limits]
    "memory_need_bytes": "[memory] need",
    "disk_need_bytes": "[disk] need",
    "devices": "[job] devices",
    "train_deadline_s": "[deadlines] train",
    "xid": "[checks] xid",
}


def page() -> str:
    """The whole page."""
    rows = ["| check | loudest | condition | remedies |", "| --- | --- | --- | --- |"]
    rows += [
        f"| [{check.name}](#{check.name}) | {check.worst.name.lower()} | {_cell(check.proves)} | {_remedies(check)} |"
        for check in CATALOGUE
    ]
    return _HEAD + "\n".join(rows) + "\n\n" + "\n".join(_section(check) for check in CATALOGUE)


def _remedies(check: Check) -> str:
    return "; ".join(_cell(remedy.value) for remedy in check.remedies if remedy is not Remedy.NONE) or "–"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _section(check: Check) -> str:
    about = re.sub(r"^(Proves|Near misses): ", r"**\1:** ", check.about.strip(), flags=re.MULTILINE)
    limits = ", ".join(f"`{_key(name)}` ({_value(name)})" for name in check.limits)
    lines = [f"## {check.name}", "", about, ""]
    lines.append(f"Looks at: {', '.join(check.needs)}." + (f" Limits: {limits}." if limits else ""))
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return _ELSEWHERE.get(name) or f"[limits] {key_name(name)}"


def _value(name: str) -> str:
    value = getattr(Limits(), name)
    if value is None or value == {}:
        return "none stated"
    if name.endswith("_bytes"):
        return f"{value / 1024**3:g} GiB"
    return f"{value:g} s" if name.endswith("_s") and isinstance(value, float) and "per_s" not in name else f"{value:g}"


if __name__ == "__main__":
    sys.stdout.write(page())
