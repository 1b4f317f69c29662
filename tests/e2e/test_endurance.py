"""Random faults in a row, with the supervisor killed among them: the short form of bench/endurance.py.

The order of the faults follows the seed, their moments do not. What went wrong is kept in the test's folder.
"""

from __future__ import annotations

from pathlib import Path

from bench import endurance

SEED, FAULTS = 20261130, 24


def test_the_invariants_hold_after_random_faults(tmp_path: Path) -> None:
    tally = endurance.play_all(FAULTS, SEED, 4.0, at_a_time=2, keep=tmp_path / "kept", a_job=12)
    kept = "\n".join(path.read_text() for path in (tmp_path / "kept").glob("*-faults.txt"))
    assert not tally.failed, f"{tally.row()}\n{dict(tally.broken)}\n{kept}"
    assert tally.made == FAULTS
    assert tally.supervisors >= FAULTS // 4
    assert tally.figures["adoptions"] > 0
