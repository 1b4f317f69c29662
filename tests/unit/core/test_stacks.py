"""The words about where a run stands: what faulthandler and py-spy wrote, and nothing else of an output log."""

from __future__ import annotations

import time

from tests.unit.core.ledgers import HandLedger
from watchdog.core.identity import Process, ProcessId
from watchdog.core.incidents import incidents
from watchdog.core.stacks import (
    FILE_MOST_BYTES,
    Answer,
    ProcessThreads,
    Stacks,
    Thread,
    as_text,
    faulthandler_lines,
    main_frames,
    place,
    py_spy_lines,
)

# Python 3.11, as it was written, with a line of the trainer's between.
SAID = """Thread 0x00007f36deedc6c0 (most recent call first):
  File "/home/u/t.py", line 4 in deep
step 12 loss 3.4 password=hunter22
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f36dfc3db80 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/home/u/a dir/t.py", line 7 in stuck_here
  File "/home/u/a dir/t.py", line 8 in <module>
  File "/home/u/a dir/t.py", line 9 in more
WARNING: a word of somebody else
"""
# Python 3.14 names the threads; every thread may be without a frame.
NAMED = """Thread 0x00007f36deedc6c0 [loader] (most recent call first):
  <no Python frame>

Current thread 0x00007f36dfc3db80 [python3] (most recent call first):
  File "t.py", line 7 in stuck_here
"""
SPIED = """Process 26407: /usr/bin/python3 t.py --api-key=verysecret1
Python v3.11.7 (/usr/bin/python3.11)

Thread 26449 (idle): "helper"
    deep (t.py:4)
Thread 26407 (idle): "MainThread"
    stuck_here (/home/u/t.py:7)
    <module> (/home/u/t.py:8)
"""


def threads_of(pid: int, command: str = "python3", **changes: object) -> ProcessThreads:
    process = Process(id=ProcessId(pid, 7), ppid=1, session=1, state="S", command=command)
    main = Thread(tid=pid, name=command, state="S", wchan="futex_do_wait", syscall="202", stack=("futex_wait+0x1",))
    values: dict[str, object] = {"process": process, "threads": (main,), "python": True}
    return ProcessThreads(**(values | changes))  # type: ignore[arg-type]


def answer(pid: int, text: str, words: str = "answered") -> Answer:
    return Answer(id=ProcessId(pid, 7), command="python3", words=words, lines=faulthandler_lines(text))


def test_of_a_log_only_the_stacks_are_taken() -> None:
    lines = faulthandler_lines(SAID)
    assert len(lines) == 8
    assert "hunter22" not in "".join(lines)
    assert not any("WARNING" in line for line in lines)
    assert faulthandler_lines('  File "x.py", line 3 in f\n') == ()  # the traceback of an exception has no such header
    assert faulthandler_lines("") == ()


def test_the_main_thread_is_the_one_that_got_the_signal() -> None:
    assert [line.strip() for line in main_frames(faulthandler_lines(SAID))][1].endswith("line 7 in stuck_here")
    assert main_frames(faulthandler_lines(NAMED)) == ('  File "t.py", line 7 in stuck_here',)
    assert main_frames(faulthandler_lines(NAMED.replace("Current thread", "Thread"))) != ()  # the last one then
    assert main_frames(()) == ()


def test_of_py_spy_the_command_line_is_left_out() -> None:
    lines = py_spy_lines(SPIED)
    assert "verysecret1" not in "".join(lines)
    assert main_frames(lines) == ("    stuck_here (/home/u/t.py:7)", "    <module> (/home/u/t.py:8)")
    assert py_spy_lines("Error: Failed to open process\n\nCaused by:\n    0: Permission denied\n") == ()


def test_the_place_is_the_first_process_that_said_one() -> None:
    looks = (threads_of(10), threads_of(11))
    words, frames = place(Stacks(looks=looks, answers=(answer(11, NAMED), answer(10, SAID))))
    assert words == "pid 10 (python3) stood in wait (threading.py:320) ← stuck_here (t.py:7) ← <module> (t.py:8)"
    assert len(frames) == 4
    words, _ = place(Stacks(looks=looks, answers=(answer(10, ""), answer(11, NAMED))))
    assert words == "pid 11 (python3) stood in stuck_here (t.py:7)"
    spied = Answer(id=ProcessId(10, 7), command="python3", words="py-spy", lines=py_spy_lines(SPIED))
    words, _ = place(Stacks(looks=looks, answers=(answer(10, ""),), spied=spied))
    assert words == "pid 10 (python3) stood in stuck_here (t.py:7) ← <module> (t.py:8)"


def test_of_one_that_cannot_go_on_no_other_speaks() -> None:
    """A loader that waits for its trainer is no news; that the trainer is stopped is."""
    stopped = Thread(tid=10, name="python3", state="T", wchan="do_signal_stop")
    looks = (threads_of(10, threads=(stopped,)), threads_of(11))
    words, _ = place(Stacks(looks=looks, answers=(answer(10, ""), answer(11, NAMED))))
    assert words == "pid 10 (python3) is stopped by a signal at do_signal_stop"
    spied = Answer(id=ProcessId(10, 7), command="python3", words="py-spy", lines=py_spy_lines(SPIED))
    words, _ = place(Stacks(looks=looks, answers=(answer(11, NAMED),), spied=spied))
    assert words == "pid 10 (python3) is stopped by a signal, stood in stuck_here (t.py:7) ← <module> (t.py:8)"


def test_without_a_word_it_is_what_the_kernel_says() -> None:
    words, frames = place(Stacks(looks=(threads_of(10),)))
    assert words == "pid 10 (python3) sleeps at futex_do_wait (system call 202)"
    assert frames == ("futex_wait+0x1",)
    stuck = Thread(tid=10, name="x", state="D")
    words, _ = place(Stacks(looks=(threads_of(10, threads=(stuck,)),)))
    assert words == "pid 10 (python3) waits in the kernel and cannot be interrupted"
    assert place(Stacks(looks=()))[0] == "nobody of it could be looked at"
    assert place(Stacks(looks=(threads_of(10, threads=()),)))[0].endswith("could not be looked at")


def test_the_file_is_masked_bounded_and_fit_for_a_terminal() -> None:
    odd = Thread(tid=11, name="hf_abcDEF123456789\x1b[31m", state="S", stack=("line",))
    text = as_text(
        Stacks(looks=(threads_of(10, threads=(odd,), left_out=7),), answers=(answer(10, SAID),), left_out=3), "run 1"
    )
    assert text.startswith("run 1\npid 10 (python3) stood in ")
    assert "\x1b" not in text
    assert "hf_abc" not in text
    assert "1 thread, 7 more were not looked at" in text
    assert "3 processes were not looked at, or are gone" in text
    many = tuple(Thread(tid=n, name="é" * 200, state="S") for n in range(6000))
    text = as_text(Stacks(looks=(threads_of(10, threads=many),)), "run 1")
    assert len(text.encode()) <= FILE_MOST_BYTES
    assert text.endswith("\ncut: the rest is more than this file may hold\n")


def test_an_autopsy_shows_where_it_stood() -> None:
    ledger = HandLedger().launch(1).at(10).steps(1, 1, 10.0).at(80).stopping(1, beat=20.0)
    kept = {
        "number": 1,
        "run_id": "1-a",
        "path": "/s/runs/1-a/stacks.txt",
        "place": "pid 7 (python3) stood in f (t.py:7)",
    }
    ledger.at(81).write("stacks_kept", "run 1: pid 7 (python3) stood in f (t.py:7)", **kept, frames=["one", "two"])
    ledger.at(82).ended(1, "stalled", step=1)
    [incident] = incidents(ledger.events)
    [evidence] = [each for each in incident.evidence if each.source == "run 1: where it stood"]
    assert evidence.lines == (kept["place"], "one", "two", "all of it: /s/runs/1-a/stacks.txt")
    assert "stood in f (t.py:7)" in " ".join(moment.sentence for moment in incident.timeline)


def test_a_forged_record_of_it_breaks_nothing() -> None:
    ledger = HandLedger().launch(1).at(80).stopping(1, beat=20.0)
    ledger.at(81).write("stacks_kept", place=[1, {}], frames=7, path={"a": 1}, number=[])
    ledger.at(82).write("stacks_kept")
    assert len(incidents(ledger.events)) == 1


def test_a_line_of_the_output_that_is_no_stack_takes_no_time() -> None:
    """Patterns over a line of a hundred thousand digits would hold the interpreter for minutes."""
    long = "Thread 0x" + "a" * 100_000
    began_s = time.process_time()
    assert faulthandler_lines(f"{long}\n{'Thread ' + '(' * 100_000}\n") == ()
    assert py_spy_lines(f"{long}\n{'Thread ' + '(' * 100_000}\n") == ()
    assert time.process_time() - began_s < 0.5
