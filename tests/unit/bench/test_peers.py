"""bench/peers*.py: what a trial came to is read from the trainer's own trace, nobody is flattered, nothing is left."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import peers, peers_ending, peers_table, peers_trial, record
from bench.campaign_counter import final_value
from bench.peers_tools import OURS, TOOLS
from bench.peers_trial import Outcome, Trace, judge
from watchdog.collectors.processes import process_table

RIGHT = final_value(peers.STEPS)
FAULT_S = 20.0


def trace(*, restart_s: float | None = 21.0, again: int = 41, last: int = peers.STEPS, value: str = RIGHT) -> Trace:
    """Started at 10 s, 43 steps until 19 s; started anew at `restart_s`, first step `again`, a step each 0.1 s."""
    steps = [(step, 10.0 + step * 0.2) for step in range(1, 44)]
    starts = [(100, 10.0)]
    done = None
    if restart_s is not None:
        starts.append((200, restart_s))
        steps += [(step, restart_s + 1.0 + (step - again) * 0.1) for step in range(again, last + 1)]
        if last == peers.STEPS:
            done = (value, restart_s + 10.0)
    return Trace(starts=tuple(starts), steps=tuple(steps), done=done)


def judged(traced: Trace, seen_s: float | None = None, tool: str = OURS, fault: str = "kill") -> Outcome:
    return judge(tool, fault, traced, FAULT_S, seen_s, "last words")


def test_a_trace_is_read_up_to_its_last_whole_line() -> None:
    read = peers_trial.parse_trace("start 7 1.5\nstep 1 2.0\nstep 2 2.5\ndone abc 3.0\nstep 3")
    assert read == Trace(starts=((7, 1.5),), steps=((1, 2.0), (2, 2.5)), done=("abc", 3.0))


def test_a_recovery_is_measured_from_the_fault() -> None:
    outcome = judged(trace())
    assert outcome.survived
    assert outcome.detect_s == pytest.approx(1.0)
    assert outcome.next_step_s == pytest.approx(2.3)  # step 44, three steps after 41
    assert outcome.lost == 3
    assert outcome.ettr == pytest.approx(peers.STEPS * peers.STEP_S / 21.0)


def test_a_worker_that_was_seen_killed_counts_as_detected_before_the_next_one_starts() -> None:
    assert judged(trace(), seen_s=20.4).detect_s == pytest.approx(0.4)


def test_what_a_woken_worker_still_does_is_no_recovery() -> None:
    woken = trace(again=45)
    woken = dataclasses.replace(woken, steps=(*woken.steps, (44, 20.5)))
    outcome = judged(woken)
    assert outcome.next_step_s == pytest.approx(2.0)
    assert outcome.lost == 0


def test_steps_that_are_made_in_vain_are_no_recovery_and_count_as_lost() -> None:
    """A full disk: started at 21 s, it makes 41 to 49 and cannot save; started at 25 s, it makes them again."""
    good = trace(restart_s=25.0)
    vain = tuple((step, 22.0 + (step - 41) * 0.1) for step in range(41, 50))
    traced = dataclasses.replace(good, starts=(good.starts[0], (150, 21.0), good.starts[1]), steps=(*vain, *good.steps))
    outcome = judged(traced)
    assert outcome.detect_s == pytest.approx(1.0)
    assert outcome.restart_s == pytest.approx(5.0)
    assert outcome.next_step_s == pytest.approx(6.3)
    assert outcome.lost == 3 + 9


def test_a_job_that_stands_still_is_charged_all_of_the_time() -> None:
    outcome = judged(trace(restart_s=None))
    assert not outcome.survived
    assert (outcome.detect_s, outcome.next_step_s, outcome.lost) == (None, None, None)
    assert outcome.wall_s == FAULT_S + peers_trial.LIMIT_S - 10.0
    assert outcome.productive_s == pytest.approx(43 * peers.STEP_S)
    assert "started 0 times; last words" in outcome.why_not


def test_a_wrong_result_is_not_survived_and_only_what_came_before_counts() -> None:
    outcome = judged(trace(value="0" * 64))
    assert not outcome.survived
    assert outcome.next_step_s is None
    assert outcome.productive_s == pytest.approx(43 * peers.STEP_S)
    assert outcome.why_not == "done, with a wrong result"


def test_too_late_is_not_survived() -> None:
    assert not judged(trace(restart_s=FAULT_S + peers_trial.LIMIT_S - 5.0)).survived


def of_a_peer(outcome: Outcome, **changes: object) -> Outcome:
    return dataclasses.replace(outcome, tool="circus", **changes)  # type: ignore[arg-type]


def test_ours_must_be_better_than_each_peer_and_not_only_as_good() -> None:
    good, bad = judged(trace()), judged(trace(restart_s=None))
    assert peers_table.misses([good, of_a_peer(bad)]) == []
    for ours, its in ((bad, good), (good, good)):
        assert [words.split()[0] for words in peers_table.misses([ours, of_a_peer(its)])] == ["circus", "circus"]
    assert peers_table.misses([of_a_peer(good)]) == ["watchdog was not measured"]
    assert peers_table.misses([good]) == ["no peer was measured"]


LEDGER = [
    {"event": "run_ended", "monotonic_s": 19.0},  # of an earlier run
    {"event": "run_stopping", "monotonic_s": 20.2},
    {"event": "run_ended", "monotonic_s": 20.5},
    {"event": "checkpoint_verified", "monotonic_s": 20.55},
    {"event": "run_launching", "monotonic_s": 20.8},
    {"event": "run_stopping", "monotonic_s": 31.0},  # after the job
]


def test_the_way_of_ours_is_read_from_its_ledger_and_adds_up_to_the_restart() -> None:
    outcome = judge(OURS, "kill", trace(), FAULT_S, None, "last words", LEDGER)
    assert [words.split()[0] for words, _ in outcome.parts] == ["its", "proven", "checkpoint", "worker"]
    assert [round(seconds, 2) for _, seconds in outcome.parts] == [0.2, 0.3, 0.3, 0.2]
    assert sum(seconds for _, seconds in outcome.parts) == pytest.approx(outcome.restart_s)


def test_a_quicker_peer_has_the_measured_reason_beside_it_and_a_slower_one_has_none() -> None:
    ours = judge(OURS, "kill", trace(), FAULT_S, None, "last words", LEDGER)
    quick = of_a_peer(judged(trace(restart_s=20.4)))
    rows = peers_table.detail_rows([ours, quick])
    assert rows[0]["why"] == ""
    assert "ours by its ledger: its end called for 0.20 s, proven that nothing of it lives 0.30 s" in str(
        rows[1]["why"]
    )
    assert "worker started after 0.40 s, the trainer's own way to a new step 1.30 s, ours worker" in str(rows[1]["why"])
    slow = of_a_peer(judged(trace(restart_s=23.0)))
    assert peers_table.detail_rows([ours, slow])[1]["why"] == ""


def test_a_median_over_fewer_faults_is_told_beside_ours_over_the_same() -> None:
    stall = dataclasses.replace(judged(trace(restart_s=26.0)), fault="stop")
    ours = [judged(trace()), stall]
    its = [of_a_peer(ours[0]), of_a_peer(judged(trace(restart_s=None)), fault="stop")]
    words = peers_table.why_quicker_on_the_whole(its, ours)
    assert words.startswith("over what both survived (kill), detected: 1.00 s, ours 1.00 s; ")
    dead = [dataclasses.replace(each, survived=False, lost=None) for each in its]
    assert peers_table.why_quicker_on_the_whole(dead, ours).startswith(
        "no fault that both survived; it did not survive"
    )
    assert words.endswith("it did not survive stop")
    assert peers_table.why_quicker_on_the_whole([of_a_peer(each) for each in ours], ours) == ""


def test_the_summary_counts_each_tool_over_the_schedule() -> None:
    outcomes = [judged(trace()), dataclasses.replace(judged(trace(restart_s=None)), fault="stop")]
    (row,) = peers_table.summary_rows(outcomes, [TOOLS[OURS]])
    assert (row["survived"], row["steps lost"]) == ("1 of 2", 3)
    assert row["ETTR"] == round((5.0 + 43 * 0.05) / (21.0 + 10.0 + peers_trial.LIMIT_S), 3)


def test_names_may_be_beginnings_and_unknown_ones_are_refused() -> None:
    assert peers.chosen_of("kill,disk", peers.FAULTS, "the fault") == ["kill", "disk full for 10 s"]
    assert peers.chosen_of("all", TOOLS, "the peer") == list(TOOLS)
    with pytest.raises(ValueError, match="'nobody' is not known"):
        peers.chosen_of("nobody", TOOLS, "the peer")


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_every_tool_is_given_the_trainers_own_words(name: str, tmp_path: Path) -> None:
    trainer = ["python3", "-P", "-m", "bench.peers_trainer", "--folder", str(tmp_path / "checkpoints")]
    prepared = TOOLS[name].prepare(tmp_path, trainer)
    told = " ".join(prepared.command) + "".join(path.read_text() for path in tmp_path.iterdir() if path.is_file())
    assert all(word in told for word in trainer)


@pytest.mark.parametrize("words", [["--record"], ["--peers", "all", "--faults", "kill", "--record"]])
def test_only_a_whole_run_may_be_recorded(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        peers.main(words)
    assert ended.value.code == 2
    assert "only the whole schedule" in capsys.readouterr().err


def test_all_that_is_below_a_process_is_found_through_any_number_of_parents(wait_until: Callable[..., object]) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as shell:
        try:
            wait_until(lambda: len(peers_ending.below(shell.pid, process_table())) == 1, "the child of the shell")
            mine = {process.id.pid for process in peers_ending.below(os.getpid(), process_table())}
            assert {shell.pid, peers_ending.below(shell.pid, process_table())[0].id.pid} <= mine
            assert os.getpid() not in mine
        finally:
            for process in peers_ending.below(shell.pid, process_table()):
                os.kill(process.id.pid, signal.SIGKILL)


# A peer that does all that a daemon does to be left behind: sessions, a double fork, deafness, an emptied environment.
_CLINGING = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "import time\\nwhile True: time.sleep(1)", "MARK"], {})
os.execv(sys.argv[1], sys.argv[1:])
"""
_RUN = """
import dataclasses, sys
from pathlib import Path
from bench import peers, peers_tools
def prepare(root, command):
    return peers_tools.Prepared(command=[sys.executable, "-I", "-S", "-c", CLINGING, *command])
plain = peers.TOOLS["supervisord"]
peers.TOOLS["supervisord"] = dataclasses.replace(plain, name="stub", prepare=prepare)
peers.install = lambda name: None
peers.OURS = "supervisord"
sys.exit(peers.main(["--peers", "supervisord", "--faults", "stop", "--light"]))
"""


def marked(mark: str) -> list[int]:
    """Those with the mark among their words or in their environment."""
    found = []
    for process in process_table():
        for name in ("cmdline", "environ"):
            try:
                if mark.encode() in Path(f"/proc/{process.id.pid}/{name}").read_bytes():
                    found.append(process.id.pid)
                    break
            except OSError:
                continue
    return [pid for pid in found if pid != os.getpid()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_leaves_nothing_behind(
    number: signal.Signals, tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    mark = f"left-behind-{tmp_path.name}-{os.getpid()}"
    code = _RUN.replace("CLINGING", repr(_CLINGING.replace("MARK", mark)))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # the folder of the trial is among the words of its trainer
    run = subprocess.Popen([sys.executable, "-P", "-c", code], env=environment, stderr=subprocess.PIPE)
    try:
        traces = tmp_path.glob
        wait_until(lambda: any(path.read_text().count("step") > 3 for path in traces("peers-*/trace")), "some steps")
        assert len(marked(f"{peers_trial.MARK}={tmp_path}")) == 1  # the trainer; the daemon has emptied its own
        assert len(marked(mark)) == 2  # the run itself, and the daemon
        run.send_signal(number)
        assert run.wait(30) == 128 + number
        assert marked(mark) == []
        assert marked(str(tmp_path)) == []
        assert list(tmp_path.glob("peers-*")) == []
    finally:
        run.kill()
        run.wait()
        assert run.stderr is not None
        run.stderr.close()


_RECORDED = """
import functools, sys
from pathlib import Path
from bench import peers, record
from bench.peers_tools import OURS
from bench.peers_trial import Outcome
def made_up(root, tool, fault, light=False):
    if sys.argv[2] == f"{fault.name} {tool.name}":
        raise peers.BedError("it did not come to the fault")
    better = tool.name == OURS or fault.name == "kill" or sys.argv[2] == "tie"
    return Outcome(tool=tool.name, fault=fault.name, survived=better, why_not="", detect_s=0.2, next_step_s=1.0, lost=3,
                   productive_s=5.0 if better else 2.0, wall_s=8.0)
peers.run_trial, peers.install, peers.warm_up = made_up, lambda name: None, lambda: None
record.append = functools.partial(record.append, document=Path(sys.argv[1]))
sys.exit(peers.main(["--peers", "all", "--record"]))
"""


@pytest.mark.parametrize(
    ("trouble", "code", "recorded"),
    [("", 0, True), ("stop circus", 1, False), ("kill watchdog", 1, False), ("tie", 1, True)],
    ids=["better", "a peer was not run", "ours was not run", "only as good"],
)
def test_a_run_that_is_not_whole_is_never_recorded_and_only_the_best_exits_with_0(
    tmp_path: Path, trouble: str, code: int, recorded: bool
) -> None:
    """In a process of its own: at its end it kills all its children."""
    document = tmp_path / "benchmarks.md"
    document.write_text(f"{record.BEGIN}\n{record.END}\n")
    argv = [sys.executable, "-P", "-c", _RECORDED, str(document), trouble]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended.stderr
    assert ("### peers, fault by fault" in document.read_text()) == recorded
    assert ("not recorded" in ended.stderr) == (not recorded)
