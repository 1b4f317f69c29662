"""Where settings come from: the file, the environment, the command line. Found, read and taken apart, not judged.

Responsible for the search order, for broken files in one line with line and column, and for names that nobody knows.
Refuses to check a value: each becomes an `Entry` that remembers how it was written and where.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from watchdog import contract
from watchdog.errors import SettingsError
from watchdog.settings_keys import Place, keys_of, one_line, problem, written_name
from watchdog.settings_meta import did_you_mean
from watchdog.settings_shape import SECTIONS, SHARED_SECTIONS

FILE_NAME: Final = "watchdog.toml"
FOLDER_NAME: Final = "gpuhost-watchdog"
_FILE_LIMIT_BYTES: Final = 1024 * 1024


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One value as it was written. `candidates` are its possible readings, the most likely first."""

    label: str
    candidates: tuple[object, ...]
    source: str
    place: Place


Entries = dict[str, dict[str, Entry]]  # section -> key -> entry


class JobTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[job]` (name None) or one `[jobs.NAME]`, with the sections that it overrides."""

    name: str | None
    header: str
    entries: Entries


class Document(msgspec.Struct, kw_only=True):
    """A file taken apart. `problems` has a line for each thing in it that does not belong there."""

    path: Path
    shown: str
    shared: Entries = msgspec.field(default_factory=dict)
    jobs: list[JobTable] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)


# --- the file -----------------------------------------------------------------------------------------------
def candidates(environ: Mapping[str, str], home: Path, cwd: Path) -> tuple[Path, ...]:
    """The files that are looked for when none is named, in this order."""
    config_home = environ.get("XDG_CONFIG_HOME", "")
    base = Path(config_home) if os.path.isabs(config_home) else home / ".config"
    return (cwd / FILE_NAME, base / FOLDER_NAME / FILE_NAME, Path("/etc") / FOLDER_NAME / FILE_NAME)


def find(config: Path | None, environ: Mapping[str, str], home: Path, cwd: Path) -> Path | None:
    """The file to read, or None for defaults. One that cannot be looked at is returned, to fail when it is read."""
    if config is not None:
        text = str(config)
        return home / text[2:] if text.startswith("~/") else cwd / text
    for path in candidates(environ, home, cwd):
        try:
            path.lstat()  # a link to nowhere is a mistake to be told, not to be passed over
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return path
        return path
    return None


def shown_name(path: Path, cwd: Path) -> str:
    """The file as a person would name it from where they are."""
    return path.name if path.parent == cwd else str(path)


def read(path: Path, shown: str) -> dict[str, Any]:
    """The file as a table. Raises SettingsError with one line: file, and line and column where it is broken."""
    try:
        with contract.open_regular(path) as file:  # a named pipe would be waited for
            raw = file.read(_FILE_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        why = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, OSError) and error.errno == errno.EINVAL:
            why = "Is a directory" if path.is_dir() else "it is no file, but a named pipe, a socket or a device"
        raise SettingsError(one_line(f"{shown}: cannot be read: {why}; name another with --config")) from error
    if len(raw) > _FILE_LIMIT_BYTES:
        raise SettingsError(one_line(f"{shown}: is longer than 1 MiB and cannot be a configuration file"))
    try:
        text = raw.decode("utf-8-sig")  # editors on Windows write a byte order mark
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8", errors="replace")
        where = _position(before)
        byte = raw[error.start]
        raise SettingsError(one_line(f"{shown}, {where}: byte 0x{byte:02x} is not UTF-8; save it as UTF-8")) from error
    return _parse(text, shown)


def _position(before: str) -> str:
    return f"line {before.count(chr(10)) + 1}, column {len(before) - (before.rfind(chr(10)) + 1) + 1}"


# tomllib tells the position only in words before Python 3.14.
_AT_POSITION: Final = re.compile(r" \(at line (\d+), column (\d+)\)\Z")
_AT_END: Final = " (at end of document)"


def _parse(text: str, shown: str) -> dict[str, Any]:
    import tomllib  # 15 ms that a host without a file need not pay

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        if match := _AT_POSITION.search(said):
            where, said = f"line {match[1]}, column {match[2]}", said[: match.start()]
        else:
            where, said = _position(text.replace("\r\n", "\n")), said.removesuffix(_AT_END) + " at the end of the file"
        raise SettingsError(one_line(f"{shown}, {where}: not valid TOML: {said}")) from error
    except (ValueError, RecursionError, OverflowError) as error:
        # Numbers of thousands of digits and brackets nested a thousand deep end here, without a position.
        why = "nested too deep" if isinstance(error, RecursionError) else "holds a number that is too large"
        raise SettingsError(one_line(f"{shown}, line 1, column 1: not usable TOML: {why}")) from error


# --- taken apart --------------------------------------------------------------------------------------------
def take_apart(table: Mapping[str, Any], path: Path, shown: str, home: Path) -> Document:
    """The file's table by sections and jobs, every value still as it was written."""
    document = Document(path=path, shown=shown)
    place, problems = Place(base=path.parent, home=home), document.problems
    for name, value in table.items():
        if name == "job":
            _take_job(value, None, "job", document, place)
        elif name == "jobs":
            if not isinstance(value, dict) or not value:
                problems.append(problem("jobs", value, "must be tables such as [jobs.small]", document.shown))
                continue
            for job, content in value.items():
                _take_job(content, job, f"jobs.{written_name(job)}", document, place)
        elif name in SHARED_SECTIONS:
            document.shared[name] = _take_section(name, value, name, document, place)
        else:
            problems.append(_unknown_at_top(name, value, document.shown))
    if "job" in table and "jobs" in table:
        problems.append(f"[job] and [jobs]: use one of them, not both ({document.shown})")
    return document


def _take_section(section: str, value: Any, header: str, document: Document, place: Place) -> dict[str, Entry]:
    problems = document.problems
    if not isinstance(value, dict):
        problems.append(problem(header, value, f"must be a table: [{header}]", document.shown))
        return {}
    known = keys_of(section)
    entries = {}
    for name, written in value.items():
        label = f"[{header}] {written_name(name)}"
        if name in known:
            entries[name] = Entry(label=label, candidates=(written,), source=document.shown, place=place)
        else:
            problems.append(problem(label, written, "unknown key" + did_you_mean(name, known), document.shown))
    return entries


def _take_job(value: Any, name: str | None, header: str, document: Document, place: Place) -> None:
    entries: Entries = {}
    if isinstance(value, dict):
        for section in [each for each in SHARED_SECTIONS if each in value]:
            sub = f"{header}.{section}"
            entries[section] = _take_section(section, value[section], sub, document, place)
        value = {key: written for key, written in value.items() if key not in SHARED_SECTIONS}
    entries["job"] = _take_section("job", value, header, document, place)
    document.jobs.append(JobTable(name=name, header=f"[{header}]", entries=entries))


def _unknown_at_top(name: str, value: Any, source: str) -> str:
    owners = [section for section in SECTIONS if name in keys_of(section)]
    if not isinstance(value, dict) and owners:
        return problem(
            written_name(name), value, f"stands outside a section; did you mean [{owners[0]}] {name}?", source
        )
    label = f"[{written_name(name)}]"
    if isinstance(value, dict):
        return one_line(f"{label}: unknown section{did_you_mean(name, [*SECTIONS, 'jobs'])} ({source})")
    return problem(written_name(name), value, f"unknown key{did_you_mean(name, [*SECTIONS, 'jobs'])}", source)


# --- environment and command line ---------------------------------------------------------------------------
def environment_name(section: str, key: str) -> str:
    """`GPUHOST_WATCHDOG_RELAUNCH__FAILURES` for `[relaunch] failures`."""
    return f"{contract.ENV_PREFIX}{section.upper()}__{key.upper()}"


def from_environment(environ: Mapping[str, str], place: Place) -> tuple[Entries, list[str]]:
    """The overrides in `environ`, and a line for each name that begins like ours and is not."""
    entries: Entries = {}
    problems: list[str] = []
    ours = [name for name in environ if name.startswith(contract.ENV_PREFIX)]
    known = {environment_name(section, key): (section, key) for section in SECTIONS for key in keys_of(section)}
    for name in sorted(set(ours) - contract.CONTRACT_ENVIRONMENT):
        if name not in known:
            # Without what all of them begin with, which would make every name a near one.
            bare = {each.removeprefix(contract.ENV_PREFIX): each for each in known}
            hint = did_you_mean(name.removeprefix(contract.ENV_PREFIX), bare)
            hint = hint.replace("mean ", f"mean {contract.ENV_PREFIX}")
            problems.append(
                one_line(f"{name}: unknown environment variable{hint}")
                + f" (names are {contract.ENV_PREFIX}SECTION__KEY)"
            )
            continue
        section, key = known[name]
        entries.setdefault(section, {})[key] = Entry(
            label=f"[{section}] {key}",
            candidates=_readings(environ[name]),
            source=f"environment variable {name}",
            place=place,
        )
    return entries, problems


def _readings(text: str) -> tuple[object, ...]:
    """As a TOML value, where it is one, then as the plain text."""
    import tomllib

    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError, OverflowError):
        return (text,)
    # A line break in the text could smuggle in another key: then it was no value.
    return (table["value"], text) if table.keys() == {"value"} else (text,)


def from_command_line(overrides: Mapping[str, object], place: Place) -> tuple[Entries, list[str]]:
    """Overrides as `{"metrics.port": 0}`; None = not given."""
    entries: Entries = {}
    problems: list[str] = []
    for name, written in overrides.items():
        section, _, key = name.partition(".")
        if section not in SECTIONS or key not in keys_of(section):
            problems.append(problem(name, written, "unknown key", "command line"))
        elif written is not None:
            entries.setdefault(section, {})[key] = Entry(
                label=f"[{section}] {key}", candidates=(written,), source="command line", place=place
            )
    return entries, problems
