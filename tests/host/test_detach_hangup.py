"""Terminals that are closed, keys that are pressed in them, and supervisors that never had one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.campaign_bed import wait_for
from bench.campaign_counter import final_value
from bench.campaign_observer import is_living
from tests.host.bed import HostBed, counter, make_bed, script


class Terminal:
    """A supervisor in a terminal of its own, as a shell starts it; `press` types, `close` closes the window."""

    def __init__(self, bed: HostBed, *words: str) -> None:
        self.master, slave = pty.openpty()

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        # A controlling terminal is taken between fork and exec, and this helper has no threads.
        self.supervisor = subprocess.Popen(
            bed.command("run", *words),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=bed.environment() | {"TERM": "xterm"},
            cwd="/",
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(slave)
        bed.supervisors.append(self.supervisor)
        self._shown = b""

    def shown(self) -> str:
        """Everything on the screen so far; must be asked for now and then, as a terminal reads."""
        while self.master >= 0 and select.select([self.master], [], [], 0)[0]:
            try:
                block = os.read(self.master, 65536)
            except OSError:  # the other end is closed
                break
            if not block:
                break
            self._shown += block
        return self._shown.decode(errors="replace")

    def wait_shown(self, text: str) -> None:
        wait_for(lambda: text in self.shown(), f"{text!r} on the terminal", timeout_s=20, every_s=0.02)

    def press(self, key: bytes) -> None:
        os.write(self.master, key)

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def ended(self) -> int:
        """Its exit code; the terminal goes on reading meanwhile."""
        wait_for(lambda: (self.shown(), self.supervisor.poll() is not None)[1], "its end", timeout_s=30, every_s=0.02)
        return self.supervisor.returncode


@contextlib.contextmanager
def terminal(bed: HostBed, *words: str) -> Iterator[Terminal]:
    opened = Terminal(bed, *words)
    try:
        yield opened
    finally:
        opened.close()


def value_of(bed: HostBed) -> object:
    return json.loads((bed.checkpoints / "count.json").read_bytes())["value"]


def test_a_window_that_is_closed(tmp_path: Path) -> None:
    """It goes on, brings its run back, ends by itself, and speaks to its log alone."""
    with counter(tmp_path / "bed", "--steps", "30", "--delay", "0.03") as bed, terminal(bed) as window:
        run = bed.run_at_step(5)
        window.wait_shown("step ")
        window.close()
        bed.harm(run.trainer)
        bed.run_at_step(12, after=run.number)
        assert window.supervisor.poll() is None
        assert bed.ended(window.supervisor) == 0, bed.tell()
        log = (bed.state / "watchdog.log").read_text()
        assert "run 2" in log
        assert "30 steps" in log
        assert value_of(bed) == final_value(30)
        assert not bed.problems(), bed.tell()


def test_a_live_line_and_lasting_lines(tmp_path: Path) -> None:
    """On a terminal the live line is redrawn in place; what lasts is there once, and so is the summary."""
    with counter(tmp_path / "bed", "--steps", "12", "--delay", "0.05") as bed, terminal(bed) as window:
        assert window.ended() == 0, bed.tell()
        shown = window.shown()
        assert shown.count("run 1     starts from nothing: a first start") == 1
        assert "\r\x1b[K" in shown
        assert "/12" in shown
        assert "12 steps" in shown
        assert value_of(bed) == final_value(12)


def test_the_interrupt_key_once(tmp_path: Path) -> None:
    """^C reaches everybody in the foreground; the trainer is not among them, it saves and leaves."""
    with counter(tmp_path / "bed", "--steps", "400", "--delay", "0.03") as bed, terminal(bed) as window:
        bed.run_at_step(7)
        window.press(b"\x03")
        assert window.ended() == 5, bed.tell()
        assert bed.kinds("run_ended")[0]["data"]["cause"] == "drained", bed.tell()
        assert not bed.kinds("run_killing")
        assert "next      go on with the same command" in window.shown()
        assert bed.living() is None


def test_the_interrupt_key_twice(tmp_path: Path) -> None:
    settings = {"stop": {"grace": "60s"}}
    words = ("--steps", "400", "--delay", "0.03", "--ignore-term")
    with counter(tmp_path / "bed", *words, **settings) as bed, terminal(bed) as window:
        run = bed.run_at_step(5)
        window.press(b"\x03")
        wait_for(lambda: bed.kinds("signal_sent"), "TERM")
        assert is_living(run.trainer, None) is not None
        window.press(b"\x03")
        assert window.ended() == 5, bed.tell()
        assert run.trainer in bed.kinds("run_killing")[0]["data"]["pids"]
        assert is_living(run.trainer, None) is None


def test_the_interrupt_key_three_times(tmp_path: Path, debugger: Callable[[int], Callable[[], None]]) -> None:
    """Left at once, though the end of the run is not proven: its shim stands still. The next supervisor proves it."""
    settings = {"stop": {"grace": "60s", "kill_wait": "60s"}}
    body = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('deaf', 'w')\ntime.sleep(600)\n"
    settings["job"] = {"directory": str(tmp_path)}
    with make_bed(tmp_path / "bed", script(tmp_path, body), level=0, **settings) as bed, terminal(bed) as window:
        run = bed.run_where(lambda _run, _beat: (tmp_path / "deaf").exists(), "a run that is deaf to TERM")
        let_go = debugger(run.shim)  # one that is only stopped would be sent CONT
        try:
            window.press(b"\x03")
            bed.wait_event("run_stopping")
            window.press(b"\x03")
            bed.wait_event("run_killed")
            assert window.supervisor.poll() is None
            window.press(b"\x03")
            assert window.ended() == 1, bed.tell()
            assert "watchdog run adopts it" in window.shown()
        finally:
            let_go()
        assert bed.call("stop").returncode == 0
        assert len(bed.kinds("run_ended")) == 1, bed.tell()


def test_the_suspend_key_stops_the_supervisor_and_not_the_run(tmp_path: Path) -> None:
    """^Z, a while, and on: a gap is noticed, and nothing is killed for it."""
    settings = {"deadlines": {"train": "2s"}}
    with counter(tmp_path / "bed", "--steps", "64", "--delay", "0.05", **settings) as bed, terminal(bed) as window:
        run = bed.run_at_step(3)
        # Like the shell's job control: the key stops the foreground group, which is the supervisor's alone.
        window.supervisor.send_signal(signal.SIGTSTP)
        window.supervisor.send_signal(signal.SIGSTOP)
        run = bed.run_at_step(55)
        window.supervisor.send_signal(signal.SIGCONT)
        assert window.ended() == 0, bed.tell()
        assert bed.kinds("gap"), bed.tell()
        assert len(bed.kinds("run_launching")) == 1
        assert run.number == 1
        assert value_of(bed) == final_value(64)


def test_output_that_nobody_reads_any_more(tmp_path: Path) -> None:
    """`watchdog run | head`: the pipe is closed; it goes on and its exit code is the job's."""
    with counter(tmp_path / "bed", "--steps", "24", "--delay", "0.03") as bed:
        process = subprocess.Popen(
            bed.command("run"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=bed.environment(), cwd="/"
        )
        bed.supervisors.append(process)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        run = bed.run_at_step(5)
        bed.harm(run.trainer)
        assert bed.ended(process) == 0, bed.tell()
        assert len(bed.kinds("run_launching")) == 2
        assert value_of(bed) == final_value(24)


def go_on_unread(bed: HostBed, supervisor: subprocess.Popen[bytes]) -> None:
    """The trainer dies while whatever is said goes nowhere: seen, recorded, relaunched, and the job ends."""
    run = bed.run_at_step(5)
    bed.harm(run.trainer)
    end = bed.wait_event("run_ended", timeout_s=20)
    assert end["data"]["cause"] == "killed"
    bed.run_at_step(6, after=run.number)
    assert bed.status()["run"]["number"] == 2
    assert bed.ended(supervisor, timeout_s=30) == 0, bed.tell()
    assert value_of(bed) == final_value(30)
    assert "30 steps" in (bed.state / "watchdog.log").read_text()


def test_the_key_that_holds_the_screen_holds_nothing_else(tmp_path: Path) -> None:
    """^S: a write to the terminal then blocks until ^Q."""
    with counter(tmp_path / "bed", "--steps", "30", "--delay", "0.03") as bed, terminal(bed) as window:
        window.wait_shown("run 1")
        window.press(b"\x13")
        go_on_unread(bed, window.supervisor)
        assert "run 2" not in window.shown(), "the terminal was not held"


def test_a_reader_that_pauses_holds_nothing_up(tmp_path: Path) -> None:
    """`watchdog run | less`: the pipe is full."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 1024)
    os.set_blocking(writer, True)
    with counter(tmp_path / "bed", "--steps", "30", "--delay", "0.03") as bed:
        supervisor = subprocess.Popen(
            bed.command("run"),
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            env=bed.environment(),
            cwd="/",
            start_new_session=True,
        )
        os.close(writer)
        bed.supervisors.append(supervisor)
        try:
            go_on_unread(bed, supervisor)
        finally:
            os.close(reader)


# --- without a terminal -------------------------------------------------------------------------------------
def test_detached(tmp_path: Path) -> None:
    """Answers before the command returns, has no terminal and a session of its own, and is held like any other."""
    with counter(tmp_path / "bed", "--steps", "400", "--delay", "0.03") as bed:
        answer = bed.call("run", "--detach")
        assert answer.returncode == 0, answer.stderr
        pid = bed.status()["supervisor_pid"]
        assert f"supervisor pid {pid} goes on in the background" in answer.stdout
        assert os.getsid(pid) == pid
        assert os.readlink(f"/proc/{pid}/fd/0") == os.readlink(f"/proc/{pid}/fd/1") == "/dev/null"
        again = bed.call("run", "--detach")
        assert again.returncode == 4
        assert f"pid {pid}" in again.stderr
        run = bed.run_at_step(3)
        os.kill(pid, signal.SIGHUP)
        bed.harm(run.trainer)
        bed.run_at_step(4, after=run.number)
        assert "run 2" in bed.call("logs").stdout
        assert bed.call("stop").returncode == 0
        wait_for(lambda: is_living(pid, None) is None, "the end of the detached supervisor")
        assert bed.living() is None


def test_detached_that_fails_says_why(tmp_path: Path) -> None:
    with make_bed(tmp_path / "bed", ["/nowhere/trainer"], level=0) as bed:
        answer = bed.call("run", "--detach")
        assert answer.returncode == 2
        assert "'/nowhere/trainer' does not exist" in answer.stderr
        assert answer.stdout == ""


def test_detached_that_is_finished_at_once(tmp_path: Path) -> None:
    with make_bed(tmp_path / "bed", ["true"], level=0) as bed:
        assert bed.call("run", "--detach").returncode == 0
        wait_for(lambda: bed.status()["state"] == "finished", "the end")
        answer = bed.call("run", "--detach")
        assert answer.returncode == 0
        assert "finished" in answer.stdout


def test_what_the_trainer_is_given_is_not_touched(tmp_path: Path) -> None:
    """Its own --detach and a word `run` among its arguments are its own."""
    got = tmp_path / "got"
    body = "import sys\nopen(sys.argv[1], 'w').write(' '.join(sys.argv[2:]))\n"
    with make_bed(tmp_path / "bed", ["true"], level=0) as bed:
        words = [*script(tmp_path, body), str(got), "run", "--detach", "--new", "--json"]
        assert bed.call("run", "--detach", "--", *words).returncode == 0
        wait_for(lambda: got.exists() and got.read_text(), "the trainer")
        assert got.read_text() == "run --detach --new --json"
        wait_for(lambda: bed.status()["state"] == "finished", "the end")
