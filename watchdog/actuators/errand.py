"""The parent of a command that runs an errand for the supervisor. Ends when nothing of the command lives.

Responsible for: being a child subreaper, so that whatever the command leaves behind stays our descendant and is never
given to the supervisor, who would have to ask whether it belongs to a run; for executing the program where a dead
mount under it makes nobody else wait; for saying how it ended.
Refuses to decide and to signal; the program is ended by its own alarm should the supervisor die. Standard library
only: it runs as `python -I -S errand.py`.

    errand.py STATUS_FD ALARM_S -- COMMAND [ARGUMENT ...]

STATUS_FD takes one JSON object: `code`, `signal`, `error`; two of them null.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36
NOT_EXECUTED = 127


def become(command: list[str], alarm_s: float, error_pipe: int) -> None:
    """The forked child. Never returns."""
    try:
        for number in range(1, signal.NSIG):
            # Python refuses KILL, STOP and the two that libc keeps for itself.
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.setitimer(signal.ITIMER_REAL, alarm_s)  # kept over exec
        os.execvp(command[0], command)
    except OSError as error:
        os.write(error_pipe, (error.strerror or str(error)).encode())
    finally:
        os._exit(NOT_EXECUTED)


def main(argv: list[str]) -> int:
    status_fd, alarm_s, _, *command = argv
    os.set_inheritable(int(status_fd), False)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    reader, writer = os.pipe()
    leader = os.fork()
    if leader == 0:
        become(command, float(alarm_s), writer)
    os.close(writer)
    for fd in (0, 1, 2):
        os.close(fd)
    error = os.read(reader, 1000).decode(errors="replace")
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return 0
        if pid == leader:
            killed = os.WIFSIGNALED(status)
            said = {
                "code": None if killed or error else os.WEXITSTATUS(status),
                "signal": os.WTERMSIG(status) if killed else None,
                "error": error or None,
            }
            with contextlib.suppress(OSError):  # nobody listens any more
                os.write(int(status_fd), json.dumps(said).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
