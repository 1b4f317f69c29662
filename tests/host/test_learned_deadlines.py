"""Deadlines that learn, with a real supervisor over a real trainer that hangs once."""

from __future__ import annotations

from pathlib import Path

from tests.host.bed import make_bed, script

_TRAINER = """
import pathlib, time
from watchdog import contract
run, once = contract.join(), pathlib.Path(__file__).with_name("hung")
again = once.exists()
run.beat("load")
run.beat("first_step", step=0, target_step=100)
for step in range(1, 101):
    time.sleep(0.02 if again else 0.2)
    run.beat("train", step=step)
    if step == 95 and not again:
        once.touch()
        time.sleep(600)
    if step == 55:
        run.beat("evaluate")
        time.sleep(0.5 if again else 6)
        run.beat("train")
    if step % 10 == 0:
        run.beat("save")
        time.sleep(0.3)
        run.beat("train", checkpoint_step=step)
run.beat("finished")
"""
_FLOOR_S = 4.0


def test_a_hang_is_called_by_what_this_job_has_taken_so_far(tmp_path: Path) -> None:
    """Two minutes are configured for a step; steps of 0.2 s bring that down to the floor, also for the supervisor after
    the one that learned it. An evaluation longer than that floor is no stall."""
    settings = {"deadlines": {"train": "2m", "floor": f"{_FLOOR_S:g}s"}, "loop": {"period": "0.2s"}}
    bed = make_bed(tmp_path / "bed", script(tmp_path, _TRAINER), level=1, **settings)
    with bed:
        supervisor = bed.start()
        run = bed.run_at_step(2)
        assert bed.status()["run"]["beat_deadline_s"] == 120.0
        bed.run_at_step(50)
        assert bed.status()["run"]["beat_deadline_s"] == _FLOOR_S, bed.tell()
        bed.run_at_step(60)
        assert not bed.kinds("run_stopping"), bed.tell()
        learned = bed.kinds("phase_time")
        assert {event["data"]["phase"] for event in learned} >= {"train", "save"}, bed.tell()
        assert len(learned) < 12, bed.tell()
        bed.kill_supervisor(supervisor)
        bed.config.write_text(bed.config.read_text().replace('period = "0.2s"', 'period = "1s"'))
        supervisor = bed.start()
        bed.run_at_step(95)
        allowed_s = bed.status()["run"]["beat_deadline_s"]
        assert _FLOOR_S <= allowed_s < 10, bed.tell()
        stop = bed.wait_event("run_stopping")
        assert (stop["data"]["run_id"], stop["data"]["cause"]) == (run.run_id, "stalled"), bed.tell()
        silent_s = stop["monotonic_s"] - stop["data"]["beat_s"]
        assert allowed_s < silent_s <= allowed_s + 1.0, bed.tell()
        assert bed.kinds("deadline_doubted")[0]["data"]["step"] == 95
        assert bed.ended(supervisor) == 0, bed.tell()
        assert [event["data"]["cause"] for event in bed.kinds("run_ended")] == ["stalled", "finished"], bed.tell()
        assert all(event["data"]["longest_s"] < 10 for event in bed.kinds("phase_time")), bed.tell()
