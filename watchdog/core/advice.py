"""What one thing a person has to do about a hold, by the cause of the last end. Pure; the words are data.

Responsible for naming an action, and the command that shows more. Refuses to guess: a cause that says nothing about
what is wrong sends to where the evidence stands.
"""

from __future__ import annotations

from collections.abc import Mapping

from watchdog.core.causes import Cause

_EVIDENCE = "watchdog incidents show has its last words"
_DEVICE = "watchdog diagnose measures the device; if it stays bad, restart the host"
_ROOM = "close what holds host memory (watchdog diagnose names the largest), or say with [memory] need what to wait for"
_WHO_KILLED = "find out who ends it: a person, a batch system, a limit of the session"

TO_DO: Mapping[Cause, str] = {
    Cause.EXITED: f"mend what it says; {_EVIDENCE}",
    Cause.SIGNALLED: f"mend the crash; {_EVIDENCE}",
    Cause.KILLED: _WHO_KILLED,
    Cause.STALLED: "watchdog incidents show has the stacks where it stood still; raise a deadline that is too short",
    Cause.EXIT_TOO_EARLY: "let the trainer go on to its target step, or correct [job] target_step",
    Cause.TARGET_UNKNOWN: "set [job] target_step",
    Cause.WALL_REACHED: "ask for more time, or let the run save more often than the wall comes",
    Cause.HOST_MEMORY: _ROOM,
    Cause.OOM_KILL: _ROOM,
    Cause.CUDA_OUT_OF_MEMORY: "free the device, or make the batch smaller",
    Cause.CUDA_ERROR: _DEVICE,
    Cause.DEVICE_FAULT: _DEVICE,
    Cause.DRIVER_GONE: "nvidia-smi has to answer first: mend the driver, or restart the host",
    Cause.BRIDGE_DEAD: "save your work and restart WSL from Windows: wsl --shutdown",
    Cause.DISK_FULL: "free disk space: watchdog prune, and watchdog diagnose shows the disks",
    Cause.STORAGE_FAILED: "look at the disk: dmesg, and watchdog diagnose; mount it anew or replace it",
    Cause.CHECKPOINT_REFUSED: f"let the trainer load what it saved; {_EVIDENCE}",
    Cause.DATA_ERROR: f"mend the data; {_EVIDENCE}",
    Cause.NUMERIC: "lower the learning rate or mend the data, then go back: watchdog relaunch --from STEP",
    Cause.CODE_ERROR: f"mend the program; {_EVIDENCE}",
    Cause.WRONG_RESTORE: "let the trainer load the checkpoint it is told to, and acknowledge what it loaded",
    Cause.FRESH_START: "let the trainer resume when it is told to: docs/job-contract.md",
    Cause.NOT_ACKNOWLEDGED: "let the trainer acknowledge what it restored before its first step: docs/job-contract.md",
    Cause.NOT_EXECUTED: "correct the command of the job",
    Cause.SHIM_KILLED: _WHO_KILLED,
    Cause.SHIM_FAILED: "free disk space in the state folder",
    Cause.NOT_STARTED: "see why the supervisor could not start it: watchdog status",
    Cause.HOST_RESTARTED: "find out why the host restarts: journalctl --list-boots",
    Cause.UNKNOWN: _EVIDENCE,
}


# In the words of an end for lack of host memory, beside figures that say that others did not take it.
AMPLE = "the program asks for more than there is, or a limit (ulimit, cgroup) stops it"


def to_do(cause: Cause, said: str = "") -> str:
    """Put behind the reason of a hold; "" for ends that are no failures. `said`: the words of the end."""
    words = TO_DO.get(cause)
    if cause is Cause.HOST_MEMORY and AMPLE in said:
        words = "let it ask for less, or raise the limit that stops it (ulimit -v, memory.max)"
    return "" if words is None else f"; to do: {words}"
