"""What was launched: the run record that a late rank, another supervisor and we ourselves after a death read.

Pure: to and from the JSON object that lies as `run.json` in the control folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from watchdog.contract import ContractError
from watchdog.core.identity import ProcessId


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What the run must acknowledge: a fresh start, or this step with this digest (None = nothing is demanded)."""

    fresh: bool
    step: int | None = None
    digest: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunCgroup:
    """The run's own cgroup v2 directory, and what it was when it was made (`st_dev`, `st_ino`)."""

    path: str
    device: int
    inode: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """One launched run. `started_ticks`: clock ticks since boot, a lower bound for the start of its processes.

    `ancestors`: the launching supervisor and its parents up to process 1. Should supervisor and shim both be killed,
    what is left of the run is given to one of them or to process 1, and to nobody else.
    `cgroup`: None for a run without one.
    `baseline_step`: the newest verified step when it was launched (-1: none), against which progress is measured.
    """

    run_id: str
    number: int
    job: str
    boot_id: str
    pid_namespace: str
    started_ticks: int
    started_wall_s: float
    folder: str
    level: int
    baseline_step: int
    expectation: Expectation
    ancestors: tuple[ProcessId, ...] = ()
    cgroup: RunCgroup | None = None

    def to_record(self) -> dict[str, object]:
        return {"format": 1, **dataclasses.asdict(self)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> RunRecord:
        """Raises ContractError."""
        try:
            expectation, cgroup = record["expectation"], record.get("cgroup")
            return cls(
                run_id=str(record["run_id"]),
                number=int(record["number"]),
                job=str(record["job"]),
                boot_id=str(record["boot_id"]),
                pid_namespace=str(record["pid_namespace"]),
                started_ticks=int(record["started_ticks"]),
                started_wall_s=float(record["started_wall_s"]),
                folder=str(record["folder"]),
                level=int(record["level"]),
                baseline_step=int(record["baseline_step"]),
                expectation=Expectation(
                    fresh=bool(expectation["fresh"]),
                    step=None if expectation["step"] is None else int(expectation["step"]),
                    digest=None if expectation["digest"] is None else str(expectation["digest"]),
                ),
                ancestors=tuple(
                    ProcessId(int(each["pid"]), int(each["start_ticks"])) for each in record.get("ancestors", ())
                ),
                cgroup=None
                if cgroup is None
                else RunCgroup(path=str(cgroup["path"]), device=int(cgroup["device"]), inode=int(cgroup["inode"])),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ContractError(f"run record lacks or misstates {error}") from error
