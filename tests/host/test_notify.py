"""The notify socket, with real children of a real shim: what they say is heard, what others say is not."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import wait_for
from tests.host.bed import BARE, CLOCK, HostBed, Launched, folders_in, launched, make_bed
from watchdog.collectors.notify import NotifySocket, address_of
from watchdog.core.facts import Absent, Known
from watchdog.core.identity import ProcessId
from watchdog.core.seen import BeatSeen

# Says each line of its command file that is new, and writes down when the message was taken.
_SPEAKER = r"""
import os, socket, sys, time
def say(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.connect("\0" + os.environ["NOTIFY_SOCKET"][1:])
        s.send(text.encode())
heard = 0
while True:
    with open(sys.argv[1]) as file:
        lines = file.read().split("\n")[:-1]
    for line in lines[heard:]:
        if line == "flood":
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
                s.connect("\0" + os.environ["NOTIFY_SOCKET"][1:])
                begun = time.monotonic()
                for _ in range(10000):
                    s.send(b"WATCHDOG=1")
                took = time.monotonic() - begun
            open(sys.argv[2], "w").write(str(took))
        elif line == "child":
            if os.fork() == 0:
                os.setsid()
                say("WATCHDOG=1\nSTATUS=from the child")
                time.sleep(60)
                os._exit(0)
        elif line == "leave":
            sys.exit(0)
        elif line == "mark":
            open(sys.argv[2], "w").close()
        elif line:
            try:
                say(line.replace("|", "\n"))
            except ConnectionRefusedError:
                open(sys.argv[2], "a").write("refused\n")
    heard = len(lines)
    time.sleep(0.01)
"""


def say(text: bytes, address: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.settimeout(10)
        s.sendto(text, "\0" + address[1:])


class Speaker:
    """A run that says what it is told to, and the socket that hears it."""

    def __init__(self, run: Launched, notify: NotifySocket, commands: Path, answers: Path) -> None:
        self.run = run
        self.notify = notify
        self.commands = commands
        self.answers = answers

    def tell(self, line: str) -> None:
        with open(self.commands, "a") as file:
            file.write(line + "\n")

    def seen(self) -> BeatSeen | None:
        fact = self.notify.beat(CLOCK.monotonic())
        return fact.value if isinstance(fact, Known) else None

    def wait(self, what: str, **beat: Any) -> BeatSeen:
        def look() -> BeatSeen | None:
            seen = self.seen()
            if seen is not None and all(getattr(seen.beat, name) == value for name, value in beat.items()):
                return seen
            return None

        return wait_for(look, what, timeout_s=10)


def speaker_command(commands: Path, answers: Path) -> list[str]:
    commands.touch()
    return [*BARE, "-c", _SPEAKER, str(commands), str(answers)]


@pytest.fixture
def speaker(tmp_path: Path) -> Iterator[Speaker]:
    commands, answers = tmp_path / "commands", tmp_path / "answers"
    run_id = f"1-{os.getpid():08x}"
    notify = NotifySocket(run_id, CLOCK)
    with launched(folders_in(tmp_path), speaker_command(commands, answers), run_id=run_id) as run:
        notify.believe(run.start.shim)
        speaker = Speaker(run, notify, commands, answers)
        try:
            yield speaker
        finally:
            speaker.notify.close()


def test_what_a_child_of_the_shim_says(speaker: Speaker) -> None:
    """READY and STATUS alone are no beat; each WATCHDOG=1 is one, of the very process that sent it."""
    speaker.tell("READY=1|STATUS=loaded")
    speaker.tell("WATCHDOG=1")
    seen = speaker.wait("a beat", seq=1)
    assert (seen.beat.phase, seen.beat.status) == ("train", "loaded")
    assert (seen.beat.pid, seen.beat.start_ticks) == (speaker.run.leader.pid, speaker.run.leader.start_ticks)
    assert seen.alive
    assert not seen.stopped
    assert abs(seen.beat.monotonic_s - time.monotonic()) < 5
    speaker.tell("nonsense|=|WATCHDOG=2|MAINPID=1|STATUS=" + "x" * 3000)
    assert speaker.wait("a long status", status="x" * 200).beat.seq == 1
    speaker.tell("EXTEND_TIMEOUT_USEC=60000000|STATUS=more time")
    seen = speaker.wait("more time", status="more time")
    assert 50 < seen.extended_until_s - time.monotonic() < 61
    speaker.tell("EXTEND_TIMEOUT_USEC=-5|EXTEND_TIMEOUT_USEC=9999999999999999999|STATUS=no time")
    assert speaker.wait("no time", status="no time").extended_until_s == seen.extended_until_s
    speaker.tell("STOPPING=1")
    assert speaker.wait("drain", phase="drain").beat.seq == 1


def test_before_the_first_beat_there_is_none(speaker: Speaker) -> None:
    """READY counts from the moment of the first beat on, in the order in which they were said."""
    assert isinstance(speaker.notify.beat(CLOCK.monotonic()), Absent)
    for line in ("READY=1|STATUS=x", "STATUS=y", "WATCHDOG=1"):
        speaker.tell(line)
    seen = speaker.wait("a beat", seq=1)
    assert (seen.beat.phase, seen.beat.status) == ("train", "y")


def test_a_grandchild_in_a_session_of_its_own_is_heard(speaker: Speaker) -> None:
    speaker.tell("child")
    seen = speaker.wait("the child's word", status="from the child")
    assert seen.beat.pid != speaker.run.leader.pid
    speaker.run.kill(ProcessId(seen.beat.pid, seen.beat.start_ticks))  # the shim waits for it
    speaker.tell("leave")
    speaker.run.wait_over()


def test_a_stranger_is_not_believed(speaker: Speaker) -> None:
    """Neither we ourselves, nor a process beside the run; not even with the run's own words."""
    speaker.tell("WATCHDOG=1|STATUS=mine")
    speaker.wait("a beat", seq=1)
    address = address_of(speaker.run.record.run_id)
    for _ in range(50):
        say(b"WATCHDOG=1\nSTATUS=forged\nSTOPPING=1", address)
    code = "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "
    code += "s.sendto(b'WATCHDOG=1\\nSTATUS=forged', '\\0' + sys.argv[1])"
    subprocess.run([*BARE, "-c", code, address[1:]], check=True, timeout=20)
    speaker.tell("WATCHDOG=1")
    seen = speaker.wait("the next true beat", seq=2)
    assert (seen.beat.status, seen.beat.phase) == ("mine", "load")


def test_what_was_said_before_the_shim_was_known_is_judged_then(tmp_path: Path) -> None:
    """Kept until then: what the run said counts, with its own time; what strangers said does not."""
    commands = tmp_path / "commands"
    run_id = f"2-{os.getpid():08x}"
    with (
        contextlib.closing(NotifySocket(run_id, CLOCK)) as notify,
        launched(folders_in(tmp_path), speaker_command(commands, tmp_path / "answers"), run_id=run_id) as run,
    ):
        speaker = Speaker(run, notify, commands, tmp_path / "answers")
        say(b"WATCHDOG=1\nSTATUS=forged", address_of(run_id))
        for line in ("READY=1", "WATCHDOG=1|STATUS=mine", "mark"):
            speaker.tell(line)
        wait_for(lambda: speaker.answers.exists(), "that all was said", timeout_s=10)
        assert speaker.seen() is None, "nobody is believed before the shim is known"
        said_s = CLOCK.monotonic()
        notify.believe(run.start.shim)
        seen = speaker.wait("what was kept")
        assert seen.beat.pid == run.leader.pid
        assert seen.beat.monotonic_s <= said_s
        assert (seen.beat.seq, seen.beat.phase, seen.beat.status) == (1, "train", "mine")


def test_odd_datagrams_do_not_end_the_listening(speaker: Speaker) -> None:
    """Empty, binary, long, with descriptors: passed over, and the descriptors are closed."""
    address = address_of(speaker.run.record.run_id)
    for text in (b"", b"\0" * 3000, bytes(range(256)) * 15, b"=" * 4000, b"x" * 100_000):
        say(text, address)
    reader, writer = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.connect("\0" + address[1:])
        socket.send_fds(s, [b"FDSTORE=1"], [writer] * 8)
    os.close(writer)
    speaker.tell("WATCHDOG=1")
    speaker.wait("a beat after all that", seq=1)
    os.set_blocking(reader, False)

    def closed() -> bool:
        with contextlib.suppress(BlockingIOError):
            return os.read(reader, 1) == b""
        return False

    wait_for(closed, "the end of every descriptor that was sent", timeout_s=5)
    os.close(reader)


def test_a_flood_does_not_hold_its_sender_up(speaker: Speaker) -> None:
    """10,000 messages: far below the time of a step, however many there are."""
    speaker.tell("flood")
    wait_for(lambda: speaker.answers.exists() and speaker.answers.read_text(), "the flood", timeout_s=20)
    assert float(speaker.answers.read_text()) < 10.0
    speaker.wait("every one of them", seq=10_000)


def test_an_adoption_binds_the_address_anew(speaker: Speaker) -> None:
    """The address is gone with its first owner, and another may have it at once; two at a time may not."""
    speaker.tell("WATCHDOG=1")
    speaker.wait("a beat", seq=1)
    with pytest.raises(OSError, match="in use"):
        NotifySocket(speaker.run.record.run_id, CLOCK)
    speaker.notify.close()
    speaker.tell("WATCHDOG=1")
    wait_for(lambda: speaker.answers.exists() and "refused" in speaker.answers.read_text(), "a refusal", timeout_s=5)
    second = NotifySocket(speaker.run.record.run_id, CLOCK)
    speaker.notify = second
    second.believe(speaker.run.start.shim)
    speaker.tell("WATCHDOG=1")
    speaker.wait("a beat at the second one", seq=1)


# --- under whole supervisors --------------------------------------------------------------------------------
class SpeakingBed:
    """A job that says what it is told to; `tell` speaks to the run that lives."""

    def __init__(self, tmp_path: Path, level: int = 0, **deadlines: str) -> None:
        self.commands = tmp_path / "commands"
        command = speaker_command(self.commands, tmp_path / "answers")
        self.bed: HostBed = make_bed(tmp_path / "bed", command, level=level, deadlines=deadlines)

    def tell(self, line: str) -> None:
        with open(self.commands, "a") as file:
            file.write(line + "\n")


def test_beats_that_stop_are_a_stall_and_ready_alone_is_none(tmp_path: Path) -> None:
    """A run that beat and fell silent is relaunched; the next one only ever says READY and is left alone."""
    speaking = SpeakingBed(tmp_path, train="1s", load="1s", start="1s")
    with speaking.bed as bed:
        supervisor = bed.start()
        speaking.tell("READY=1")
        bed.wait_status(run_number=1, run_alive=True)
        speaking.tell("WATCHDOG=1")
        first = bed.run_where(lambda _run, _beat: True, "the first run")
        stop = bed.wait_event("run_stopping")
        assert stop["data"]["cause"] == "stalled", bed.tell()
        assert "allowed are 1 s" in stop["sentence"]
        speaking.commands.write_text("READY=1\n")
        second = bed.run_where(lambda _run, _beat: True, "the second run", after=first.number)
        begun_s = time.monotonic()
        wait_for(lambda: time.monotonic() - begun_s > 1.6 or len(bed.kinds("run_stopping")) > 1, "more than a deadline")
        assert len(bed.kinds("run_stopping")) == 1, bed.tell()
        assert bed.living() == second
        speaking.tell("leave")
        assert bed.ended(supervisor) == 0, bed.tell()
        assert not bed.problems(), bed.tell()


def test_who_was_only_ever_ready_is_not_late_and_an_extension_before_the_first_beat_counts(tmp_path: Path) -> None:
    """At a level at which beats are due: READY promises none, the time asked for first holds, and then it is late."""
    speaking = SpeakingBed(tmp_path, level=1, train="1s", load="1s", start="1s")
    with speaking.bed as bed:
        speaking.tell("EXTEND_TIMEOUT_USEC=60000000|STATUS=loading")
        speaking.tell("READY=1")
        supervisor = bed.start()

        def looked_on(how_long_s: float) -> None:
            since_s = time.monotonic()
            wait_for(lambda: time.monotonic() - since_s > how_long_s or bed.kinds("run_stopping"), "time to go by")
            assert not bed.kinds("run_stopping", "signal_sent"), bed.tell()

        bed.wait_status(run_number=1, run_status="loading")
        looked_on(1.5)
        speaking.tell("WATCHDOG=1|STATUS=beats")
        bed.wait_status(run_status="beats")
        looked_on(1.5)
        speaking.tell("EXTEND_TIMEOUT_USEC=1000")
        assert bed.wait_event("run_stopping", timeout_s=20)["data"]["cause"] == "stalled"
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(supervisor) == 5, bed.tell()


def test_the_state_that_is_shown_and_the_rebinding(tmp_path: Path) -> None:
    """Phase and status are those that were said; after an adoption they are heard again, and drive the stall."""
    speaking = SpeakingBed(tmp_path, train="30s")
    with speaking.bed as bed:
        supervisor = bed.start()
        bed.wait_status(run_number=1, run_alive=True)
        speaking.tell("READY=1")
        speaking.tell("WATCHDOG=1|STATUS=step 7 of 9")
        seen = bed.wait_status(run_phase="train", run_status="step 7 of 9")
        assert seen["run"]["beat_deadline_s"] == 30
        bed.kill_supervisor(supervisor)
        second = bed.start()
        bed.wait_status(run_adopted=True)
        speaking.tell("WATCHDOG=1|STATUS=heard again")
        bed.wait_status(run_status="heard again")
        second.send_signal(signal.SIGTERM)
        assert bed.ended(second) == 5, bed.tell()


def test_a_word_said_at_once_is_not_lost(tmp_path: Path) -> None:
    """READY in the first millisecond of a program that starts faster than we look; its phase must not stay `load`."""
    code = (
        "import os, socket, time\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "a = '\\0' + os.environ['NOTIFY_SOCKET'][1:]\ns.sendto(b'READY=1', a)\n"
        "while True:\n    s.sendto(b'WATCHDOG=1', a)\n    time.sleep(0.05)\n"
    )
    with make_bed(tmp_path / "bed", [*BARE, "-c", code], level=0, loop={"period": "1s"}) as bed:
        supervisor = bed.start()
        bed.wait_status(run_number=1, run_alive=True)

        def beating() -> dict[str, Any] | None:
            run = bed.status()["run"]
            return run if run["phase"] is not None else None

        assert wait_for(beating, "a beat", timeout_s=10)["phase"] == "train", "its READY was lost"
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(supervisor) == 5
