"""Telling a person by a command: started, waited for until a deadline in a thread of its own, then ended.

Responsible for one command at a time in `Telling`, for a bounded and masked end of what it printed, for an environment
that holds nothing but what such programs need, and for ending what is late: every descendant of our own child, proven
by that child, which is their subreaper and our unreaped one.
Refuses a shell, to raise for what a command does, and to make its caller wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from watchdog import contract
from watchdog.actuators.stop import kill_round
from watchdog.clock import Clock
from watchdog.collectors.processes import process_table
from watchdog.core.identity import ProcessId, descendants
from watchdog.core.notice import DELIVERED, FAILED, LATE
from watchdog.masking import is_secret_name, mask_text

ERRAND = Path(__file__).parent / "errand.py"
OUTPUT_BYTES = 4096  # of the end of what it printed
END_S = 3.0  # how long what was killed may take to be gone
_ALARM_LATER_S = 2.0  # the program's own alarm comes after our deadline: it is for a supervisor that died
_CHUNK_BYTES = 256 * 1024
# What programs that send something need; nothing else of ours is handed on.
_KEPT = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM"}
    | {"DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "SSH_AUTH_SOCK", "WSL_INTEROP", "WSL_DISTRO_NAME"}
    | {"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
)

# Children that did not end when they were killed (state D, or under a debugger), kept until they can be reaped.
_leaving: list[subprocess.Popen[bytes]] = []


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of it: one of `notice.OUTCOMES`, in words, and the end of what it printed, masked."""

    outcome: str
    words: str
    output: str
    took_s: float


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """What the command is given of ours."""
    kept = {name: value for name, value in base.items() if name in _KEPT or name.startswith("LC_")}
    return {name: value for name, value in kept.items() if not is_secret_name(name)}


class Telling:
    """One command under way. `outcome` is None until it is over."""

    def __init__(self, command: Sequence[str], record: bytes, deadline_s: float, clock: Clock) -> None:
        """Starts; returns at once. `record` is what the command reads from its standard input."""
        self.outcome: Outcome | None = None
        self._command, self._record, self._deadline_s, self._clock = tuple(command), record, deadline_s, clock
        self._thread = threading.Thread(target=self._run, name="notify", daemon=True)
        self._started_s = clock.monotonic()
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread to be had: said, not raised, or the loop would end for it
            self.outcome = self._ended(FAILED, f"could not be started: {error}", b"")

    def wait(self, at_most_s: float) -> Outcome | None:
        """The outcome, waited for that long at most."""
        if self.outcome is None:
            self._thread.join(at_most_s)
        return self.outcome

    def _run(self) -> None:
        try:
            self.outcome = self._tell()
        except Exception as error:  # whatever it is, it must be heard and not end a thread in silence
            self.outcome = self._ended(FAILED, f"could not be started: {error}", b"")

    def _ended(self, outcome: str, words: str, output: bytes) -> Outcome:
        text = contract.printable(output.decode(errors="replace"))
        took_s = self._clock.monotonic() - self._started_s
        return Outcome(outcome=outcome, words=mask_text(words), output=mask_text(text).strip(), took_s=took_s)

    def _tell(self) -> Outcome:
        _leaving[:] = [child for child in _leaving if child.poll() is None]
        # A file in memory: a command that does not read it makes nobody wait.
        given = os.memfd_create("notice", os.MFD_CLOEXEC)
        status_reader, status_writer = os.pipe()
        try:
            with os.fdopen(given, "wb+", closefd=False) as file:
                file.write(self._record)
            os.lseek(given, 0, os.SEEK_SET)
            child = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(ERRAND)),
                    *(str(status_writer), f"{self._deadline_s + _ALARM_LATER_S:.3f}", "--", *self._command),
                ],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                cwd="/",  # never in a folder that may be on a dead mount
                env=environment(os.environ),
                pass_fds=(status_writer,),
                process_group=0,  # a Ctrl-C is not meant for it; our session tells it from an orphan of a run
            )
        finally:
            os.close(given)
            os.close(status_writer)
        with os.fdopen(status_reader, "rb") as status:
            return self._follow(child, status.fileno())

    def _follow(self, child: subprocess.Popen[bytes], status_fd: int) -> Outcome:
        """Until the child, and with it everything below it, is gone, or until the deadline and a moment."""
        assert child.stdout is not None
        identity = ProcessId(child.pid, contract.start_ticks(child.pid))  # ours and not reaped: its number is its own
        os.set_blocking(child.stdout.fileno(), False)
        os.set_blocking(status_fd, False)
        output = bytearray()
        with child.stdout:
            over = self._listen(child, output, self._started_s + self._deadline_s)
            if not over:
                kill_round(lambda: descendants(identity, process_table()))
                over = self._listen(child, output, self._clock.monotonic() + END_S)
        if over:
            child.wait()
        else:
            _leaving.append(child)
        said = _read_all(status_fd)
        tail = bytes(output[-OUTPUT_BYTES:])
        if not over:
            words = f"did not end within {self._deadline_s:g} s, does not end when it is killed, and was left behind"
            return self._ended(LATE, words, tail)
        if not said:
            return self._ended(FAILED, "its parent was ended by somebody, so how it ended is not known", tail)
        return self._judged(json.loads(said), tail)

    def _judged(self, end: Mapping[str, object], tail: bytes) -> Outcome:
        if end["error"] is not None:
            return self._ended(FAILED, f"{self._command[0]} cannot be executed: {end['error']}", tail)
        if end["signal"] is not None:
            if end["signal"] == signal.SIGKILL and self._clock.monotonic() - self._started_s >= self._deadline_s:
                return self._ended(LATE, f"did not end within {self._deadline_s:g} s and was killed", tail)
            return self._ended(FAILED, f"ended by signal {end['signal']}", tail)
        if end["code"] != 0:
            return self._ended(FAILED, f"exit {end['code']}", tail)
        return self._ended(DELIVERED, "exit 0", tail)

    def _listen(self, child: subprocess.Popen[bytes], output: bytearray, until_s: float) -> bool:
        """Take in what it prints, keeping the end of it. True when the child is over."""
        assert child.stdout is not None
        end = os.pidfd_open(child.pid)
        try:
            poll = select.poll()
            poll.register(end, select.POLLIN)
            poll.register(child.stdout, select.POLLIN)
            while (left_s := until_s - self._clock.monotonic()) > 0:
                ready = dict(poll.poll(left_s * 1000 + 1))
                if child.stdout.fileno() in ready:
                    chunk = _read(child.stdout.fileno())
                    if chunk == b"":
                        poll.unregister(child.stdout)  # everybody closed it
                    output += chunk or b""
                    del output[:-OUTPUT_BYTES]
                elif end in ready:
                    return True
            return False
        finally:
            os.close(end)


def _read(fd: int) -> bytes | None:
    """What there is; None when there is nothing yet, empty at the end."""
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, _CHUNK_BYTES)
    return None


def _read_all(fd: int) -> bytes:
    return _read(fd) or b""
