"""Which job is meant, and what it is called.

Responsible for choosing among the file's jobs and for a name when none was given. Refuses to let a command of one's
own share the name, and so the checkpoints, of the built-in default job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from watchdog.settings_file import Document, JobTable
from watchdog.settings_keys import as_toml, one_line
from watchdog.settings_meta import did_you_mean
from watchdog.settings_shape import DEFAULT_JOB

# These run something else; the job is called after that.
_LAUNCHERS: Final = re.compile(
    r"(python|pypy)[0-9.]*|bash|sh|dash|zsh|env|nice|ionice|nohup|time|stdbuf|taskset|numactl|uv|poetry|pipenv|conda"
    r"|torchrun|accelerate|deepspeed|mpirun|mpiexec|srun|make"
)
_SCRIPT: Final = re.compile(r".+\.(py|sh|bash|pyz)")
_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


def name_from(command: Sequence[str]) -> str:
    """A job name from a command line: `python train.py` -> "train", `python -m my.trainer` -> "my.trainer"."""
    program = PurePath(command[0]).name
    found = program.removesuffix(".py").removesuffix(".sh")
    if _LAUNCHERS.fullmatch(program):
        for index, argument in enumerate(command[1:], 1):
            if argument == "-c":
                break
            if argument == "-m" and index + 1 < len(command):
                found = command[index + 1]
                break
            if _SCRIPT.fullmatch(argument) and not argument.startswith("-"):
                found = PurePath(argument).stem
                break
    name = _NOT_A_NAME.sub("-", found).strip("-").lstrip(".")[:64] or "job"
    return f"{name}-command" if name == DEFAULT_JOB else name


def choose(document: Document | None, wanted: str | None) -> tuple[JobTable | None, list[str]]:
    """The job table that is meant (None: there is none, or none can be meant), and what is in the way."""
    if document is None or not document.jobs:
        return None, []
    if document.jobs[0].name is None:  # [job]
        return document.jobs[0], []
    names = [str(job.name) for job in document.jobs]
    if wanted is None:
        if len(names) == 1:
            return document.jobs[0], []
        return None, [one_line(f"{document.shown} has several jobs; choose one: {_choices(names)}")]
    for job in document.jobs:
        if job.name == wanted:
            return job, []
    hint = did_you_mean(wanted, names)
    has = f"; {document.shown} has {', '.join(names)}" if "did you mean" in hint else ""
    return None, [one_line(f"--job {as_toml(wanted)}: no such job{hint}{has} ({document.shown})")]


def _choices(names: Sequence[str]) -> str:
    return " or ".join(f"--job {name}" for name in names)


def name_for(
    *, table: JobTable | None, configured: str, wanted: str | None, command: Sequence[str], shown: str
) -> tuple[str, list[str]]:
    """The job's name, and what is in the way.

    `configured` is the checked `name` ("default" counts as not given), `wanted` is --job, `command` the command that
    will run, empty for the built-in job, and `shown` the file.
    """
    problems: list[str] = []
    if table is not None and table.name is not None:  # [jobs.NAME] is its name
        if configured not in (DEFAULT_JOB, table.name):
            problems.append(
                one_line(
                    f"{table.header} name = {as_toml(configured)}: must be {as_toml(table.name)} or left out ({shown})"
                )
            )
        name = table.name
    elif configured != DEFAULT_JOB:
        if wanted not in (None, configured):
            problems.append(
                one_line(f"--job {as_toml(wanted)}: the job is called {as_toml(configured)}; leave --job out ({shown})")
            )
        name = configured
    elif wanted is not None:
        name = wanted
    elif command:
        name = name_from(command)
    else:
        name = DEFAULT_JOB
    if command and name == DEFAULT_JOB:
        where = f"{table.header}" if table is not None and table.name is not None else '--job "default"'
        problems.append(
            one_line(
                f"{where}: this name is the built-in job's, and so are its checkpoints; "
                f"give this command another, such as {name_from(command)} ({shown})"
            )
        )
    return name, problems
