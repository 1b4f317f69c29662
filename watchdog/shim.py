"""The shim: the minimal parent of every run. Its end is the proof that nothing of the run lives.

Responsible for: being a child subreaper, so that whatever of the run called setsid, closed its descriptors or
emptied its environment stays its descendant; starting the trainer in a session of its own; reaping everything;
writing down how it ended, even when the supervisor is long dead; ending only when no descendant lives.

Refuses to decide, to signal anybody, and to import anything beyond the standard library: it runs as
`python -I -S shim.py` (about 10 MB) for as long as the run does, and its code must be readable in one sitting.

    shim.py START_FILE EXIT_FILE LOCK_FD RUN_ID CGROUP_PROCS -- COMMAND [ARGUMENT ...]

START_FILE  who we are and whom we started (JSON, replaced atomically)
EXIT_FILE   how the trainer ended (JSON padded to 4096 bytes, written in place: space is taken at the start, so that
            a disk that filled up meanwhile cannot swallow the record)
LOCK_FD     the run lock (shared flock), inherited; we keep it and hand it to the trainer
CGROUP_PROCS  `cgroup.procs` of the run's cgroup, or an empty string; the trainer enters it, we stay outside and remove
              it at the end; where the trainer cannot enter it does without (START_FILE says why)
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXIT_FILE_BYTES = 4096
KEPT_ENDS = 24  # how many ended processes are remembered beside the leader
COULD_NOT_START = 111  # our own exit code: nothing was started
COULD_NOT_RECORD = 112  # our own exit code: all is over, but the record could not be written
TRAINER_OOM_SCORE_ADJ = 500  # the trainer goes before its supervisor when memory runs out
PR_SET_CHILD_SUBREAPER = 36


def start_ticks(pid: int | str) -> int:
    """Field 22 of /proc/PID/stat: start time in clock ticks since boot."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        data = file.read()
    return int(data[data.rindex(b")") + 2 :].split()[19])


def write_start(path: str, record: dict[str, object]) -> None:
    """Replace the start file: temporary file, fsync, rename, fsync of the folder."""
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class ExitFile:
    """The exit record, overwritten in place within space that was taken at the start."""

    def __init__(self, path: str, run_id: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.record: dict[str, Any] = {"run_id": run_id, "complete": False}
        self.record |= {"leader": None, "exec_error": None, "ended": []}
        self.write()

    def write(self) -> None:
        content = json.dumps(self.record).encode()
        while len(content) > EXIT_FILE_BYTES and self.record["ended"]:
            self.record["ended"].pop(0)
            content = json.dumps(self.record).encode()
        os.pwrite(self.fd, content.ljust(EXIT_FILE_BYTES), 0)
        os.fsync(self.fd)


def enter(cgroup_procs: str, error_pipe: int) -> None:
    """Before exec, so that all that the trainer ever starts begins in there (14 ms, 0.3 ms soon after another)."""
    try:
        with open(cgroup_procs, "w", encoding="utf-8") as file:
            file.write("0")
    except OSError as error:
        os.write(error_pipe, json.dumps({"cgroup": str(error)}).encode() + b"\n")


def become_trainer(command: list[str], cgroup_procs: str, error_pipe: int) -> None:
    """The forked child: a session of its own, signals as a program expects them, then exec. Never returns."""
    try:
        os.setsid()
        if cgroup_procs:
            enter(cgroup_procs, error_pipe)
        # Lowering it is refused without privilege and not wanted: only ever raise.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+", encoding="utf-8") as file:
            if int(file.read()) < TRAINER_OOM_SCORE_ADJ:
                file.write(str(TRAINER_OOM_SCORE_ADJ))
        for number in range(1, signal.NSIG):
            # Python refuses KILL, STOP and the two that libc keeps for itself.
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvp(command[0], command)
    except OSError as error:
        os.write(error_pipe, json.dumps({"exec": [error.errno, error.strerror, command[0]]}).encode())
    finally:
        os._exit(127)


def start_trainer(command: list[str], cgroup_procs: str) -> tuple[int, dict[str, object]]:
    """Fork and exec. Returns the pid and what failed: "exec" [errno, text, file], "cgroup" a text."""
    reader, writer = os.pipe()  # close-on-exec: end of file means that exec succeeded
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        become_trainer(command, cgroup_procs, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        failed: dict[str, object] = {}
        for line in file:
            failed |= json.loads(line)
    return pid, failed


def describe(status: int) -> dict[str, object]:
    """A wait status as code or signal, one of them None."""
    if os.WIFSIGNALED(status):
        return {"code": None, "signal": os.WTERMSIG(status), "core": bool(os.WCOREDUMP(status))}
    return {"code": os.WEXITSTATUS(status), "signal": None, "core": False}


def ignore_signals() -> None:
    """Whatever could end us, but for KILL and our own faults. An ignored SIGCHLD would reap in our place."""
    faults = {
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            if number == signal.SIGCHLD:
                signal.signal(number, signal.SIG_DFL)
            elif number not in faults:
                signal.signal(number, signal.SIG_IGN)


def reap_everything(leader: int, exit_file: ExitFile) -> None:
    """Wait until no descendant lives. The leader's end is recorded at once, not when the last one is gone."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        end = {"pid": pid, **describe(status), "monotonic_s": time.monotonic(), "wall_s": time.time()}
        record = exit_file.record
        if pid == leader:
            record["leader"] = end
        else:
            record["ended"] = [*record["ended"], end][-KEPT_ENDS:]
            if record["leader"] is None:
                continue  # a reaped orphan of a living run is no news; it is written with the next record
        # A failing disk must not end us while something lives: the last record is tried again at the end.
        with contextlib.suppress(OSError):
            exit_file.write()


def main(argv: list[str]) -> int:
    start_path, exit_path, lock_fd, run_id, cgroup_procs, separator, *command = argv
    if separator != "--" or not command:
        print("shim: expected START EXIT LOCK_FD RUN_ID CGROUP_PROCS -- COMMAND", file=sys.stderr)
        return COULD_NOT_START
    ignore_signals()
    try:
        os.fstat(int(lock_fd))
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        exit_file = ExitFile(exit_path, run_id)
        shim = {"pid": os.getpid(), "start_ticks": start_ticks("self")}
        record: dict[str, object] = {"run_id": run_id, "shim": shim, "leader": None}
        write_start(start_path, record)
    except OSError as error:
        print(f"shim: nothing was started, because its records cannot be written: {error}", file=sys.stderr)
        return COULD_NOT_START
    leader, failed = start_trainer(command, cgroup_procs)
    exit_file.record["exec_error"] = failed.get("exec")
    with contextlib.suppress(OSError):
        # Unreaped, so its stat is there even when it is already over. A full disk here costs a cross-check only.
        record["leader"] = {"pid": leader, "start_ticks": start_ticks(leader)}
        record["cgroup_error"] = failed.get("cgroup")
        write_start(start_path, record)
    reap_everything(leader, exit_file)
    exit_file.record["complete"] = True
    if cgroup_procs:
        with contextlib.suppress(OSError):  # somebody was moved in there: the supervisor says so
            os.rmdir(os.path.dirname(cgroup_procs))
    try:
        exit_file.write()
    except OSError as error:
        print(f"shim: the run is over, but its record cannot be written: {error}", file=sys.stderr)
        return COULD_NOT_RECORD
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
