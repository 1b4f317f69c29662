"""Settings: TOML, environment and command line in, one frozen and checked `Settings` out.

Responsible for the order (defaults < file < the job's own table < environment < command line), and for telling every
problem at once, a line each, with key, value seen, what is allowed and where it stands. Refuses to start with
anything doubtful, to touch the disk beyond reading the one file, and to reach for the environment by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from watchdog import settings_file, settings_job, units
from watchdog.core.limits import MEMORY_NEED_BYTES
from watchdog.errors import SettingsError
from watchdog.settings_file import Document, Entries
from watchdog.settings_keys import COMPUTED, Place, keys_of, one_line, problem, read_value
from watchdog.settings_limits import Checks, Limits
from watchdog.settings_shape import (
    DEFAULT_JOB,
    DEFAULT_METRICS_PORT,
    SECTIONS,
    Deadlines,
    Disk,
    Job,
    Log,
    Loop,
    Memory,
    Metrics,
    Notify,
    Probe,
    Relaunch,
    Settings,
    State,
    Stop,
    default_state_folder,
)

__all__ = [
    "DEFAULT_JOB",
    "DEFAULT_METRICS_PORT",
    "Checks",
    "Deadlines",
    "Disk",
    "Job",
    "Limits",
    "Log",
    "Loop",
    "Memory",
    "Metrics",
    "Notify",
    "Probe",
    "Relaunch",
    "Settings",
    "State",
    "Stop",
    "commented_template",
    "load",
]

Values = dict[str, dict[str, Any]]  # section -> key -> checked value
_NO_OVERRIDES: Final[Mapping[str, object]] = MappingProxyType({})


def load(
    *,
    config: Path | None = None,
    job: str | None = None,
    command: Sequence[str] = (),
    overrides: Mapping[str, object] = _NO_OVERRIDES,
    environ: Mapping[str, str],
    home: Path,
    cwd: Path,
) -> Settings:
    """Read, check and resolve everything.

    `config` is --config, `job` --job, `command` what follows `--` (it replaces the job's command), `overrides` other
    options of the command line as `{"metrics.port": 0}` with None for "not given". Relative paths belong to the
    folder of the file that names them, elsewhere to `cwd`.
    Raises SettingsError with one line for each problem.
    """
    here = Place(base=cwd, home=home)
    environment, problems = settings_file.from_environment(environ, here)
    line, line_problems = settings_file.from_command_line(overrides, here)
    problems += line_problems

    document, broken = _document(config, environ, home, cwd)
    if broken:  # with half a file, every further word about jobs would be a guess
        raise SettingsError(*broken, *problems, *_read_all(environment)[1], *_read_all(line)[1])
    shown = document.shown if document else "command line"
    problems += document.problems if document else []

    def checked(entries: Entries) -> Values:
        values, more = _read_all(entries)
        problems.extend(more)
        return values

    layers = [checked(document.shared if document else {})]
    table, choice_problems = settings_job.choose(document, job)
    problems += choice_problems
    for each in document.jobs if document else []:
        values = checked(each.entries)  # the others, too: a typing error there is found today, not next week
        if each is table:
            layers.append(values)
        if each.name is not None:
            problems += _check_job_name(each.name, each.header, shown)
    if job is not None and not choice_problems and (table is None or table.name is None):
        problems += _check_job_name(job, "--job", "command line")
    layers += [checked(environment), checked(line)]

    merged: Values = {section: {} for section in SECTIONS}
    for layer in layers:
        for section, values in layer.items():
            merged[section].update(values)
    if command:
        merged["job"]["command"] = _command(command, here, problems)
    problems += _check_together(merged)

    name, more = settings_job.name_for(
        table=table,
        configured=merged["job"].get("name", DEFAULT_JOB),
        wanted=job,
        command=merged["job"].get("command", ()),
        shown=shown,
    )
    problems += [] if choice_problems else more
    if problems:
        raise SettingsError(*dict.fromkeys(problems))

    merged["job"]["name"] = name
    _fill_in(merged, environ, here)
    sections = {section: _build(section, merged[section]) for section in SECTIONS}
    return Settings(
        **sections,
        source=_source(document, environment, bool(line or command or job)),
        config_file=document.path if document else None,
    )


def _document(
    config: Path | None, environ: Mapping[str, str], home: Path, cwd: Path
) -> tuple[Document | None, tuple[str, ...]]:
    """The file taken apart, or None; and why it cannot be read at all."""
    path = settings_file.find(config, environ, home, cwd)
    if path is None:
        return None, ()
    shown = settings_file.shown_name(path, cwd)
    try:
        table = settings_file.read(path, shown)
    except SettingsError as error:
        return None, error.problems
    return settings_file.take_apart(table, path, shown, home), ()


def _read_all(entries: Entries) -> tuple[Values, list[str]]:
    """Every entry checked by itself; of several readings the first that fits."""
    values: Values = {}
    problems: list[str] = []
    for section, keys in entries.items():
        for name, entry in keys.items():
            key = keys_of(section)[name]
            first_error: ValueError | None = None
            for candidate in entry.candidates:
                try:
                    values.setdefault(section, {})[name] = read_value(key, candidate, entry.place)
                    break
                except ValueError as error:
                    first_error = first_error or error
            else:
                problems.append(problem(entry.label, entry.candidates[0], str(first_error), entry.source))
    return values, problems


def _check_job_name(name: str, label: str, source: str) -> list[str]:
    try:
        read_value(keys_of("job")["name"], name, Place(base=Path(), home=Path()))
    except ValueError as error:
        return [problem(label, name, f"the name {error}", source)]
    return []


def _command(command: Sequence[str], place: Place, problems: list[str]) -> tuple[str, ...]:
    try:
        return tuple(read_value(keys_of("job")["command"], list(command), place))
    except ValueError as error:
        problems.append(problem("the command after --", list(command), str(error), "command line"))
        return tuple(command)


def _check_together(merged: Values) -> list[str]:
    """What no single key can tell."""
    keys, relaunch = keys_of("relaunch"), merged["relaunch"]
    backoff = relaunch.get("backoff", keys["backoff"].default)
    limit = relaunch.get("backoff_limit", keys["backoff_limit"].default)
    problems = []
    if limit < backoff:
        problems.append(
            f'[relaunch] backoff_limit = "{units.format_duration(limit)}": '
            f'must be at least backoff, which is "{units.format_duration(backoff)}"'
        )
    limits = {name: merged["limits"].get(name, key.default) for name, key in keys_of("limits").items()}
    for name, written in (("disk_full", units.format_duration), ("windows_free", units.format_size)):
        critical, warning = limits[f"{name}_critical"], limits[f"{name}_warning"]
        if critical > warning:
            problems.append(
                f'[limits] {name}_critical = "{written(critical)}": '
                f'must be at most {name}_warning, which is "{written(warning)}"'
            )
    return problems


def _fill_in(merged: Values, environ: Mapping[str, str], here: Place) -> None:
    """The defaults that depend on where, on whom and on each other."""
    job, state = merged["job"], merged["state"]
    configured = "checkpoints" in job
    state.setdefault("folder", default_state_folder(environ, here.home))
    job.setdefault("checkpoints", state["folder"] / job["name"] / "checkpoints")
    job.setdefault("directory", here.base)
    if job.get("level", COMPUTED) is COMPUTED:
        job["level"] = 2 if configured or not job.get("command") else 0
    if merged["memory"].get("need", COMPUTED) is COMPUTED:
        # The built-in job's need is known; another's depends on whether there is a GPU (core/limits.py).
        merged["memory"]["need"] = None if job.get("command") else MEMORY_NEED_BYTES
    if "python" not in merged["probe"]:
        merged["probe"]["python"] = Path(sys.executable)


def _build(section: str, values: Mapping[str, Any]) -> Any:
    known = keys_of(section)
    return SECTIONS[section](**{known[name].attribute: value for name, value in values.items()})


def _source(document: Document | None, environment: Entries, line: bool) -> tuple[str, ...]:
    source = [one_line(document.shown)] if document else []
    source += sorted(
        settings_file.environment_name(section, key) for section, keys in environment.items() for key in keys
    )
    source += ["command line"] if line else []
    return tuple(source) or ("defaults",)


def commented_template() -> str:
    """What `watchdog init` writes: every key with its default, its meaning and its range; loads to the defaults."""
    from watchdog.settings_template import render

    return render()
