"""Reading a job's autopsies: from its ledger, and what its runs left on disk of their own end. Reads only.

The ledger decides; a run's `failure.json` and the end of its output are added where they still lie in its folder.
Refuses to write, to ask a supervisor, and to show what is not masked.
"""

from __future__ import annotations

import dataclasses
import json

from watchdog.collectors.outputlog import tail
from watchdog.contract import ContractError, printable, read_json
from watchdog.core.incidents import Evidence, Incident, incidents, lines_of
from watchdog.errors import SettingsError
from watchdog.folders import JobFolders
from watchdog.ledger import read_events

_TAIL_LINES = 20


def read_incidents(folders: JobFolders) -> tuple[Incident, ...]:
    """All incidents of the ledger, oldest first; none where there is no ledger. Raises StateError."""
    return incidents(read_events(folders.ledger)[0])


def chosen_incidents(folders: JobFolders, what: str, number: int | None) -> tuple[Incident, ...]:
    """What `watchdog incidents list`, `show ID` and `export` are about. Raises SettingsError, StateError."""
    if what not in ("list", "show", "export"):
        raise SettingsError(f"incidents {what}: must be list, show ID or export")
    if (number is None) is (what == "show"):
        raise SettingsError(f"incidents {what}: " + ("name the incident: show ID" if what == "show" else "takes no ID"))
    found = read_incidents(folders)
    if what == "list":
        return found
    if number is None:
        return tuple(with_files(each, folders) for each in found)
    for incident in found:
        if incident.id == number:
            return (with_files(incident, folders),)
    there = f"there are 1 to {len(found)}: watchdog incidents list" if found else "this job has none"
    raise SettingsError(f"incident {number}: {there}")


def with_files(incident: Incident, folders: JobFolders) -> Incident:
    """The incident with what the runs that ended in it left on disk. What cannot be read is said."""
    found = list(incident.evidence)
    for run_id in incident.run_ids:
        if run_id != printable(run_id).replace("/", "") or run_id in ("", ".", ".."):
            continue  # no name of a folder of ours, whoever wrote it
        run = folders.run(run_id)
        try:
            failure = json.dumps(read_json(run.failure, "failure record"), indent=1)
            found.append(Evidence(source=f"run {run_id}: failure.json", lines=lines_of(failure)))
        except FileNotFoundError:
            pass
        except (OSError, ContractError) as error:
            found.append(Evidence(source=f"run {run_id}: failure.json cannot be read", lines=lines_of(str(error))))
        try:
            lines = [printable(line) for line in tail(run.log).splitlines() if line.strip()][-_TAIL_LINES:]
        except FileNotFoundError:
            continue
        except OSError as error:
            lines = [f"cannot be read: {error.strerror}"]
        if lines:
            found.append(Evidence(source=f"run {run_id}: end of its output", lines=lines_of(lines)))
    return dataclasses.replace(incident, evidence=tuple(found))
