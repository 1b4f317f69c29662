"""Writes results into docs/benchmarks.md: dated, with what is needed to repeat them, and never by hand.

Each block says the commit, the processor, the Python, the seed and the figures. Blocks are added at the end, between
two markers; nothing that is there is changed. Refuses to write where the markers are missing.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- results: written by bench/record.py, oldest first; do not edit -->"
END = "<!-- end of results -->"


def _git(*words: str) -> str | None:
    """What git says about this checkout; None without git or outside a checkout."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def commit() -> str:
    """The commit the figures belong to, with a word where the files differ from it."""
    name = _git("rev-parse", "--short=12", "HEAD")
    if name is None:
        return "no git checkout"
    # Not the document itself: the block before this one would make every further one doubtful.
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/benchmarks.md")
    return name if changed == "" else f"{name} with uncommitted changes"


def processor(cpuinfo: str) -> str:
    """The model name of the first processor in the text of /proc/cpuinfo, or the machine's architecture."""
    for line in cpuinfo.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def surroundings() -> dict[str, str]:
    """What a reader must know to repeat a measurement."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.exists() else ""
    return {
        "commit": commit(),
        "processor": f"{processor(text)}, {len(os.sched_getaffinity(0))} usable",
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; the columns are the keys of the first row, and every row must have the same."""
    columns = list(rows[0])
    for row in rows:
        if list(row) != columns:
            raise ValueError(f"a row has the columns {list(row)}, the first has {columns}")
    lines = [columns, ["---"] * len(columns), *([_cell(row[column]) for column in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def block(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    seed: int | None,
    details: Mapping[str, Any],
    when: datetime.datetime,
    where: Mapping[str, str],
) -> str:
    """One result as Markdown."""
    facts = {**where, "seed": "none" if seed is None else str(seed)}
    lines = [f"### {name}, {when:%Y-%m-%d %H:%M} UTC", ""]
    lines += [f"- {key}: {value}" for key, value in facts.items()]
    lines += ["", table(rows), ""]
    if details:
        lines += ["```json", json.dumps(details, sort_keys=True, allow_nan=False), "```", ""]
    return "\n".join(lines)


def append(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    seed: int | None = None,
    details: Mapping[str, Any] | None = None,
    document: Path = DOCUMENT,
) -> None:
    """Add a result to `document`. Raises ValueError when the markers are missing, OSError."""
    text = document.read_text(encoding="utf-8")
    begin, end = text.find(BEGIN), text.rfind(END)
    if begin < 0 or end < begin:
        raise ValueError(f"{document} lacks the lines {BEGIN!r} and {END!r}: put them back where results belong")
    when = datetime.datetime.now(datetime.UTC)
    new = block(name, rows, seed=seed, details=details or {}, when=when, where=surroundings())
    temporary = document.with_name(document.name + ".tmp")
    temporary.write_text(text[:end] + new + "\n" + text[end:], encoding="utf-8")
    os.replace(temporary, document)
