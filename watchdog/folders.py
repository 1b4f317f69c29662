"""Where everything of a job lies: its checkpoint folder, its control folder with the locks, its state folder.

Pure paths; creating and checking them is the business of whoever uses them.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from watchdog import contract

CONTROL_IN_STATE = "control"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunFolder:
    """What one run leaves in `<state>/<job>/runs/<run id>/`."""

    path: Path

    @property
    def start(self) -> Path:
        return self.path / "start.json"

    @property
    def exit(self) -> Path:
        return self.path / "exit.json"

    @property
    def beat(self) -> Path:
        return self.path / "beat.json"

    @property
    def acknowledgement(self) -> Path:
        return self.path / "acknowledgement.json"

    @property
    def failure(self) -> Path:
        return self.path / "failure.json"

    @property
    def members(self) -> Path:
        return self.path / "members.json"

    @property
    def log(self) -> Path:
        return self.path / "output.log"

    @property
    def stacks(self) -> Path:
        """Where its processes stood when it was stopped for a stall."""
        return self.path / "stacks.txt"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JobFolders:
    """`state`: this job's folder below the state folder. `control`: where the locks are, the same for everybody."""

    state: Path
    checkpoints: Path
    control: Path

    @property
    def supervisor_lock(self) -> Path:
        return self.control / "supervisor.lock"

    @property
    def run_lock(self) -> Path:
        return self.control / contract.RUN_LOCK

    @property
    def run_record(self) -> Path:
        return self.control / contract.RUN_RECORD

    @property
    def lineage(self) -> Path:
        """Every run id that ever trained into this checkpoint folder, one a line."""
        return self.control / "lineage"

    @property
    def ledger(self) -> Path:
        return self.state / "ledger.jsonl"

    @property
    def ballast(self) -> Path:
        return self.state / "ballast"

    @property
    def socket(self) -> Path:
        return self.state / "control.sock"

    @property
    def screen_log(self) -> Path:
        """What the supervisor says, for when it has no terminal."""
        return self.state / "watchdog.log"

    def run(self, run_id: str) -> RunFolder:
        return RunFolder(path=self.state / "runs" / run_id)


def job_folders(*, state: Path, job: str, checkpoints: Path | None, native_checkpoints: bool) -> JobFolders:
    """Resolve the folders of a job.

    The checkpoint folder is the identity, by its real path. Where it is no native file system the locks go to the
    state folder, under a name made from that identity, so that two configurations still meet there.
    """
    folder = Path(os.path.realpath(checkpoints if checkpoints is not None else state / job / "checkpoints"))
    if native_checkpoints:
        control = folder / contract.CONTROL_FOLDER
    else:
        import hashlib  # 2 ms, for the rare case

        control = state / CONTROL_IN_STATE / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return JobFolders(state=state / job, checkpoints=folder, control=control)
