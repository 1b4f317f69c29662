"""What people do: Ctrl-C, TERM, a closed terminal, --detach, stop, a second supervisor, a look at the metrics."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable

import pytest

from bench.campaign_bed import Bed, wait_for
from bench.campaign_counter import final_value
from bench.campaign_observer import is_living


def value_of(bed: Bed) -> object:
    return json.loads((bed.checkpoints / "count.json").read_bytes())["value"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_drained_and_gone_on(number: signal.Signals, counter_bed: Callable[..., Bed]) -> None:
    """It saves where it stands, exit 5; the next `run` repeats nothing."""
    bed = counter_bed("--steps", "60", "--delay", "0.03")
    supervisor = bed.start()
    bed.run_at_step(13)
    supervisor.send_signal(number)
    assert bed.ended(supervisor) == 5, bed.tell()
    assert bed.living() is None
    assert bed.ended(bed.start()) == 0, bed.tell()
    launches = [event["data"]["resume_step"] for event in bed.kinds("run_launching")]
    assert launches[1] >= 13
    assert launches[1] % 5, "it was saved on leaving, not in its rhythm"
    assert value_of(bed) == final_value(60)
    assert not bed.problems()


def test_a_second_interrupt_does_not_wait_for_the_save(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--steps", "400", "--delay", "0.03", "--ignore-term", settings={"stop": {"grace": "60s"}})
    supervisor = bed.start()
    run = bed.run_at_step(7)
    supervisor.send_signal(signal.SIGINT)
    bed.wait_event("signal_sent")
    assert is_living(run.trainer, None) is not None
    supervisor.send_signal(signal.SIGINT)
    assert bed.ended(supervisor, timeout_s=20) == 5, bed.tell()
    assert is_living(run.trainer, None) is None
    assert run.trainer in bed.kinds("run_killing")[0]["data"]["pids"]
    assert not bed.problems()


def test_a_closed_terminal(counter_bed: Callable[..., Bed]) -> None:
    """SIGHUP: it goes on and speaks to its log only."""
    bed = counter_bed("--steps", "60", "--delay", "0.03")
    supervisor = bed.start()
    run = bed.run_at_step(10)
    supervisor.send_signal(signal.SIGHUP)
    bed.harm(run.trainer)
    bed.run_at_step(20, after=run.number)
    assert supervisor.poll() is None
    assert bed.ended(supervisor) == 0, bed.tell()
    assert "run 2" not in bed.screen
    assert "run 2" in (bed.state / "watchdog.log").read_text()
    assert value_of(bed) == final_value(60)


def test_detached_followed_and_stopped(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--steps", "400", "--delay", "0.03")
    assert bed.ended(bed.start("--detach")) == 0, bed.tell()
    assert "goes on in the background" in bed.screen
    bed.run_at_step(5)
    pid = json.loads(bed.call("status", "--json").stdout)["supervisor_pid"]
    log = bed.root / "followed.txt"
    with open(log, "wb") as file:
        follower = subprocess.Popen(bed.command("logs", "-f"), stdout=file, stderr=file, env=bed.environment(), cwd="/")
    bed.supervisors.append(follower)
    wait_for(lambda: "restored" in log.read_text() or "fresh" in log.read_text(), "the first lines in logs -f")
    run = bed.living()
    assert run is not None
    bed.harm(run.trainer)
    wait_for(lambda: "run 2" in log.read_text(), "the second run in logs -f")
    bed.run_at_step(6, after=run.number)
    stopped = bed.call("stop")
    assert stopped.returncode == 0, stopped.stderr
    wait_for(lambda: is_living(pid, None) is None, "the end of the detached supervisor")
    assert bed.living() is None
    assert bed.kinds("supervisor_leaving"), bed.tell()
    assert not bed.problems()


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("supervised", [True, False])
def test_stop(now: bool, supervised: bool, counter_bed: Callable[..., Bed]) -> None:
    """With and without a supervisor; saving, or not."""
    bed = counter_bed("--steps", "400", "--delay", "0.03")
    supervisor = bed.start()
    bed.run_at_step(7)
    if not supervised:
        bed.kill_supervisor(supervisor)
    stopped = bed.call("stop", *(["--now"] if now else []))
    assert stopped.returncode == 0, stopped.stderr + bed.tell()
    if supervised:
        assert bed.ended(supervisor) == 5, bed.tell()
    assert bed.living() is None
    assert bed.kinds("run_ended")[-1]["data"]["cause"] == ("stopped" if now else "drained"), bed.tell()
    assert bool(bed.kinds("run_killing")) is now
    assert not bed.problems()
    again = bed.call("stop")
    assert again.returncode == 0
    assert "nothing to stop" in again.stdout


def test_relaunch_of_a_living_run_and_without_a_supervisor(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--steps", "60", "--delay", "0.03")
    nothing = bed.call("relaunch")
    assert nothing.returncode == 1
    assert "watchdog run" in nothing.stdout
    supervisor = bed.start()
    run = bed.run_at_step(8)
    assert bed.call("relaunch", "--no-wait").returncode == 0
    bed.run_at_step(9, after=run.number)
    assert bed.ended(supervisor) == 0, bed.tell()
    launches = [event["data"]["resume_step"] for event in bed.kinds("run_launching")]
    assert launches[1] >= 8
    assert value_of(bed) == final_value(60)
    assert not bed.problems()


def test_metrics_while_it_trains(counter_bed: Callable[..., Bed]) -> None:
    bed = counter_bed("--steps", "400", "--delay", "0.03", settings={"metrics": {"port": 0}})
    supervisor = bed.start()
    run = bed.run_at_step(6)
    bed.harm(run.trainer)
    bed.run_at_step(8, after=run.number)
    url = json.loads(bed.call("status", "--json").stdout)["metrics_url"]
    assert url.startswith("http://127.0.0.1:"), url

    def page() -> dict[str, float]:
        with urllib.request.urlopen(url + ("" if url.endswith("metrics") else "metrics"), timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line and line[0] != "#"}

    seen = wait_for(lambda: (lambda p: p if any("cause" in k and v for k, v in p.items()) else None)(page()), "a cause")
    named = {name: value for name, value in seen.items() if name.startswith("watchdog_")}
    assert any("step" in name and value >= 8 for name, value in named.items()), sorted(named)
    assert any('cause="killed"' in name and value == 1 for name, value in named.items()), sorted(named)
    assert any('state="running"' in name and value == 1 for name, value in named.items()), sorted(named)
    assert bed.call("stop", "--now").returncode == 0
    bed.ended(supervisor)
