"""Where real processes stand: only who can answer is asked, only what it said is found, and nobody is harmed."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.host.shimmed import until
from watchdog.actuators.stacks import ASK_S, SPY_S, Kept, Order, ask, keep_stacks
from watchdog.clock import SystemClock
from watchdog.collectors.processes import is_alive, read_process
from watchdog.core.identity import Process, ProcessId

CLOCK = SystemClock()
PATH = os.environ["PATH"]
PY_SPY, CC = shutil.which("py-spy"), shutil.which("cc") or shutil.which("gcc")
REGISTERED = "import faulthandler, signal; faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)\n"
IN_A_LOCK = """
import os, threading
lock = threading.Lock()
lock.acquire()
def waits_for_ever(): lock.acquire()
threading.Thread(target=waits_for_ever, daemon=True).start()
print("ready", os.environ.get("HF_TOKEN"), flush=True)
def holds_the_trainer_up(): lock.acquire()
holds_the_trainer_up()
"""
# A loop in C that never lets go of the GIL: no signal handler of Python's own would run.
IN_THE_GIL = (
    'import re\nprint("ready", flush=True)\ndef never_lets_go(): re.match(r"(a?){40}a{40}", "a" * 40)\nnever_lets_go()'
)
Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(source)` or `start("/bin/sleep", "600")`: a process that writes to `output.log`, and is ready."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(*command: str, ready: bool = True) -> Process:
        words = command if len(command) > 1 else (sys.executable, "-c", *command)
        log = tmp_path / "output.log"
        log.touch()
        before = log.read_bytes().count(b"ready")
        with open(log, "ab") as file:
            environment = os.environ | {"HF_TOKEN": "hf_verySecret1234567"}
            process = subprocess.Popen(words, stdout=file, stderr=file, env=environment, process_group=0)
        begun.append(process)
        if ready:
            until(lambda: log.read_bytes().count(b"ready") > before, "a process that is ready")
        found = read_process(process.pid)
        assert found is not None
        return found

    yield begin
    for process in begun:
        os.killpg(process.pid, signal.SIGKILL)  # our own child, not yet waited for
        process.wait()


def order_of(folder: Path, *members: Process, beating: ProcessId | None = None) -> Order:
    return Order(
        members=members,
        beating=beating,
        leader=members[0].id if members else None,
        log=folder / "output.log",
        file=folder / "stacks.txt",
        title="run 1 (1-a)",
    )


def kept(folder: Path, *members: Process, beating: ProcessId | None = None) -> tuple[Kept, str]:
    """What was kept, and the file; asserts that nobody was made to wait."""
    began_s = time.monotonic()
    result = keep_stacks(order_of(folder, *members, beating=beating), CLOCK)
    assert time.monotonic() - began_s < ASK_S + 1.0
    return result, (folder / "stacks.txt").read_text()


@pytest.fixture(autouse=True)
def no_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH of the test's own: what is installed here must not decide."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.mark.parametrize(
    ("source", "function"),
    [(IN_A_LOCK, "holds_the_trainer_up (<string>:"), (IN_THE_GIL, "match (__init__.py:")],
    ids=["in a lock", "holding the GIL"],
)
def test_one_that_answers_is_kept_with_the_name_of_its_function(
    tmp_path: Path, start: Start, source: str, function: str
) -> None:
    process = start(REGISTERED + source)
    result, text = kept(tmp_path, process, beating=process.id)
    assert f"pid {process.id.pid} ({process.command}) stood in {function}" in result.words
    assert result.frames[0] in text
    assert "answered SIGUSR2 within" in text
    assert "py-spy is not installed" in text
    assert stat.S_IMODE((tmp_path / "stacks.txt").stat().st_mode) == 0o600
    assert is_alive(process.id)
    [look] = result.stacks.looks
    assert (look.catches, look.python, look.left_out) == (True, True, 0)
    assert f"{process.id.pid} {process.command}:" in text
    assert "hf_verySecret1234567" not in text


def test_of_a_thread_the_kernel_says_where_it_waits(tmp_path: Path, start: Start) -> None:
    process = start(REGISTERED + IN_A_LOCK)
    result, text = kept(tmp_path, process, beating=process.id)
    assert "waits_for_ever" in text
    [look] = result.stacks.looks
    assert len(look.threads) == 2
    assert {thread.state for thread in look.threads} == {"S"}
    if look.main is not None and look.main.wchan is not None:  # root, or a kernel that tells
        assert "futex" in look.main.wchan
        assert look.main.wchan in text


def test_one_without_a_handler_is_not_asked_and_lives(tmp_path: Path, start: Start) -> None:
    """The default action of SIGUSR2 would have ended it."""
    process = start(IN_A_LOCK)
    result, text = kept(tmp_path, process, beating=process.id)
    assert "no handler for SIGUSR2: not asked" in text
    assert f"pid {process.id.pid} ({process.command}) sleeps" in result.words
    assert is_alive(process.id)
    assert not pending(process.id.pid)


def pending(pid: int) -> bool:
    """SIGUSR2 was sent and waits for the process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask >> (signal.SIGUSR2 - 1) & 1 for mask in masks)


def test_one_that_is_stopped_is_neither_asked_nor_waited_for(tmp_path: Path, start: Start) -> None:
    process = start(REGISTERED + IN_A_LOCK)
    os.kill(process.id.pid, signal.SIGSTOP)
    until(lambda: (found := read_process(process.id.pid)) is not None and found.state == "T", "a stopped process")
    began_s = time.monotonic()
    result, text = kept(tmp_path, process, beating=process.id)  # `process` is of before: it is looked at anew
    assert time.monotonic() - began_s < 0.6
    assert "in state T it cannot answer: not asked" in text
    assert "is stopped by a signal" in result.words
    assert not pending(process.id.pid)


# Who waits for its vfork child is in state D, and so is nobody else by so little effort.
UNINTERRUPTIBLE = """
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static void said(int number) { (void)number; }
int main(void) { signal(SIGUSR2, said); puts("ready"); fflush(stdout);
                 if (vfork() == 0) { alarm(60); pause(); _exit(0); } return 0; }
"""


def test_one_that_waits_in_the_kernel_is_neither_asked_nor_waited_for(tmp_path: Path, start: Start) -> None:
    program = tmp_path / "uninterruptible"
    if CC is None:
        pytest.skip("no C compiler for a process in state D: apt install gcc libc6-dev")
    command = [CC, "-x", "c", "-o", str(program), "-"]
    subprocess.run(command, input=UNINTERRUPTIBLE.encode(), env={"PATH": PATH}, check=True)
    process = start(str(program), "beats")
    until(lambda: (found := read_process(process.id.pid)) is not None and found.state == "D", "state D")
    began_s = time.monotonic()
    result, text = kept(tmp_path, process, beating=process.id)
    assert time.monotonic() - began_s < 0.6
    assert "in state D it cannot answer: not asked" in text
    assert "waits in the kernel and cannot be interrupted" in result.words
    assert not pending(process.id.pid)


def test_another_program_that_catches_it_is_asked_only_if_it_beats(tmp_path: Path, start: Start) -> None:
    """A shell with a trap of its own: not Python, so nobody knows what its handler does."""
    # It waits with its own `wait`: while it starts a program it is in vfork, where nobody is asked.
    shell = start("/bin/sh", "-c", "trap 'echo trapped' USR2; sleep 100 & echo ready; while :; do wait; done")
    _, text = kept(tmp_path, shell)
    assert "SIGUSR2" not in text
    assert "trapped" not in (tmp_path / "output.log").read_text()
    result, text = kept(tmp_path, shell, beating=shell.id)
    assert "got SIGUSR2 and wrote no stacks" in text
    assert "trapped" not in text
    assert "stood in" not in result.words
    assert is_alive(shell.id)


def test_each_text_has_its_owner(tmp_path: Path, start: Start) -> None:
    """Both write into one log, as a trainer and its forked loaders do."""
    first, second = start(REGISTERED + IN_A_LOCK), start(REGISTERED + IN_THE_GIL)
    result, _ = kept(tmp_path, first, second, beating=second.id)
    assert result.stacks.looks[0].process.id == second.id
    texts = {answer.id: "\n".join(answer.lines) for answer in result.stacks.answers}
    assert "never_lets_go" in texts[second.id]
    assert "holds_the_trainer_up" not in texts[second.id]
    assert "holds_the_trainer_up" in texts[first.id]
    assert "never_lets_go" not in texts[first.id]
    assert "never_lets_go" in result.words


def test_a_number_that_is_another_process_by_now_is_left_alone(tmp_path: Path, start: Start) -> None:
    process = start(REGISTERED + IN_A_LOCK)
    recycled = Process(
        id=ProcessId(process.id.pid, process.id.start_ticks - 1), ppid=1, session=1, state="S", command="python"
    )
    size = (tmp_path / "output.log").stat().st_size
    answer = ask(recycled, tmp_path / "output.log", CLOCK.monotonic() + 1.0, CLOCK)
    assert (answer.words, answer.lines) == ("it is gone", ())
    result, text = kept(tmp_path, recycled, beating=recycled.id)
    assert result.words == "nobody of it could be looked at"
    assert "1 process was not looked at, or is gone" in text
    assert (tmp_path / "output.log").stat().st_size == size


def test_after_its_time_nobody_is_asked(tmp_path: Path, start: Start) -> None:
    """A TERM may have been sent by then."""
    process = start(REGISTERED + IN_A_LOCK)
    size = (tmp_path / "output.log").stat().st_size
    answer = ask(process, tmp_path / "output.log", CLOCK.monotonic() - 0.1, CLOCK)
    assert answer.words == "not asked: the time was over"
    assert (tmp_path / "output.log").stat().st_size == size


@pytest.mark.parametrize("obstacle", ["folder gone", "a folder in its place", "a link in its place", "full"])
def test_what_cannot_be_written_is_said_and_the_place_is_known(tmp_path: Path, start: Start, obstacle: str) -> None:
    process = start(REGISTERED + IN_A_LOCK)
    order = order_of(tmp_path, process, beating=process.id)
    target = tmp_path / "theirs"
    target.write_text("of somebody else")
    match obstacle:
        case "folder gone":
            path = tmp_path / "gone" / "stacks.txt"
        case "a folder in its place":
            path = tmp_path / "stacks.txt"
            (path / "full").mkdir(parents=True)
        case "a link in its place":
            path = tmp_path / "stacks.txt"
            path.symlink_to(target)
            (tmp_path / ".stacks.txt.tmp").symlink_to(target)
        case _:
            if os.geteuid() != 0:
                pytest.skip("a full disk is a mount of its own: needs root")
            path = full_disk(tmp_path) / "stacks.txt"
    try:
        result = keep_stacks(Order(**{**fields_of(order), "file": path}), CLOCK)
    finally:
        if obstacle == "full":
            subprocess.run(["/bin/umount", str(path.parent)], check=True)
    assert "stood in holds_the_trainer_up" in result.words
    assert (result.why_not == "") is (obstacle == "a link in its place")  # the link is replaced, not followed
    assert target.read_text() == "of somebody else"
    if obstacle == "full":
        assert result.why_not == "No space left on device"


def fields_of(order: Order) -> dict[str, object]:
    return {name: getattr(order, name) for name in ("members", "beating", "leader", "log", "file", "title")}


def full_disk(folder: Path) -> Path:
    """A tmpfs of a few pages, all of them taken."""
    mount = folder / "full"
    mount.mkdir()
    mounted = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=16k", "none", str(mount)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount here: {mounted.stderr!r}")
    with open(mount / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    return mount


# --- py-spy ---------------------------------------------------------------------------------------------------------
def fake_py_spy(folder: Path, body: str) -> None:
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_py_spy_says_it_of_one_that_has_no_handler(tmp_path: Path, start: Start, no_py_spy: Path) -> None:
    """And learns nothing of our environment, nor passes on the command line, whatever it prints."""
    process = start(IN_A_LOCK)
    fake_py_spy(
        no_py_spy,
        f'[ "$*" = "dump --nonblocking --full-filenames --pid {process.id.pid}" ] || exit 9\n'
        'echo "Process 7: python3 t.py --api-key=verysecret1 $HF_TOKEN"\n'
        "echo 'Thread 7 (idle): \"MainThread\"'\necho '    stuck_here (/home/u/t.py:7)'",
    )
    result, text = kept(tmp_path, process, beating=process.id)
    assert "stood in stuck_here (t.py:7)" in result.words
    assert "py-spy: as it read them from outside" in text
    assert "verysecret1" not in text


@pytest.mark.parametrize(
    ("body", "words"),
    [("exit 1", "ended with 1 and no stacks"), ("while :; do :; done", "did not answer within")],
    ids=["refused", "hangs"],
)
def test_a_py_spy_that_fails_or_hangs_is_said(
    tmp_path: Path, start: Start, no_py_spy: Path, body: str, words: str
) -> None:
    process = start(REGISTERED + IN_A_LOCK)
    fake_py_spy(no_py_spy, body)
    began_s = time.monotonic()
    result = keep_stacks(order_of(tmp_path, process, beating=process.id), CLOCK)
    assert time.monotonic() - began_s < SPY_S + 1.5
    assert result.stacks.spied is not None
    assert words in result.stacks.spied.words
    assert "stood in holds_the_trainer_up" in result.words


def test_the_real_py_spy(tmp_path: Path, start: Start, no_py_spy: Path) -> None:
    if PY_SPY is None:
        pytest.skip("py-spy is not installed")
    (no_py_spy / "py-spy").symlink_to(PY_SPY)
    process = start(IN_A_LOCK)
    result, text = kept(tmp_path, process, beating=process.id)
    assert "stood in holds_the_trainer_up (<string>:" in result.words, text
