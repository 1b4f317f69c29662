"""Reading a job's autopsies: from its ledger, and what its runs left on disk of their own end. Reads only.

The ledger decides; of an older ledger, whose ends kept less, a run's `failure.json` and the end of its output are added
where they still lie in its folder. Refuses to write, to ask a supervisor, and to show what is not masked: also what
stands in a secret variable of the job's environment, or of this one, is hidden wherever it is found.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from watchdog.actuators.locks import read_holder
from watchdog.collectors.outputlog import tail
from watchdog.collectors.processes import read_process
from watchdog.contract import ContractError, printable, read_json
from watchdog.core.autopsy import Evidence, Incident, Origin, lines_of
from watchdog.core.endrecord import failure_lines, tail_of
from watchdog.core.ettr import ettr_of_ledger
from watchdog.core.history import Event, fold
from watchdog.core.incidents import incidents
from watchdog.errors import SettingsError
from watchdog.folders import JobFolders
from watchdog.ledger import read_events
from watchdog.masking import hide_values, secret_values

_LOG_BYTES = 64 * 1024
# What a record is understood by; a secret that happens to be one of these words is none.
_NOT_SHOWN = frozenset({"cause", "run_id", "check", "severity", "verdict", "digest", "confidence"})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """How a job's ledger is read. `now_wall_s` None: up to its last record. `supervised`: see `Account.until_s`."""

    folders: JobFolders
    secrets: tuple[str, ...] = ()
    now_wall_s: float | None = None
    supervised: bool = False

    def origin(self, job: str) -> Origin:
        """Whose autopsies these are, and how the job has done up to now. Raises StateError."""
        from importlib.metadata import version  # 10 ms, and only a report needs it

        events = self.events()
        newest = fold(events).newest
        now_wall_s = time.time() if self.now_wall_s is None else self.now_wall_s
        step = None if newest is None else newest.step
        system = os.uname()
        return Origin(
            job=job,
            host=f"{system.nodename} ({system.sysname} {system.release} {system.machine})",
            version=version("gpuhost-watchdog"),
            ettr=ettr_of_ledger(events, step, now_wall_s, supervised=self.supervised),
        )

    def events(self) -> tuple[Event, ...]:
        """The ledger, without secret values. Raises StateError."""
        found = read_events(self.folders.ledger)[0]
        return tuple(_hidden(event, self.secrets) for event in found) if self.secrets else found


def reader_of(folders: JobFolders, environment: Mapping[str, str]) -> Reader:
    """One for now, that hides what is secret in the job's `environment` and in ours."""
    secrets = secret_values(os.environ, environment)
    return Reader(folders=folders, secrets=secrets, now_wall_s=time.time(), supervised=_supervised(folders))


def _supervised(folders: JobFolders) -> bool:
    """Whether the process that took the job last lives: it is not asked."""
    holder = read_holder(folders.supervisor_lock)
    process = None if holder is None else read_process(holder.pid)
    if holder is None or process is None:
        return False
    return process.id.start_ticks == holder.start_ticks and process.living


def _hidden(event: Event, secrets: Iterable[str]) -> Event:
    def clean(value: Any, name: str = "") -> Any:
        if isinstance(value, str):
            return value if name in _NOT_SHOWN else hide_values(value, secrets)
        if isinstance(value, Mapping):
            return {key: clean(each, str(key)) for key, each in value.items()}
        return [clean(each) for each in value] if isinstance(value, list) else value

    return dataclasses.replace(event, sentence=hide_values(event.sentence, secrets), data=clean(event.data))


def read_incidents(reader: Reader) -> tuple[Incident, ...]:
    """All incidents of the ledger, oldest first; none where there is no ledger. Raises StateError."""
    return incidents(reader.events(), reader.now_wall_s, supervised=reader.supervised)


def chosen_incidents(reader: Reader, what: str, number: int | None) -> tuple[Incident, ...]:
    """What `watchdog incidents list`, `show ID` and `export` are about. Raises SettingsError, StateError."""
    if what not in ("list", "show", "export"):
        raise SettingsError(f"incidents {what}: must be list, show ID or export")
    if (number is None) is (what == "show"):
        raise SettingsError(f"incidents {what}: " + ("name the incident: show ID" if what == "show" else "takes no ID"))
    found = read_incidents(reader)
    if what == "list":
        return found
    if number is None:
        return tuple(with_files(each, reader) for each in found)
    for incident in found:
        if incident.id == number:
            return (with_files(incident, reader),)
    there = f"there are 1 to {len(found)}: watchdog incidents list" if found else "this job has none"
    raise SettingsError(f"incident {number}: {there}")


def with_files(incident: Incident, reader: Reader) -> Incident:
    """The incident with what the runs that ended in it left on disk. What cannot be read is said."""
    found = list(incident.evidence)
    told = {source.source for source in found}
    for number, run_id in zip((end.number for end in incident.ends), incident.run_ids, strict=True):
        if run_id != printable(run_id).replace("/", "") or run_id in ("", ".", ".."):
            continue  # no name of a folder of ours, whoever wrote it
        run = reader.folders.run(run_id)
        if f"run {number}: failure.json" not in told:
            try:
                lines = failure_lines(read_json(run.failure, "failure record"), reader.secrets)
                found.append(Evidence(source=f"run {run_id}: failure.json", lines=lines_of(lines)))
            except FileNotFoundError:
                pass
            except (OSError, ContractError) as error:
                found.append(Evidence(source=f"run {run_id}: failure.json cannot be read", lines=lines_of(str(error))))
        if f"run {number}: end of its output" in told:
            continue
        try:
            lines = tail_of(tail(run.log, _LOG_BYTES), reader.secrets)
        except FileNotFoundError:
            continue
        except OSError as error:
            lines = [f"cannot be read: {error.strerror}"]
        if lines:
            found.append(Evidence(source=f"run {run_id}: end of its output", lines=lines_of(lines)))
    return dataclasses.replace(incident, evidence=tuple(found))
