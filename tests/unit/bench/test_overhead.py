"""bench/overhead.py: whole process trees are measured, stale and silent tools refused, limits judged. No times here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import overhead, overhead_parts, overhead_sampling
from bench.overhead_sampling import LOOP, OURS, Running, Sampling, StandIn, program
from bench.startup import CommandFailedError


@pytest.fixture
def standin(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


def figure(tool: str, cpu_ms: float, devices: int = 1, *, busy: bool = False) -> Sampling:
    return Sampling(
        tool=tool,
        devices=devices,
        busy=busy,
        samples=10.0,
        calls=1.0,
        cpu_s=cpu_ms / 100,
        resident_mib=1.0,
        peak_mib=2.0,
    )


def test_ours_samples_the_standin_with_all_its_processes(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead_sampling, "_COUNTING_S", 1)
    commands = {OURS: overhead_sampling.ours()}
    [found] = overhead_sampling.sampled(commands, standin, devices=2, seconds=2)
    assert (found.tool, found.devices, found.samples) == (OURS, 2, 2.0)
    assert found.cpu_s > 0
    assert found.calls > 2  # of two devices
    assert found.peak_mib >= found.resident_mib > 15  # two interpreters: one alone has about 13


@pytest.mark.parametrize(
    "text",
    ["print('nothing')", "print(432, flush=True); import time; time.sleep(60)"],
    ids=["ended", "an old figure for ever"],
)
def test_who_does_not_show_the_figure_is_refused(text: str, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead_sampling, "_PATIENCE_S", 1.0)
    with (
        contextlib.closing(Running(program(text), standin.environment())) as one,
        pytest.raises(CommandFailedError, match="did not show 765"),
    ):
        one.shows("765")


def test_a_terminals_control_sequences_are_no_text(standin: StandIn) -> None:
    text = r"print('\x1b[1;765H4\x1b[0m32\x1b(B', flush=True); input()"
    with contextlib.closing(Running(program(text), standin.environment())) as one:
        one.shows("432")
        assert "765" not in one.screen()


BUSY = "import time\nwhile time.process_time() < 0.3: pass"


@pytest.mark.parametrize("waited", [True, False], ids=["waited for", "left behind"])
def test_what_a_command_leaves_behind_is_counted(waited: bool) -> None:
    text = f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-I', '-S', '-c', {BUSY!r}])\n"
    with overhead.adopting():
        sample = overhead.measure_all(
            [sys.executable, "-I", "-S", "-c", text + "child.wait()" * waited], {}, frozenset({0})
        )
    assert sample.cpu_s >= 0.3


def test_the_parts_are_of_the_command_as_it_is(standin: StandIn) -> None:
    rows = overhead_parts.parts(standin, rounds=1)
    parts = {str(row["part"]): row["ms"] for row in rows}
    assert {"import typer", "settings", "gather", "judge", "render"} <= parts.keys()
    assert any("in gather" in part for part in parts)
    assert min(parts["gather"], parts["import checks"]) > 0  # type: ignore[type-var, operator]


def test_imports_are_summed_by_whose_they_are() -> None:
    report = """import time: self [us] | cumulative | imported package
import time:       900 |       1000 |   re
import time:       100 |        100 |     watchdog.checks.ecc
import time:      2000 |       2100 |   watchdog.checks
import time:       400 |        400 | watchdog.settings_file
"""
    assert overhead_parts.import_rows(report) == [
        {"modules of": "watchdog.checks", "count": 2, "ms": 2.1},
        {"modules of": "standard library", "count": 1, "ms": 0.9},
        {"modules of": "watchdog settings", "count": 1, "ms": 0.4},
    ]


def test_the_cheapest_peer_as_it_is_run_is_the_measure_for_each_kind_of_devices() -> None:
    figures = [figure(OURS, 1.5), figure(LOOP, 0.5), figure("a", 2.0), figure("b", 9.0), figure("b, library", 0.1)]
    figures += [figure(OURS, 7.0, 8), figure(LOOP, 1.0, 8), figure("a", 20.0, 8), figure("b", 10.0, 8)]
    figures += [figure(OURS, 3.5, busy=True), figure(LOOP, 0.5, busy=True), figure("a", 4.0, busy=True)]
    eight, busy = overhead_sampling.misses(figures)
    assert "devices: 8 idle: 6.00 ms a sample is 0.60 of the 10.00 ms of b" in eight
    assert "devices: 1 busy: 3.00 ms a sample is 0.75 of the 4.00 ms of a" in busy
    ratios = [row["ours / it"] for row in overhead_sampling.rows(figures)]
    assert ratios == ["", "", 0.5, 0.11, 10.0, "", "", 0.3, 0.6, "", "", 0.75]


def test_what_the_loop_costs_without_sampling_is_measured_beside_it(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead_sampling, "_COUNTING_S", 1)
    commands = {LOOP: overhead_sampling.samplers()[LOOP]}
    [found] = overhead_sampling.sampled(commands, standin, devices=1, seconds=2)
    assert (found.samples, found.calls) == (2.0, 0.0)
    assert found.cpu_s > 0


@pytest.mark.parametrize(
    ("wall", "cpu", "words"), [(2.0, 2.0, []), (2.1, 1.0, ["wall time"]), (1.0, 2.1, ["processor time"])]
)
def test_a_diagnosis_that_takes_too_long_is_told(wall: float, cpu: float, words: list[str]) -> None:
    row = {"command": overhead.OURS, "wall ms": 1.0, "cpu ms": 1.0, "wall ratio": wall, "cpu ratio": cpu}
    missed = overhead.misses([row])
    assert len(missed) == len(words)
    assert all(word in sentence for word, sentence in zip(words, missed, strict=True))


@pytest.mark.parametrize(
    ("break_it", "remedy"),
    [
        (lambda patch, folder: patch.setenv("PATH", str(folder)), "apt install gcc"),
        (lambda patch, folder: patch.setattr(sys, "executable", str(folder / "python")), "make dev"),
    ],
    ids=["no compiler", "no tool"],
)
def test_what_is_missing_is_told_with_the_remedy(
    break_it: Callable[[pytest.MonkeyPatch, Path], None],
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    break_it(monkeypatch, tmp_path)
    assert overhead.main(["--seconds", "1", "--rounds", "1"]) == 1
    assert remedy in capsys.readouterr().err
