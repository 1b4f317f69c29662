"""The guest stays small: memory is not noisy as time is, so it can be a test."""

from __future__ import annotations

from pathlib import Path

from bench.footprint import measure


def test_the_supervisor_stays_under_60_and_the_shim_under_15_mib(tmp_path: Path) -> None:
    found = measure(tmp_path, busy_s=2.0)
    assert 5 < found.supervisor_mib < 60
    assert 5 < found.shim_mib < 15
