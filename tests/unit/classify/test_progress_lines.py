"""Lines of logs: what each ready pattern reads, what it must not, and a person's own expression."""

from __future__ import annotations

import math
import time

import pytest

from tests.unit.classify import progress_lines as real
from watchdog.classify.progress_lines import (
    READY,
    BarSieve,
    PatternError,
    ProgressWord,
    compile_own,
    detect,
    parse,
    pattern_of,
)

PROGRESS = {
    "huggingface": real.HUGGING_FACE_PROGRESS,
    "lightning": real.LIGHTNING_PROGRESS,
    # `step N: train loss` is written before the step is made, and is an evaluation.
    "nanogpt": tuple(each for each in real.NANOGPT_PROGRESS if not each[0].startswith("step ")),
    "torchtitan": real.TORCHTITAN_PROGRESS,
}
MISLEADING = {
    "huggingface": real.HUGGING_FACE_MISLEADING,
    "lightning": real.LIGHTNING_MISLEADING,
    "nanogpt": (
        *real.NANOGPT_MISLEADING,
        *(line for line, _, _ in real.NANOGPT_PROGRESS if line.startswith("step ")),
    ),
    "torchtitan": real.TORCHTITAN_MISLEADING,
}


@pytest.mark.parametrize(
    ("name", "line", "step", "loss"), [(name, *entry) for name, entries in PROGRESS.items() for entry in entries]
)
def test_real_lines_are_read(name: str, line: str, step: int | None, loss: str | None) -> None:
    word = parse(line, READY[name])
    assert word is not None
    if name == "lightning" and step is not None and word.epoch and not line.startswith("Epoch 0"):
        step += int(word.epoch) * 870  # the batches of the one line from a later epoch
    assert word.step == step
    if loss is None:
        assert word.loss is None
    else:
        assert word.loss is not None
        assert word.loss == float(loss) or (math.isnan(word.loss) and loss == "nan")


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in MISLEADING.items() for line in lines])
def test_real_lines_that_look_alike_are_not(name: str, line: str) -> None:
    assert parse(line, READY[name]) is None


def read(line: str, name: str) -> ProgressWord:
    word = parse(line, READY[name])
    assert word is not None
    return word


def test_everything_that_a_line_says() -> None:
    assert read("iter 250: loss 2.5, time 125.00ms, mfu 12.34%", "nanogpt") == ProgressWord(
        step=250, loss=2.5, step_s=0.125
    )
    titan = "\x1b[31mstep: 10  \x1b[32mloss: 7.5  \x1b[38;2;1;2;3mgrad_norm: 1.25  \x1b[39mmemory: 1GiB(1%)  tps: 1,234"
    assert read(titan, "torchtitan") == ProgressWord(step=10, loss=7.5, gradient_norm=1.25, tokens_per_s=1234.0)
    both = (
        "Train:   2%|▏  | 1/60 [00:55<54:36, 55.50s/it]{'loss': '0.5', 'grad_norm': '0.25', 'learning_rate': '3e-05', "
        "'num_tokens': '4096.0', 'epoch': '0.5', 'global_step/max_steps': '1/60'}"
    )
    assert read(both, "huggingface") == ProgressWord(
        step=1,
        target_step=60,
        loss=0.5,
        tokens=4096,
        step_s=55.5,
        gradient_norm=0.25,
        learning_rate=3e-05,
        epoch=0.5,
        bar=True,
    )
    rich = read("Epoch 1/9  ━━━╺━━━━━━━━ 2/6 0:00:10 • -:--:-- 0.50it/s loss: 1.63  ", "lightning")
    assert (rich.step, rich.target_step, rich.loss, rich.step_s) == (8, 60, 1.63, 2.0)


def test_of_several_bars_in_a_line_the_last_counts() -> None:
    line = "  0%|          | 0/60 [00:00<?, ?it/s]  5%|▏         | 3/60 [00:55<54:36, 55.53s/it]"
    assert read(line, "huggingface").step == 3


@pytest.mark.parametrize("number", ["99999999999999999999", "9" * 1500])
def test_a_number_that_is_no_step_is_none(number: str) -> None:
    assert read(f"iter {number}: loss 1.0", "nanogpt").step is None


@pytest.mark.parametrize("name", PROGRESS)
def test_a_log_is_told_by_its_lines(name: str) -> None:
    lines = [line for line, _, _ in PROGRESS[name]]
    assert detect([*real.NANOGPT_MISLEADING, *lines, *MISLEADING[name]]) == name
    assert detect(MISLEADING[name]) is None


def test_a_bar_alone_is_anybodys() -> None:
    assert detect([" 10%|█         | 50/500 [00:10<01:30,  5.00it/s]"] * 9) is None


def test_an_own_expression_is_searched_for_and_says_what_it_names() -> None:
    pattern = compile_own(r"\[(?P<step>\d+)/(?P<target_step>\d+)\].*?L=(?P<loss>\S+)(?: tok (?P<tokens>[\d,]+))?")
    assert parse("12:00 [7/90] x L=1.5 tok 12,000", pattern) == ProgressWord(
        step=7, target_step=90, loss=1.5, tokens=12000
    )
    assert parse("[7/90] L=2", pattern) == ProgressWord(step=7, target_step=90, loss=2.0)
    assert parse("[7] L=2", pattern) is None
    assert parse("L=abc", compile_own(r"L=(?P<loss>\w+)")) is None  # no number, no word


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (r"(?P<step>\d+", "is no regular expression: missing ), unterminated subpattern at character 1"),
        (r"(?P<stp>\d+)", "names the group 'stp'; a group is one of step, target_step, loss"),
        (r"step \d+", "has no group named step, loss or tokens"),
        (r"(?P<epoch>\d+)", "has no group named step, loss or tokens"),
        (r"(?P<step>(\d+)+)x", "repeats a group that itself holds a repetition"),
        (r"((?:a*)b{2,})*(?P<step>\d)", "repeats a group that itself holds a repetition"),
        (r"(x(y(z+)))*(?P<step>\d)", "repeats a group that itself holds a repetition"),
        (
            "hugginface",
            "no ready pattern is called 'hugginface'; there are huggingface, lightning, nanogpt, torchtitan",
        ),
    ],
)
def test_an_expression_that_cannot_be_used_says_why(text: str, words: str) -> None:
    with pytest.raises(PatternError) as error:
        pattern_of(text)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "text", [r"(?P<step>\d+)", r"a[(+*)]+\)+\(*(?P<step>\d+)", r"(?:\d++)+(?P<loss>.)", r"(ab)+c*(?P<step>\d{1,3})"]
)
def test_an_expression_that_only_looks_dangerous_is_taken(text: str) -> None:
    assert pattern_of(text).name == "own"


@pytest.mark.parametrize("name", READY)
@pytest.mark.parametrize(
    "piece",
    ["{", "'loss': ", "{'loss': ", "5%|", "Epoch 1: 5%|", "Epoch 1 ━ ", "step: 1 loss: 1 ", " ", "9", "1,", "\x1b["],
)
def test_no_line_takes_long(name: str, piece: str) -> None:
    """Measured: 25 ms at worst. The bound is loose for a loaded machine; what it must find takes minutes."""
    started = time.process_time()
    parse(piece * 4000, READY[name])
    assert time.process_time() - started < 2


@pytest.mark.parametrize("name", READY)
@pytest.mark.parametrize(
    "line",
    [
        " " * 600 + "100%|" + "| 1/1 [00:00<0" * 100,  # measured: 0.1 s before the first piece became possessive
        "]1%|" * 150 + "| 1/1 [0<" * 30 + "9" * 1200,
        "Epoch 1: 1%|" * 60 + "| 1/1 [0<" * 60 + "9" * 800,
        "{" * 1000 + "'loss': '" * 120,
    ],
)
def test_no_line_of_several_pieces_takes_long(name: str, line: str) -> None:
    started = time.process_time()
    for _ in range(5):
        parse(line, READY[name])
    assert time.process_time() - started < 1


def bar(step: int, total: int) -> ProgressWord:
    return ProgressWord(step=step, target_step=total, bar=True)


def test_the_bar_of_an_evaluation_is_held_back() -> None:
    sieve = BarSieve()
    assert sieve.pass_on(bar(50, 500)) == bar(50, 500)
    assert sieve.pass_on(ProgressWord(loss=2.0)) == ProgressWord(loss=2.0)
    assert sieve.pass_on(bar(1, 20)) is None
    assert sieve.pass_on(bar(51, 500)) == bar(51, 500)


def test_a_log_that_begins_inside_an_evaluation_comes_right_with_the_first_loss() -> None:
    sieve = BarSieve()
    sieve.pass_on(bar(3, 20))
    assert sieve.pass_on(bar(50, 500)) is None
    sieve.pass_on(ProgressWord(loss=2.0))
    assert sieve.pass_on(bar(51, 500)) == bar(51, 500)
    assert sieve.pass_on(bar(4, 20)) is None
