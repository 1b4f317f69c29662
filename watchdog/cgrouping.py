"""The run's own cgroup over its life: made before the launch, given up without harm, removed after the proven end.

Whatever goes wrong with it is said once and costs no launch: it is a cross-check and a second way to kill, not the
proof. Refuses to kill (signalling.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from watchdog.actuators import cgroup
from watchdog.collectors.run import RunWatch
from watchdog.core.runrecord import RunCgroup, RunRecord


class RunCgroups:
    """For one supervisor. `note(kind, sentence, **data)` writes to the ledger; nothing depends on it."""

    def __init__(self, note: Callable[..., Any]) -> None:
        self._note = note
        self._said: set[str] = set()
        self._looked_at = ""

    def make(self, run_id: str) -> RunCgroup | None:
        """None: the run goes without, and why was said."""
        try:
            return cgroup.make(run_id)
        except LookupError as why:
            self._say(str(why.args[0]))
        except OSError as error:
            self._say(f"{error.filename}: {error.strerror}")
        except ValueError as error:
            self._say(str(error))
        return None

    def look(self, watch: RunWatch | None) -> None:
        """Whether the run of a start record got into its cgroup."""
        if watch is None or watch.start is None or self._looked_at == watch.record.run_id:
            return
        if watch.start.leader is not None:
            self._looked_at = watch.record.run_id
            if watch.start.cgroup_error is not None:
                self._say(f"it could not enter it ({watch.start.cgroup_error})")

    def release(self, record: RunRecord, stopping: Mapping[str, Any] | None) -> None:
        """An adopted run whose KILL was begun: a supervisor that died over it may have left its cgroup frozen.

        The KILL is owed and comes again, but may have to wait (for the ledger, a debugger), and nobody waits frozen.
        """
        begun = stopping is not None and stopping.get("kill_now") and stopping.get("run_id") == record.run_id
        if begun and record.cgroup is not None:
            cgroup.thaw_whole(record.cgroup, record.run_id)

    def remove(self, record: RunRecord) -> None:
        """The run is proven over, or was not started."""
        if record.cgroup is None:
            return
        stays = cgroup.remove(record.cgroup, record.run_id)
        if stays is not None:
            words = f"{record.cgroup.path} stays: {stays}; the next start tries again"
            self._note("cgroup_stays", words, run_id=record.run_id, path=record.cgroup.path)

    def sweep(self, run_ids: Iterable[str], living: str | None) -> None:
        """What supervisors before us could not remove."""
        try:
            cgroup.sweep(frozenset(run_ids) - {living})
        except (OSError, ValueError, LookupError):
            return  # where no cgroup can be reached none was left; why is said at the launch

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            words = f"runs have no cgroup of their own: {why}; they are ended by their processes alone"
            self._note("cgroup_missing", words, why=why)
