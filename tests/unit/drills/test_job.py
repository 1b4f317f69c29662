"""The job of the drills: its weights depend on every step, and the data alone decides how it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchdog.drills import job


def test_a_step_left_out_or_done_twice_shows(tmp_path: Path) -> None:
    data = tmp_path / "lessons.gz"
    job.write_data(data, 6)
    lessons = [job.read_lesson(data, step) for step in range(1, 7)]
    ends = []
    for order in (lessons, lessons[:3] + lessons[4:], [*lessons[:3], *lessons[2:]], [*lessons[:2], *lessons[3:1:-1]]):
        weights = job.first_weights()
        for lesson in order:
            assert lesson is not None
            weights, _ = job.advance(weights, lesson)
        ends.append(weights["chain"])
    assert len(set(ends)) == 4
    assert job.final_weights(data, 6)["chain"] == ends[0]


def test_data_that_ends_and_data_that_is_wrong(tmp_path: Path) -> None:
    data = tmp_path / "lessons.gz"
    job.write_data(data, 2)
    assert job.read_lesson(data, 3) is None
    job.put_data(data, "1 0.5\n3 0.25\n")
    with pytest.raises(ValueError, match="has step 3 where step 2 belongs"):
        job.read_lesson(data, 2)
    job.put_data(data, "1 rubbish\n")
    with pytest.raises(ValueError, match="rubbish"):
        job.read_lesson(data, 1)


def test_zeroes_after_the_data_are_no_lesson(tmp_path: Path) -> None:
    data = tmp_path / "lessons.gz"
    job.put_data(data, "1 0.5\n2 0.25\n", zeroes_mib=2)
    assert data.stat().st_size < 65536
    assert len(job.get_data(data)) > 2 * 2**20
    assert job.read_lesson(data, 2) == 0.25
