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
from watchdog.render_limits import key_of, shown

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
  own). A job on hold is critical, one that nobody watches a warning, whatever the host is like.

"""


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
    limits = ", ".join(f"`{key_of(name)}` ({shown(name, getattr(Limits(), name))})" for name in check.limits)
    lines = [f"## {check.name}", "", about, ""]
    lines.append(f"Looks at: {', '.join(check.needs)}." + (f" Limits: {limits}." if limits else ""))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
