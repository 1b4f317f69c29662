"""Telling people, with real commands: what succeeds, fails, hangs, floods, and a supervisor that dies in between."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import wait_for
from tests.host.bed import CLOCK, HostBed, counter, folders_in, script
from watchdog.actuators.notify import Outcome, Telling, environment
from watchdog.collectors.processes import process_table
from watchdog.control import request

BARE = [sys.executable, "-I", "-S"]
RECORD = b'{"event": "hold"}\n'


def told(command: list[str], deadline_s: float = 10.0) -> Outcome:
    outcome = Telling(command, RECORD, deadline_s, CLOCK).wait(deadline_s + 10)
    assert outcome is not None
    return outcome


def python(code: str) -> list[str]:
    return [*BARE, "-c", code]


def nobody_carries(mark: str) -> None:
    """No process with that word in its command line is left."""

    def look() -> bool:
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes() and int(name) != os.getpid():
                    return False
            except OSError:
                continue
        return True

    wait_for(look, f"nobody with {mark}", timeout_s=5)


def parents_of(mark: str) -> set[bytes]:
    """What the parents of the sleepers that carry the mark are called: their script, or their code."""
    found = set()
    for process in process_table():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process.id.pid}/cmdline").read_bytes().split(b"\0")
            if process.living and mark.encode() in words and words[4] == b"import time; time.sleep(600)":
                above = Path(f"/proc/{process.ppid}/cmdline").read_bytes().split(b"\0")
                found.add(os.path.basename(above[3]) if len(above) > 3 else b"")
    return found


# --- one command --------------------------------------------------------------------------------------------
def test_a_command_reads_the_record_and_prints() -> None:
    outcome = told(python("import sys; print('got', sys.stdin.read())"))
    assert (outcome.outcome, outcome.words) == ("delivered", "exit 0")
    assert outcome.output == 'got {"event": "hold"}'


def test_what_it_prints_is_masked_and_bounded() -> None:
    flood = "import sys\nfor _ in range(160): sys.stdout.write('x' * 65536)\nprint('API_TOKEN=abc123secret the end')"
    outcome = told(python(flood))
    assert outcome.outcome == "delivered"
    assert len(outcome.output) <= 4096
    assert outcome.output.endswith("the end")
    assert "abc123secret" not in outcome.output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (python("import sys; sys.exit(7)"), "exit 7"),
        (python("import os; os.kill(os.getpid(), 11)"), "ended by signal 11"),
        (["/nowhere/tell"], "/nowhere/tell cannot be executed: No such file or directory"),
        (["/etc/passwd"], "/etc/passwd cannot be executed: Permission denied"),
    ],
)
def test_a_command_that_fails(command: list[str], words: str) -> None:
    outcome = told(command)
    assert (outcome.outcome, outcome.words) == ("failed", words)


def test_a_command_that_hangs_is_ended_with_everything_below_it() -> None:
    """It ignores what can be ignored, and has a child that left its session and one that reads our pipe for ever."""
    mark = f"mark-{os.getpid()}-hang"
    code = (
        "import os, signal, subprocess, sys, time\n"
        "for number in (1, 2, 14, 15): signal.signal(number, signal.SIG_IGN)\n"
        "again = [*sys.orig_argv[:-2], 'import time; time.sleep(600)', sys.argv[-1]]\n"
        "subprocess.Popen(again, start_new_session=True)\n"
        "subprocess.Popen(again)\n"
        "time.sleep(600)\n"
    )
    since_s = time.monotonic()
    outcome = told([*python(code), mark], deadline_s=1.0)
    assert outcome.outcome == "late"
    assert outcome.words == "did not end within 1 s and was killed"
    assert time.monotonic() - since_s < 4
    nobody_carries(mark)


def test_what_it_leaves_behind_is_ended_at_the_deadline_and_it_is_delivered_all_the_same() -> None:
    mark = f"mark-{os.getpid()}-left"
    code = (
        "import subprocess, sys\n"
        "subprocess.Popen([*sys.orig_argv[:-2], 'import time; time.sleep(600)', sys.argv[-1]], start_new_session=True)"
    )
    telling = Telling([*python(code), mark], RECORD, 1.0, CLOCK)
    # A supervisor is a subreaper: what came to it would be asked whether it belongs to the run.
    wait_for(lambda: parents_of(mark) == {b"errand.py"}, "an orphan that the errand's parent has taken", timeout_s=0.9)
    outcome = telling.wait(10)
    assert outcome is not None
    assert outcome.outcome == "delivered"
    nobody_carries(mark)


def test_a_bystander_of_the_same_name_is_left_alone() -> None:
    bystander = os.posix_spawn(sys.executable, python("import time; time.sleep(600)"), os.environ)
    try:
        assert told(python("import time; time.sleep(600)"), deadline_s=1.0).outcome == "late"
        assert any(process.id.pid == bystander and process.living for process in process_table())
    finally:
        os.kill(bystander, signal.SIGKILL)
        os.waitpid(bystander, 0)


def test_the_environment_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "NOTIFY_SOCKET", "GPUHOST_WATCHDOG_RUN_ID", "LC_API_TOKEN"):
        monkeypatch.setenv(name, "secret")
    outcome = told(python("import os; print(sorted(os.environ))"))
    assert "TOKEN" not in outcome.output
    assert "NOTIFY" not in outcome.output
    assert "WATCHDOG" not in outcome.output
    assert "'PATH'" in outcome.output
    assert "HF_TOKEN" not in environment(os.environ)


def test_nobody_waits_for_the_start() -> None:
    since_s = time.monotonic()
    telling = Telling(python("import time; time.sleep(600)"), RECORD, 1.0, CLOCK)
    assert telling.wait(0.0) is None
    assert time.monotonic() - since_s < 0.5
    outcome = telling.wait(10.0)
    assert outcome is not None
    assert outcome.outcome == "late"


# --- under a supervisor -------------------------------------------------------------------------------------
FAILING = {"failures": 2, "backoff": 0, "backoff_limit": 0}


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Callable[..., HostBed]]:
    """`bed("--fail-at", "8", notify={...})`: a counter whose supervisor tells by a command."""
    made: list[HostBed] = []

    def make(*words: str, **sections: Any) -> HostBed:
        made.append(counter(tmp_path / "bed", *words, **sections))
        return made[-1]

    yield make
    for each in made:
        each.close()


def teller(folder: Path, more: str = "") -> list[str]:
    """A command that keeps what it was given, one line a message."""
    body = (
        "import json, sys, time\n"
        "with open(sys.argv[1], 'a') as file:\n"
        "    file.write(json.dumps([sys.argv[2:], json.load(sys.stdin)]) + '\\n')\n"
    )
    return [*script(folder, body + more, "tell.py"), str(folder / "told.jsonl"), "{event}", "{job}", "{summary}"]


def messages(folder: Path) -> list[tuple[list[str], dict[str, Any]]]:
    path = folder / "told.jsonl"
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_hold_is_told_before_the_supervisor_leaves_and_not_again(bed: Callable[..., HostBed], tmp_path: Path) -> None:
    job = bed("--fail-at", "8", relaunch=FAILING, notify={"command": teller(tmp_path)})
    assert job.ended(job.start()) == 3, job.tell()
    [(arguments, record)] = messages(tmp_path)
    assert arguments[:2] == ["hold", "bed"]
    assert arguments[2].startswith("HOLD bed: 2 runs in a row ended without a new checkpoint"), arguments
    assert record["event"] == "hold"
    assert record["next"].startswith("watchdog relaunch --config")
    assert [event["data"]["outcome"] for event in job.kinds("notified")] == ["delivered"]
    assert "notification of hold, attempt 1: exit 0" in job.screen
    assert job.ended(job.start()) == 3
    assert len(messages(tmp_path)) == 1, "the same hold was told twice"


def test_a_supervisor_killed_right_after_it_told_does_not_repeat_it(
    bed: Callable[..., HostBed], tmp_path: Path
) -> None:
    """Killed while the command runs: it arrives, and the next supervisor, which cannot know that, sends no second."""
    told_folder = tmp_path / "told"
    command = teller(told_folder, "time.sleep(0.5)\n")
    job = bed("--fail-at", "8", relaunch=FAILING, notify={"command": command})
    supervisor = job.start("--on-hold", "wait")
    wait_for(lambda: messages(told_folder), "the message")
    job.kill_supervisor(supervisor)
    assert not job.kinds("notified")
    again = job.start("--on-hold", "wait")
    job.wait_event("supervisor_started", count=2)
    assert job.wait_status(state="hold", supervisor_pid=again.pid)["hold_reason"]
    job.call("stop")
    assert job.ended(again) == 3
    assert len(messages(told_folder)) == 1


def test_a_supervisor_that_dies_leaves_no_command_that_hangs(bed: Callable[..., HostBed]) -> None:
    mark = f"mark-{os.getpid()}-alarm"
    command = [*BARE, "-c", "import time; time.sleep(600)", mark]
    job = bed("--fail-at", "8", relaunch=FAILING, notify={"command": command, "timeout": "1s"})
    supervisor = job.start()
    wait_for(lambda: parents_of(mark), "the command")
    job.kill_supervisor(supervisor)
    nobody_carries(mark)


def test_a_supervisor_killed_before_it_told_tells_it_the_next_time(bed: Callable[..., HostBed], tmp_path: Path) -> None:
    job = bed("--fail-at", "8", relaunch=FAILING, notify={"command": teller(tmp_path)})
    assert job.ended(job.start_deadly("hold")) == -signal.SIGKILL
    assert messages(tmp_path) == []
    assert job.ended(job.start()) == 3
    assert [record["attempt"] for _, record in messages(tmp_path)] == [1]


def test_a_recovery_is_told_with_the_step(bed: Callable[..., HostBed], tmp_path: Path) -> None:
    job = bed("--steps", "60", "--delay", "0.02", notify={"recovery": teller(tmp_path)})
    supervisor = job.start()
    run = job.run_at_step(12)
    job.harm(run.trainer)
    assert job.ended(supervisor) == 0, job.tell()
    [(arguments, record)] = messages(tmp_path)
    assert arguments[0] == "recovery"
    assert arguments[2].startswith("recovered bed: run 2 trains again, at step "), arguments
    assert record["run"] == 2


def test_a_command_that_hangs_never_touches_the_loop(bed: Callable[..., HostBed], tmp_path: Path) -> None:
    """The loop's own times, from its views: no gap longer than without notifications, while the command hangs."""
    job = bed(
        "--steps",
        "100000",
        "--delay",
        "0.02",
        notify={"recovery": [*BARE, "-c", "import time; time.sleep(600)"], "timeout": "3s"},
    )
    supervisor = job.start()
    run = job.run_at_step(12)
    job.harm(run.trainer)
    job.wait_event("notifying")
    socket = folders_in(job.root).socket
    views: list[float] = []

    def look() -> list[dict[str, Any]]:
        views.append(request(socket, {"command": "status"})["status"]["now_wall_s"])
        return job.kinds("notified")

    [event] = wait_for(look, "the end of the command", every_s=0.02)
    steps = [later - earlier for earlier, later in itertools.pairwise(views) if later != earlier]
    assert len(steps) > 10, "the loop was not seen turning"
    assert max(steps) < 1.0, f"the loop stood still for {max(steps):.2f} s (its period is 0.1 s)"
    assert event["data"]["outcome"] == "late"
    assert 2.9 < event["data"]["took_s"] < 6
    assert not job.kinds("gap")
    assert job.call("stop", "--now").returncode == 0
    assert job.ended(supervisor, timeout_s=20) in (3, 5)


def test_a_command_that_fails_is_tried_once_more_when_leaving_and_counted(
    bed: Callable[..., HostBed], tmp_path: Path
) -> None:
    command = [*BARE, "-c", "import sys; sys.exit('no route, API_TOKEN=abc123secret')"]
    job = bed("--fail-at", "8", relaunch=FAILING, notify={"command": command})
    assert job.ended(job.start()) == 3
    assert [(e["data"]["attempt"], e["data"]["outcome"]) for e in job.kinds("notified")] == [
        (1, "failed"),
        (2, "failed"),
    ]
    assert "no route" in job.screen
    assert "abc123secret" not in job.screen + (job.state / "ledger.jsonl").read_text()
    assert job.status()["notifications"] == {"hold": {"failed": 2}}
    assert job.ended(job.start()) == 3
    assert len(job.kinds("notifying")) == 2


# --- by hand, and what is refused ---------------------------------------------------------------------------
def test_a_test_by_hand(bed: Callable[..., HostBed], tmp_path: Path) -> None:
    job = bed(notify={"command": teller(tmp_path), "blindness": ["/nowhere/tell"], "events": ["hold"]})
    answer = job.call("notify", "--test", "hold")
    assert answer.returncode == 0, answer.stderr
    assert "delivered exit 0 after" in answer.stdout
    assert messages(tmp_path)[0][0][2] == "test of hold: this is a test of the notification: nothing is on hold"
    answer = job.call("notify", "--test", "blindness")
    assert answer.returncode == 1
    assert "failed    /nowhere/tell cannot be executed: No such file or directory" in answer.stdout
    assert "blindness is not in [notify] events" in answer.stdout
    answer = job.call("notify", "--test", "death")
    assert answer.returncode == 2
    assert answer.stderr.strip() == "--test death: must be one of hold, recovery, blindness"
    assert not (job.state / "ledger.jsonl").exists()


def test_without_a_command_a_test_by_hand_says_so(bed: Callable[..., HostBed]) -> None:
    answer = bed().call("notify", "--test", "hold")
    assert answer.returncode == 2
    assert answer.stderr.strip() == "[notify] has no command for hold; set [notify] command, or hold"


def test_an_unknown_placeholder_is_refused_when_the_file_is_read(bed: Callable[..., HostBed]) -> None:
    job = bed(notify={"command": ["tell", "{sumary}"]})
    assert job.ended(job.start()) == 2
    assert "argument 1 holds the unknown placeholder {sumary}; allowed are {event}, {job}, {run}" in job.screen
    assert len(job.screen.splitlines()) == 1
