"""A stand-in for the Python that has torch: a real program that answers as it is told, whatever it is asked to run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

_PROGRAM = """#!{python} -IS
import os, signal, sys, time
with open({asked!r}, "a") as file:
    print(*sys.argv[1:], sep="\\t", file=file)
{body}
"""


def answer(**changes: Any) -> dict[str, Any]:
    """A row as bench/matmul.py prints it."""
    row = dict(
        format=1, device="a card", uuid=None, tflops=25.5, dtype="bf16", size=8192, seconds=0.043, correct=True,
        worst_error=0.0021, threads=8, total_s=3.2, torch="2.7.1",
    )  # fmt: skip
    return row | changes


class Standin:
    """One program in a folder; `says` and `does` rewrite it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "python-with-torch"
        self._asked = folder / "asked"

    def says(self, line: str | dict[str, Any], code: int = 0) -> Standin:
        text = line if isinstance(line, str) else json.dumps(line)
        return self.does(f"sys.stdout.write({text!r} + '\\n')\nsys.exit({code})")

    def does(self, body: str) -> Standin:
        new = self.path.with_suffix(".new")  # one that is running keeps its own
        new.write_text(_PROGRAM.format(python=sys.executable, asked=str(self._asked), body=body))
        new.chmod(0o755)
        os.replace(new, self.path)
        return self

    @property
    def asked(self) -> list[list[str]]:
        """The arguments of each call."""
        return [line.split("\t") for line in self._asked.read_text().splitlines()] if self._asked.exists() else []
