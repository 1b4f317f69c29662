"""The verdict over a real run: shown, remembered, and acted on where a run only fakes being alive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.campaign_bed import wait_for
from tests.fakes.nvml.standin import Scenario, build, environment
from tests.host.askers import end_askers
from tests.host.bed import make_bed, script

_TRAINER = """
import pathlib, time
from watchdog import contract
run, once = contract.join(), pathlib.Path(__file__).with_name("faked")
run.beat("first_step", step=0, target_step=40)
for step in range(1, 41):
    time.sleep(0.1)
    run.beat("train", step=step, loss=1.0 / step)
    if step == 10:
        run.beat("evaluate")
        time.sleep(1.5)
        run.beat("train", step=step)
    while step == 30 and not once.exists():
        for _ in range(600):  # something goes on speaking, and nothing is trained
            run.beat("train", step=step, loss=1.0 / step)
            once.with_name("beating").touch()
            time.sleep(0.1)
        once.touch()
run.beat("finished")
"""
_ENDED_ONCE = """
import signal, pathlib, sys
def leave(*_):
    pathlib.Path(__file__).with_name("faked").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
"""


def test_a_run_that_beats_and_takes_no_step_is_ended_and_the_next_one_finishes(tmp_path: Path) -> None:
    settings = {
        "deadlines": {"train": "1s", "first_step": "1s"},
        "limits": {"steps_frozen_factor": 3.0},
        "loop": {"period": "0.2s"},
        "stop": {"grace": "5s"},
    }
    bed = make_bed(tmp_path / "bed", script(tmp_path, _ENDED_ONCE + _TRAINER), level=1, **settings)
    with bed:
        supervisor = bed.start()
        bed.run_at_step(20)
        verdict = bed.status()["verdict"]
        assert (verdict["kind"], verdict["rule"], verdict["evidence"]) == ("healthy", "beats in time", ["beats"])
        shown = bed.call("status").stdout.splitlines()[1]
        assert shown.startswith("verdict     healthy for "), shown
        stop = bed.wait_event("run_stopping")
        assert stop["data"]["cause"] == "stalled", bed.tell()
        assert "steps-frozen: at step 30 for " in stop["data"]["reason"], bed.tell()
        assert bed.wait_event("stacks_kept"), bed.tell()
        assert bed.ended(supervisor) == 0, bed.tell()
        assert [event["data"]["cause"] for event in bed.kinds("run_ended")] == ["stalled", "finished"], bed.tell()
        told = [event["data"]["verdict"] for event in bed.kinds("verdict_changed")]
        assert "healthy" in told, bed.tell()


def test_a_job_that_says_nothing_is_blind_and_left_alone(tmp_path: Path) -> None:
    """One that prints is known to live; from the moment in which it does not, nothing is known of it."""
    body = "import pathlib, time\nquiet = pathlib.Path(__file__).with_name('quiet')\n"
    body += "while True:\n    quiet.exists() or print('at work', flush=True)\n    time.sleep(0.1)\n"
    settings = {"deadlines": {"train": "3s", "start": "1s"}, "loop": {"period": "0.2s"}}
    bed = make_bed(tmp_path / "bed", script(tmp_path, body), level=0, **settings)

    def rule(wanted: str) -> dict[str, object]:
        def look() -> dict[str, object] | None:
            verdict: dict[str, object] = bed.status()["verdict"] or {}
            return verdict if verdict.get("rule") == wanted else None

        return wait_for(look, f"the rule {wanted}\n{bed.tell()}", timeout_s=20)

    with bed:
        bed.start()
        assert rule("output grows")["kind"] == "healthy"
        (tmp_path / "quiet").touch()
        assert rule("nothing to go by")["kind"] == "blind"
        assert not bed.kinds("run_stopping"), bed.tell()
        (tmp_path / "quiet").unlink()
        assert rule("output grows")["kind"] == "healthy"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scenario]:
    made = Scenario(tmp_path / "scenario", "[device]\n")
    for name, value in environment(build(tmp_path), made.path).items():
        monkeypatch.setenv(name, value)
    yield made
    end_askers(made)


def test_a_device_that_is_busy_with_nothing_ends_the_run_only_where_it_takes_no_step(
    tmp_path: Path, driver: Scenario
) -> None:
    """All of it at idle power: while steps advance these are small kernels, and nobody is ended for them."""
    settings = {
        "job": {"devices": ["0"]},
        "checks": {"off": ["steps-frozen"]},
        "deadlines": {"train": "1s", "first_step": "1s"},
        "limits": {"steps_frozen_factor": 3.0},
        "loop": {"period": "0.2s"},
        "stop": {"grace": "5s"},
    }
    trainer = _ENDED_ONCE + _TRAINER.replace("sleep(0.1)", "sleep(0.2)", 1)
    bed = make_bed(tmp_path / "bed", script(tmp_path, trainer), level=1, **settings)
    with bed:
        bed.start()
        run = bed.run_at_step(1)
        busy = "util_sm = 100\npower_mw = 60000\npower_limit_mw = 170000\nmemory_used_mib = 11800\n"
        driver.write(f"[device]\n{busy}process = {run.trainer} 11000 compute python\n")
        bed.run_at_step(29)
        assert bed.status()["verdict"]["kind"] == "healthy", bed.tell()
        stop = bed.wait_event("run_stopping")
        driver.write("[device]\n")
        assert stop["data"]["cause"] == "stalled", bed.tell()
        assert stop["data"]["reason"].startswith("ghost-context: 100 % utilization at 60 W of 170 W"), bed.tell()
        assert f"held by pid {run.trainer} of the run, which lives" in stop["data"]["reason"], bed.tell()
