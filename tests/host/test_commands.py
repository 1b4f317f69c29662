"""The commands beside `run`, with and without a supervisor: what they say, their JSON, and their exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.campaign_bed import WATCHDOG, wait_for
from tests.host.bed import SLEEPER, HostBed, counter, make_bed, script, strict_json
from tests.unit.test_asking import hold
from watchdog.settings import load

TALKER = "import sys, time\nn = 0\nwhile True:\n    n += 1\n    print(f'line {n}', flush=True)\n    time.sleep(0.02)\n"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[HostBed]:
    """A job of level 0 that sleeps."""
    with make_bed(tmp_path / "bed", SLEEPER, level=0) as bed:
        yield bed


def run_here(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command without a configuration, in a home of its own."""
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"], "GPUHOST_WATCHDOG_METRICS__PORT": "off"}
    environment |= {"GPUHOST_WATCHDOG_MEMORY__NEED": "16MiB", "GPUHOST_WATCHDOG_DISK__NEED": "0", **more}
    return subprocess.run([*WATCHDOG, *words], env=environment, cwd=folder, capture_output=True, text=True, timeout=60)


# --- exit codes ---------------------------------------------------------------------------------------------
def test_a_job_that_was_never_started(sleeper: HostBed) -> None:
    assert sleeper.status()["state"] == "never started"
    for words, code, said in (
        (("status",), 0, "never started"),
        (("stop",), 0, "nothing to stop"),
        (("stop", "--now"), 0, "nothing to stop"),
        (("relaunch",), 1, "nothing is held"),
        (("logs",), 2, "start the job: watchdog run"),
        (("logs", "--output"), 2, "watchdog run"),
    ):
        answer = sleeper.call(*words)
        assert answer.returncode == code, (words, answer)
        assert said in answer.stdout + answer.stderr, words
        assert bool(answer.stderr) is (code == 2), words


def test_what_is_wrong_with_a_relaunch_is_said_with_the_value(sleeper: HostBed) -> None:
    for words, said in (
        (("--wait", "nan"), "--wait nan: must be a number of seconds"),
        (("--json",), "--json: it is the plan of a dry run; add --dry-run"),
        (("--why", "\x1b[2J"), "--why '\\x1b[2J': it is the reason to go back, and goes with --from STEP"),
    ):
        answer = sleeper.call("relaunch", *words)
        assert (answer.returncode, answer.stderr) == (2, said + "\n"), words


def test_no_incident_is_no_line_for_machines(sleeper: HostBed) -> None:
    for words in (("list",), ("export",)):
        assert sleeper.call("incidents", *words, "--json").stdout == ""
        assert sleeper.call("incidents", *words).stdout.startswith("no incident")


def test_usage_errors(sleeper: HostBed) -> None:
    """2 for every command, 3 for diagnose; nothing was made."""
    for words, code in (
        (("dance",), 2),
        (("run", "--on-hold", "sing"), 2),
        (("status", "--colour"), 2),
        (("stop", "--job", "another"), 2),
        (("status", "--job", "../x"), 2),
        (("diagnose", "--colour"), 3),
        (("diagnose", "--job", "another"), 3),
    ):
        answer = sleeper.call(*words)
        assert answer.returncode == code, (words, answer)
        assert answer.stderr
        assert "Traceback" not in answer.stderr
    assert sorted(os.listdir(sleeper.root)) == ["tmp", "watchdog.toml"], "the bed's own"
    assert os.listdir(sleeper.root / "tmp") == []


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    for command, code in (("status", 2), ("run", 2), ("stop", 2), ("diagnose", 3)):
        answer = run_here(tmp_path, command, "--config", "nowhere.toml")
        assert answer.returncode == code, answer
        assert "nowhere.toml" in answer.stderr
    assert os.listdir(tmp_path) == []


def test_asking_about_a_job_that_never_was_leaves_nothing_behind(tmp_path: Path) -> None:
    """A typing error makes no folders, and does not hide the only job there is from a plain `status`."""
    assert run_here(tmp_path, "run", "--job", "train", "--", "true").returncode == 0
    for words in (("status",), ("stop",), ("relaunch",), ("logs",), ("diagnose",)):
        run_here(tmp_path, *words, "--job", "tarin")
    states = [path for path in tmp_path.rglob("*") if path.name == "tarin"]
    assert states == [], "folders of a job that never was"
    answer = run_here(tmp_path, "status", "--json")
    assert strict_json(answer.stdout)["job"] == "train"
    assert strict_json(answer.stdout)["state"] == "finished"


def test_a_wrong_name_is_an_error_where_others_are_known(tmp_path: Path) -> None:
    assert run_here(tmp_path, "run", "--job", "train", "--", "true").returncode == 0
    for command, code in (("status", 2), ("logs", 2), ("stop", 2), ("relaunch", 2), ("diagnose", 3), ("probe", 3)):
        answer = run_here(tmp_path, command, "--job", "tarin")
        assert (answer.returncode, answer.stdout) == (code, ""), command
        assert "--job tarin: no such job; did you mean train?; here are train" in answer.stderr


def test_what_to_start_is_the_same_job_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    config = tmp_path / "a/w.toml"
    config.write_text('[job]\nname = "n"\ncommand = ["false"]\n')
    once = {"GPUHOST_WATCHDOG_RELAUNCH__FAILURES": "1"}
    assert run_here(tmp_path, "run", "--config", "a/w.toml", **once).returncode == 3
    assert run_here(tmp_path, "run", "--job", "m", "--", "sh", "-c", "exit 1", **once).returncode == 3
    told = run_here(tmp_path, "relaunch", "--job", "n").stdout
    assert told.endswith(f"start the supervisor: watchdog run --config {config} --job n\n")
    told = run_here(tmp_path, "relaunch", "--job", "m").stdout
    assert told.endswith(f"start the supervisor: cd {tmp_path} && watchdog run --job m -- sh -c 'exit 1'\n")


def test_without_a_name_every_job_on_hold_is_told(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        hold(load(environ={}, home=tmp_path, cwd=tmp_path, command=["sh"], job=name), ["sh", "-c", "exit 1"])
    assert "is lifted" in run_here(tmp_path, "relaunch", "--job", "good").stdout
    answer = run_here(tmp_path, "diagnose", "--no-probe")
    assert answer.returncode == 2
    assert [line for line in answer.stdout.splitlines() if line.startswith("HOLD")] == ["HOLD      job bad · why"]
    assert "watchdog relaunch --job bad" in answer.stdout
    others = strict_json(run_here(tmp_path, "diagnose", "--no-probe", "--json").stdout)["others"]
    assert [(each["name"], each["state"]) for each in others] == [("bad", "hold")]


def test_a_question_without_a_name_means_the_job_that_runs(tmp_path: Path) -> None:
    """The other job was finished long ago: it is not the one that is asked about, nor is anything done by guess."""
    assert run_here(tmp_path, "run", "--job", "done", "--", "true").returncode == 0
    trainer = script(tmp_path, "import time\ntime.sleep(600)\n", "train.py")
    assert run_here(tmp_path, "run", "--detach", "--job", "train", "--", *trainer).returncode == 0
    try:
        wait_for(lambda: "running" in run_here(tmp_path, "status", "--job", "train").stdout, "a run")
        for words in (("status",), ("incidents",), ("logs",), ("diagnose", "--no-probe")):
            answer = run_here(tmp_path, *words)
            assert "job train (of 2: done, train; --job chooses)" in answer.stderr, answer
            assert words != ("status",) or answer.stdout.startswith("job         train · "), answer
        for words in (("stop",), ("stop", "--dry-run"), ("relaunch",), ("relaunch", "--dry-run")):
            answer = run_here(tmp_path, *words)
            assert (answer.returncode, "which job?" in answer.stderr) == (2, True), (words, answer)
        # Another job on its checkpoint folder is told whose it is.
        state = json.loads(run_here(tmp_path, "status", "--job", "train", "--json").stdout)
        shared = {"GPUHOST_WATCHDOG_JOB__CHECKPOINTS": state["checkpoints"]}
        answer = run_here(tmp_path, "run", "--job", "second", "--", "true", **shared)
        assert answer.returncode == 4, answer
        assert f"{state['checkpoints']} is already supervised, as job train, by pid {state['supervisor_pid']}" in (
            answer.stderr
        )
        assert "watchdog status --job train; end it with: watchdog stop --job train" in answer.stderr
    finally:
        assert run_here(tmp_path, "stop", "--now", "--job", "train").returncode == 0
    assert "which job?" in run_here(tmp_path, "status").stderr, "none is busy: it would be a guess"


def test_the_plan_of_a_stop_for_machines(sleeper: HostBed) -> None:
    assert "add --dry-run" in sleeper.call("stop", "--json").stderr
    plan = strict_json(sleeper.call("stop", "--dry-run", "--json").stdout)
    assert (plan["would_stop"], plan["steps"], plan["exit_code"]) == (False, [], 0)
    supervisor = sleeper.start()
    run = sleeper.run_where(lambda _run, _beat: True, "a run")
    sleeper.wait_status(state="running")
    plan = strict_json(sleeper.call("stop", "--dry-run", "--json").stdout)
    assert (plan["would_stop"], plan["saves"], plan["supervisor_pid"]) == (True, True, supervisor.pid)
    assert plan["run"]["run_id"] == run.run_id
    assert plan["steps"][0]["name"] == "ask"
    assert sleeper.call("stop", "--now").returncode == 0


def test_a_relaunch_of_a_script_that_dies_at_once_is_no_launch(tmp_path: Path) -> None:
    command = script(tmp_path, "raise ValueError('no such data')\n")
    with make_bed(tmp_path / "bed", command, level=0, relaunch={"failures": 1, "backoff": "0.1s"}) as bed:
        bed.start("--on-hold", "wait")
        bed.wait_status(state="hold")
        answer = bed.call("relaunch")
        assert answer.returncode == 1, answer
        assert "ValueError: no such data" in answer.stdout
        assert bed.call("stop").returncode == 0


def test_an_empty_command_is_not_the_built_in_job(tmp_path: Path) -> None:
    for words in (("--",), ("--detach", "--"), ("--", ""), ("--", " ")):
        answer = run_here(tmp_path, "run", *words)
        assert answer.returncode == 2, (words, answer)
        assert "is a variable empty?" in answer.stderr, (words, answer)
    assert not (tmp_path / ".local").exists()


def test_init(tmp_path: Path) -> None:
    """Written once, loads to the defaults, and is never overwritten."""
    answer = run_here(tmp_path, "init")
    assert answer.returncode == 0
    written = (tmp_path / "watchdog.toml").read_text()
    assert "watchdog.toml" in answer.stdout
    (tmp_path / "watchdog.toml").write_text(written + "# mine\n")
    again = run_here(tmp_path, "init")
    assert again.returncode == 2
    assert "was not touched" in again.stderr
    assert (tmp_path / "watchdog.toml").read_text().endswith("# mine\n")
    assert run_here(tmp_path, "status").returncode == 0
    assert run_here(tmp_path, "init", "none/x.toml").returncode == 2


def test_version_and_help(tmp_path: Path) -> None:
    assert run_here(tmp_path, "--version").stdout.startswith("gpuhost-watchdog ")
    shown = run_here(tmp_path, "--help").stdout
    for command in ("run", "status", "relaunch", "stop", "logs", "diagnose", "init"):
        assert command in shown
        assert run_here(tmp_path, command, "--help").returncode == 0


# --- with a supervisor --------------------------------------------------------------------------------------
def test_asking_a_supervisor(sleeper: HostBed) -> None:
    """status, relaunch, a second supervisor, diagnose, stop; and what is left afterwards."""
    supervisor = sleeper.start()
    first = sleeper.run_where(lambda _run, _beat: True, "a run")
    seen = sleeper.wait_status(state="running", run_alive=True, run_leader_pid=first.trainer)
    assert seen["supervisor_pid"] == supervisor.pid
    assert seen["format"] == 1
    assert seen["restarts"] == 0
    human = sleeper.call("status")
    assert human.returncode == 0
    assert f"supervisor pid {supervisor.pid}" in human.stdout

    held = sleeper.call("run")
    assert held.returncode == 4
    assert f"supervised by pid {supervisor.pid} since" in held.stderr
    assert held.stdout == ""

    diagnosis = sleeper.call("diagnose", "--json")
    found = strict_json(diagnosis.stdout)
    assert found["exit_code"] == diagnosis.returncode

    answer = sleeper.call("relaunch")
    assert answer.returncode == 0, answer.stderr
    assert "run 1" in answer.stdout
    second = sleeper.run_where(lambda _run, _beat: True, "the next run", after=first.number)
    assert sleeper.kinds("run_ended")[0]["data"]["cause"] in ("stopped", "drained")
    assert sleeper.wait_status(run_number=2)["failures"] == 0, "what a person asked for is no failure"

    answer = sleeper.call("stop")
    assert answer.returncode == 0
    assert "stopped" in answer.stdout
    assert sleeper.ended(supervisor) == 5
    assert sleeper.living() is None
    assert second.number == 2
    seen = sleeper.status()
    assert (seen["state"], seen["supervisor_pid"]) == ("stopped", None)
    assert "watchdog run" in sleeper.call("relaunch").stdout


def test_a_hold_is_lifted_through_the_socket_and_through_the_ledger(tmp_path: Path) -> None:
    """Exit 3 in a terminal; with --on-hold wait it stays and answers."""
    flag = tmp_path / "mended"
    body = "import os, sys\nsys.exit(0 if os.path.exists(sys.argv[1]) else 'no luck yet')\n"
    limits = {"failures": 2, "backoff": "0s", "backoff_limit": "0s"}
    with make_bed(tmp_path / "bed", [*script(tmp_path, body), str(flag)], level=0, relaunch=limits) as bed:
        assert bed.ended(bed.start()) == 3
        assert len(bed.kinds("run_launching")) == 2
        seen = bed.status()
        assert (seen["state"], seen["last_error"], seen["failures"]) == ("hold", "no luck yet", 2)
        assert "no luck yet" in bed.call("status").stdout
        assert "watchdog relaunch" in bed.call("status").stdout
        assert bed.ended(bed.start()) == 3, "a hold outlives its supervisor"
        assert len(bed.kinds("run_launching")) == 2

        answer = bed.call("relaunch")
        assert answer.returncode == 0
        assert f"watchdog run --config {bed.config}" in answer.stdout
        assert bed.status()["state"] != "hold"
        assert "nothing is held" in bed.call("relaunch").stdout

        waiting = bed.start("--on-hold", "wait")
        bed.wait_status(state="hold")
        flag.touch()
        answer = bed.call("relaunch")
        assert answer.returncode == 0
        assert "lifted" in answer.stdout
        assert bed.ended(waiting) == 0, bed.tell()
        assert len(bed.kinds("lifted")) == 2
        assert bed.status()["state"] == "finished"


def test_stop_of_a_run_without_a_supervisor(sleeper: HostBed) -> None:
    """Adopted, ended with proof, and left."""
    supervisor = sleeper.start()
    sleeper.run_where(lambda _run, _beat: True, "a run")
    sleeper.kill_supervisor(supervisor)
    assert sleeper.status()["supervisor_pid"] is None
    answer = sleeper.call("stop")
    assert answer.returncode == 0, answer.stderr
    assert sleeper.living() is None
    assert len(sleeper.kinds("run_ended")) == 1
    assert "nothing to stop" in sleeper.call("stop").stdout


def test_the_status_of_figures_that_are_not_finite(tmp_path: Path) -> None:
    body = (
        "import os, sys, time\nfrom watchdog import contract\nrun = contract.join()\n"
        "run.beat('train', step=3, loss=float('nan'), gradient_norm=float('inf'), learning_rate=float('-inf'))\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
    )
    go = tmp_path / "go"
    with make_bed(tmp_path / "bed", [*script(tmp_path, body), str(go)], level=1) as bed:
        supervisor = bed.start()
        seen = bed.wait_status(run_loss="nan", run_step=3)
        assert (seen["run"]["gradient_norm"], seen["run"]["learning_rate"]) == ("inf", "-inf")
        assert "nan" in bed.call("status").stdout
        strict_json(bed.call("diagnose", "--json").stdout)
        go.touch()
        assert bed.ended(supervisor) == 0


# --- diagnose -----------------------------------------------------------------------------------------------
def test_diagnose_beside_a_job(sleeper: HostBed) -> None:
    """JSON without NaN, the exit code of a monitoring plugin, and the same with and without --all."""
    listing = sleeper.call("diagnose", "--list")
    assert listing.returncode == 0
    assert "lock" in listing.stdout
    plain, everything = sleeper.call("diagnose"), sleeper.call("diagnose", "--all")
    assert plain.returncode in (0, 1, 2, 3)
    assert everything.returncode == plain.returncode
    assert len(everything.stdout) >= len(plain.stdout)


def test_diagnose_fails_with_3_whatever_it_meets(sleeper: HostBed) -> None:
    """Its own failure is unknown, never the warning that exit 1 would be."""
    assert sleeper.ended(sleeper.start_deadly("launched")) == -signal.SIGKILL
    run = wait_for(sleeper.living, "a run")
    for name in ("beat.json", "start.json", "exit.json"):
        for content in (b"[" * 50_000, b'{"pid": 1e999, "shim": {"pid": 1e999, "start_ticks": 0}, "leader": 5}'):
            before = (run.folder / name).read_bytes() if (run.folder / name).exists() else None
            (run.folder / name).write_bytes(content)
            answer = sleeper.call("diagnose", "--json")
            assert "Traceback" not in answer.stderr, (name, content[:40], answer.stderr)
            assert answer.returncode in (0, 2, 3) or strict_json(answer.stdout)["exit_code"] == answer.returncode
            if before is None:
                (run.folder / name).unlink()
            else:
                (run.folder / name).write_bytes(before)
    assert sleeper.call("stop", "--now").returncode == 0


# --- logs ---------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def following(bed: HostBed, *words: str) -> Iterator[Callable[[], bytes]]:
    """`watchdog logs -f` in the background; what it has printed so far."""
    path = bed.root / "followed.txt"
    with open(path, "wb") as file:
        process = subprocess.Popen(
            bed.command("logs", "-f", *words), stdout=file, stderr=file, env=bed.environment(), cwd="/"
        )
    bed.supervisors.append(process)
    try:
        yield path.read_bytes
        assert process.poll() is None, path.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def test_logs_follow_over_a_rotation(sleeper: HostBed) -> None:
    """The log is turned over beyond 4 MiB: no line is lost and none is shown twice."""
    supervisor = sleeper.start()
    sleeper.run_where(lambda _run, _beat: True, "a run")
    log = sleeper.state / "watchdog.log"
    with following(sleeper) as shown:
        wait_for(lambda: b"run 1" in shown(), "the first lines")
        with open(log, "ab") as file:
            file.write(b"x" * 99 + b"\n" + b"".join(b"padding %06d %s\n" % (n, b"." * 50) for n in range(75_000)))
        assert sleeper.call("relaunch").returncode == 0
        sleeper.run_where(lambda _run, _beat: True, "the next run", after=1)
        wait_for(lambda: (sleeper.state / "watchdog.log.1").exists(), "a rotation")
        wait_for(lambda: b"run 2     starts" in shown(), "the lines after the rotation")
        text = shown()
        assert text.count(b"padding ") == 75_000
        assert text.count(b"run 1     starts") == 1
        assert text.count(b"run 2     starts") == 1
    assert sleeper.call("stop", "--now").returncode == 0
    assert sleeper.ended(supervisor) == 5


def test_output_follows_into_the_next_run(tmp_path: Path) -> None:
    with make_bed(tmp_path / "bed", script(tmp_path, TALKER), level=0) as bed:
        supervisor = bed.start()
        run = bed.run_where(lambda _run, _beat: True, "a run")
        with following(bed, "--output") as shown:
            wait_for(lambda: shown().count(b"line 1\n") == 1 and b"line 9\n" in shown(), "the first run's output")
            bed.harm(run.trainer)
            wait_for(lambda: shown().count(b"line 1\n") == 2, "the second run's output")
        assert bed.call("logs", "--output").stdout.startswith("line 1\n")
        assert bed.call("stop", "--now").returncode == 0
        assert bed.ended(supervisor) == 5


def test_logs_into_a_closed_pipe(sleeper: HostBed) -> None:
    supervisor = sleeper.start()
    sleeper.run_where(lambda _run, _beat: True, "a run")
    with open(sleeper.state / "watchdog.log", "ab") as file:
        file.write(b"padding\n" * 50_000)
    process = subprocess.Popen(
        sleeper.command("logs"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=sleeper.environment()
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(20) == 1
    assert sleeper.call("stop", "--now").returncode == 0
    assert sleeper.ended(supervisor) == 5


# --- what is not said ---------------------------------------------------------------------------------------
def test_a_start_says_nothing_of_gates_that_were_not_looked_at(tmp_path: Path) -> None:
    with counter(tmp_path / "bed", "--steps", "2", "--delay", "0") as bed:
        assert bed.ended(bed.start()) == 0
        assert "has not been read yet" not in bed.screen, bed.screen


def test_finished_is_told_again_and_costs_nothing(tmp_path: Path) -> None:
    with counter(tmp_path / "bed", "--steps", "2", "--delay", "0") as bed:
        assert bed.ended(bed.start()) == 0
        ledger = (bed.state / "ledger.jsonl").read_bytes()
        again = bed.call("run")
        assert again.returncode == 0
        assert "was finished before" in again.stdout
        assert "the same command with --new archives it and begins again" in again.stdout
        assert (bed.state / "ledger.jsonl").read_bytes() == ledger
        seen = bed.status()
        assert (seen["state"], seen["checkpoint_step"]) == ("finished", 2)
        assert json.loads((bed.checkpoints / "count.json").read_text())["step"] == 2
