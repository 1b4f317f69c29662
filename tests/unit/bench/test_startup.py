"""bench/startup.py: measures whole processes, in turns, and refuses to time what failed. No times are asserted."""

from __future__ import annotations

import sys

import pytest

from bench import startup

OK = frozenset({0})


def python(program: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program]


def test_a_process_is_measured_whole() -> None:
    sample = startup.measure(python("sum(range(3_000_000))"), {}, accept=OK)
    assert sample.wall_s > 0
    assert sample.cpu_s > 0
    assert sample.exit_code == 0


@pytest.mark.parametrize(
    "program", ["raise SystemExit(2)", "import sys; sys.stderr.write('Traceback (most recent call last)')"]
)
def test_a_failed_command_is_not_timed(program: str) -> None:
    with pytest.raises(startup.CommandFailedError, match="exit"):
        startup.measure(python(program), {}, accept=OK)


def test_commands_take_turns_and_the_warm_up_does_not_count() -> None:
    commands = {name: (python("pass"), OK) for name in ("a", "b")}
    samples = startup.in_turns(commands, {}, rounds=2)
    assert {name: len(taken) for name, taken in samples.items()} == {"a": 2, "b": 2}


def test_ratios_are_of_medians() -> None:
    def sample(seconds: float) -> startup.Sample:
        return startup.Sample(wall_s=seconds, cpu_s=seconds / 2, exit_code=0)

    reference = [sample(1.0), sample(2.0), sample(9.0)]
    other = [sample(3.0), sample(3.0), sample(100.0)]
    result = startup.rows({"reference": reference, "other": other}, "reference")
    assert [(row["command"], row["wall ratio"], row["cpu ratio"]) for row in result] == [
        ("reference", 1.0, 1.0),
        ("other", 1.5, 1.5),
    ]
