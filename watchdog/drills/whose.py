"""Whose a process is: of the drill in this folder, or not; and the end of those that are.

Responsible for the proof before a drill signals anybody: what a process carries, read twice around its start time.
Refuses a name, a command line like the job's, a number alone: a real job with the same command is nobody's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from pathlib import Path

from watchdog import contract
from watchdog.actuators.cgroup import sweep
from watchdog.actuators.signals import signal_process
from watchdog.collectors.processes import process_table, read_process
from watchdog.core.identity import ProcessId


def own_home(root: Path) -> dict[str, str]:
    """What everything that a drill starts gets for the user's home and temporary folder; nobody else has these."""
    return {"HOME": str(root), "XDG_STATE_HOME": str(root / "xdg"), "TMPDIR": str(root / "tmp")}


@dataclasses.dataclass(frozen=True, slots=True)
class Whose:
    """The marks of the drill whose bed is `root`."""

    root: Path

    def is_ours(self, identity: ProcessId) -> bool:
        """By what it carries: the checkpoint folder or the home, which nobody else has, or our configuration.

        The folder stands in the environment of a run and in the words of a child that emptied it; a shim and a
        supervisor name a path below the bed's own folder.
        """
        pid = identity.pid
        folder = os.fsencode(os.path.realpath(self.root / "checkpoints"))
        root = os.fsencode(self.root) + b"/"
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        shim = any(word.endswith(b"/shim.py") for word in words[:5]) and any(word.startswith(root) for word in words)
        detached = b"--detached" in words and root + b"watchdog.toml" in words
        marked = b"--of-job=" + folder in words
        carries = contract.ENV_CHECKPOINTS.encode() + b"=" + folder in environment
        at_home = all(os.fsencode(f"{name}={value}") in environment for name, value in own_home(self.root).items())
        # The number may have gone to somebody else while we read.
        now = read_process(pid)
        return (shim or detached or marked or carries or at_home) and now is not None and now.id == identity

    def members(self) -> list[ProcessId]:
        """Every living process of it but our own."""
        return [
            process.id
            for process in process_table()
            if process.living and process.id.pid != os.getpid() and self.is_ours(process.id)
        ]

    def kill(self) -> bool:
        """KILL to all that live of it; true when there were none. Call it until then."""
        left = self.members()
        for identity in left:
            signal_process(identity, signal.SIGKILL)
        return not left

    def sweep_cgroups(self, state: Path) -> None:
        """What a shim that was killed leaves of its run's cgroup."""
        with contextlib.suppress(OSError, ValueError, LookupError):
            sweep(frozenset(os.listdir(state / "runs")))
