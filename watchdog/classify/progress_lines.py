"""Reading progress from a line of a trainer's log: step, loss, tokens and their like. Pure; the patterns are data.

Responsible for the ready patterns (Hugging Face Trainer, Lightning, nanoGPT, torchtitan), for a person's own regular
expression with named groups, for telling which ready pattern fits a log, and for telling a training bar from the bars
of an evaluation.
Refuses lines of an evaluation where the line itself says so, and to guess a number that is not written.

Known limits: a line is looked at up to 2,000 characters. The ready patterns take no more than some 30 ms for any of
them. An expression of one's own that can take exponential time is refused by its form (a repetition inside a
repetition); others get through, `(a|a)+` or many `.*`, so only a process that can be lost may search with one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

LINE_LIMIT = 2000
_MOST = 2**63 - 1  # a larger number is no step
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

_NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|NaN|inf(?:inity)?|Infinity)\b"
_COUNT = r"\d[\d,]*"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProgressWord:
    """What one line says; what it does not say is None. `tokens_per_s` as the trainer counts (torchtitan: a device).

    `bar`: the step was counted by a progress bar, which may be of something else (`BarSieve`).
    """

    step: int | None = None
    target_step: int | None = None
    loss: float | None = None
    tokens: int | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    epoch: float | None = None
    bar: bool = False


# What a group of a person's own expression may be called. The ready ones have some more: `batch` and `batches` count
# within an epoch and `epochs_less_one` is the last epoch's number, the step is put together from them; `step_ms` and
# `rate` (steps a second) become `step_s`; `bar` is empty, and marks a progress bar.
GROUPS = ("step", "target_step", "loss", "tokens", "tokens_per_s", "step_s", "gradient_norm", "learning_rate", "epoch")
_PROGRESS = frozenset({"step", "loss", "tokens"})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """Expressions that are searched for in a line, the later ones adding to what the earlier found.

    `never`: a line with it is no training step. `sign`: a line that only this kind of log has.
    """

    name: str
    expressions: tuple[re.Pattern[str], ...]
    never: re.Pattern[str] | None = None
    sign: re.Pattern[str] | None = None


def _entry(key: str, group: str, number: str = _NUMBER) -> str:
    """One entry of a printed dictionary, if it is there; transformers 3 wrote JSON, 5 writes the values as strings."""
    return rf"(?=(?:.*?['\"]{key}['\"]: '?(?P<{group}>{number}))?)"


# `10/500 [00:10<08:10,  1.00s/it, ...]`, the end of a tqdm bar. Greedy, so of several bars in a line the last counts.
# The bound and the possessive `*+` below keep a line of many half bars from taking seconds.
_TQDM = rf"(?P<{{step}}>{_COUNT})/(?P<{{target}}>{_COUNT}|\?) \[[\d:]+<[^,\]]{{{{0,40}}}}+, *"
_SPEED = rf"(?:(?P<rate>{_NUMBER})(?:it|batch)/s|(?P<step_s>{_NUMBER})s/(?:it|batch))?"

READY: dict[str, Pattern] = {
    pattern.name: pattern
    for pattern in (
        Pattern(
            name="huggingface",
            # The bar of training has no description, or says so; others are those of tokenizing, loading, evaluating.
            expressions=(
                re.compile(
                    r"^(?:.*[\]}])?\s*+(?:(?:Train|Training|Steps)\w*:\s*+)?\d+%\|.*\| *"
                    + _TQDM.format(step="step", target="target_step")
                    + r"(?P<bar>)"
                    + _SPEED
                ),
                re.compile(
                    rf"\{{(?=.*?['\"]loss['\"]: '?(?P<loss>{_NUMBER}))"
                    + _entry("grad_norm", "gradient_norm")
                    + _entry("learning_rate", "learning_rate")
                    + _entry("epoch", "epoch")
                    + _entry("num_(?:input_)?tokens(?:_seen)?", "tokens", r"[\d.]+(?:e\+?\d+)?")
                    + _entry("(?:global_)?step(?:/max_steps)?", "step", _COUNT)
                ),
            ),
            never=re.compile(r"'eval_\w+': |'train_runtime': "),
            sign=re.compile(r"\{[^{}]*['\"]loss['\"]: '?[-+\dni]"),
        ),
        Pattern(
            name="lightning",
            expressions=(
                re.compile(
                    r"^.*\bEpoch (?P<epoch>\d+): +\d+%(?:\|.*\|)? *"  # in a notebook without its bars
                    + _TQDM.format(step="batch", target="batches")
                    + r"(?P<bar>)"
                    + _SPEED
                ),
                re.compile(r"^.*\bEpoch (?P<epoch>\d+):.*?\| *(?P<batch>\d+)/\? \[[\d:]+<"),  # no length: no total
                re.compile(
                    r"^.*\bEpoch (?P<epoch>\d+)(?:/(?P<epochs_less_one>\d+))? +[━╸╺╶╴─ ]+ "
                    rf"(?P<batch>{_COUNT})/(?P<batches>{_COUNT}) [\d:]+ • [-\d:]+ (?P<bar>)" + _SPEED
                ),
                re.compile(rf"^.*(?<![\w/])train[_/]loss(?:_step)?[=:] *(?P<loss>{_NUMBER})"),
                re.compile(rf"^.*(?<![\w/])loss[=:] *(?P<loss>{_NUMBER})"),  # before 2.0, Lightning's own
            ),
            never=re.compile(r"^\s*(?:Validation|Validating|Sanity Checking|Testing|Predicting)\b"),
            sign=re.compile(r"\bEpoch \d+(?:: +\d+%[ |]|:.*\d/\? \[|(?:/\d+)? +[━╸╺╶╴─]+ )"),
        ),
        Pattern(
            name="nanogpt",
            expressions=(
                re.compile(
                    rf"\biter (?P<step>{_COUNT}): loss (?P<loss>{_NUMBER})(?:, time (?P<step_ms>{_NUMBER}) ?ms)?"
                ),
            ),
            sign=re.compile(r"\biter \d+: loss "),  # `step 250: train loss ..., val loss ...` is an evaluation
        ),
        Pattern(
            name="torchtitan",
            expressions=(
                re.compile(
                    rf"(?<!\w )\bstep: *(?P<step>{_COUNT}) +loss: *(?P<loss>{_NUMBER})"
                    rf"(?: +grad_norm: *(?P<gradient_norm>{_NUMBER}))?(?:.*? tps: *(?P<tokens_per_s>{_NUMBER}))?"
                ),
            ),
            never=re.compile(r"\bvalidate step:"),
            sign=re.compile(r"(?<!validate )\bstep: *\d+ +loss: .* tps: "),
        ),
    )
}


def plain(line: str) -> str:
    """The line as a person would read it: bounded, and without escape sequences."""
    return _ESCAPES.sub("", line[: 2 * LINE_LIMIT])[:LINE_LIMIT]


def parse(line: str, pattern: Pattern) -> ProgressWord | None:
    """What the line says of the training, None when it says nothing of it."""
    line = plain(line)
    if pattern.never is not None and pattern.never.search(line):
        return None
    groups: dict[str, str] = {}
    for expression in pattern.expressions:
        match = expression.search(line)
        if match is not None:
            groups.update((name, text) for name, text in match.groupdict().items() if text is not None)
    return word_of(groups)


def word_of(groups: dict[str, str]) -> ProgressWord | None:
    """What the groups of a match say, None when none of it is progress."""
    word = _word(groups)
    return word if word.step is not None or word.loss is not None or word.tokens is not None else None


def _word(groups: dict[str, str]) -> ProgressWord:
    counts = {name: _count(text) for name, text in groups.items()}
    numbers = {name: _number(text) for name, text in groups.items()}
    step, target = counts.get("step"), counts.get("target_step")
    if "batch" in groups:
        step, target = counts["batch"], None
        batches, epoch, last = counts.get("batches"), counts.get("epoch"), counts.get("epochs_less_one")
        if step is not None and batches is not None and epoch is not None:
            step += epoch * batches
            target = None if last is None else (last + 1) * batches
    step_s, rate, step_ms = numbers.get("step_s"), numbers.get("rate"), numbers.get("step_ms")
    if step_s is None and rate:
        step_s = 1 / rate
    if step_s is None and step_ms is not None:
        step_s = step_ms / 1000
    return ProgressWord(
        step=step,
        target_step=target,
        loss=numbers.get("loss"),
        tokens=counts.get("tokens"),
        tokens_per_s=numbers.get("tokens_per_s"),
        step_s=step_s,
        gradient_norm=numbers.get("gradient_norm"),
        learning_rate=numbers.get("learning_rate"),
        epoch=numbers.get("epoch"),
        bar="bar" in groups,
    )


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _count(text: str) -> int | None:
    """Whole numbers, also as `12,000` or `12000.0`; nothing else counts anything."""
    number = _number(text)
    if number is None or not 0 <= number <= _MOST or number != int(number):
        return None
    digits = text.replace(",", "")
    return int(digits) if digits.isdecimal() else int(number)


class PatternError(ValueError):
    """An expression that cannot be used, and why, in one line."""


def compile_own(text: str) -> Pattern:
    """A person's own expression, searched for in each line. Raises PatternError."""
    allowed = ", ".join(GROUPS)
    try:
        expression = re.compile(text)
    except re.error as error:
        where = "" if error.pos is None else f" at character {error.pos + 1}"
        raise PatternError(f"{text!r} is no regular expression: {error.msg}{where}") from error
    except (OverflowError, RecursionError) as error:
        raise PatternError(f"{text[:100]!r} is too much for a regular expression: {error}") from error
    unknown = sorted(set(expression.groupindex) - set(GROUPS))
    if unknown:
        raise PatternError(f"{text!r} names the group {unknown[0]!r}; a group is one of {allowed}")
    if not set(expression.groupindex) & _PROGRESS:
        raise PatternError(f"{text!r} has no group named step, loss or tokens: write (?P<step>\\d+) around the number")
    if _repeats_a_repetition(text):
        raise PatternError(
            f"{text!r} repeats a group that itself holds a repetition: such an expression can take hours for one line; "
            "repeat only one of the two"
        )
    return Pattern(name="own", expressions=(expression,))


_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<open>\((?:\?(?:P<\w+>|[:=!>]|<[=!]|[a-zA-Z-]+:))?)|(?P<close>\))"
    r"|(?P<many>[*+]|\{\d*,\d*\})(?P<how>[+?]?)|.",
    re.DOTALL,
)


def _repeats_a_repetition(text: str) -> bool:
    """`(a+)+`: each further character doubles the time. Possessive repetitions (`a++`) do not go back, and are fine."""
    inside = [False]  # for each open group: does it hold a repetition without end?
    closed = False  # the piece before this one is a group that holds one
    for token in _TOKEN.finditer(text):
        if token["open"]:
            inside.append(False)
            closed = False
        elif token["close"] and len(inside) > 1:
            closed = inside.pop()
            inside[-1] = inside[-1] or closed
        elif token["many"] and token["how"] != "+":
            if closed:
                return True
            inside[-1] = True
            closed = False
        else:
            closed = False
    return False


def pattern_of(text: str) -> Pattern:
    """A ready pattern by its name, else an expression of one's own. Raises PatternError."""
    if text in READY:
        return READY[text]
    if re.fullmatch(r"[A-Za-z]+", text):
        raise PatternError(f"no ready pattern is called {text!r}; there are {', '.join(READY)}")
    return compile_own(text)


def detect(lines: Sequence[str]) -> str | None:
    """The ready pattern that fits these lines, None while none does: two lines must bear its sign."""
    signs = {name: 0 for name in READY}
    for line in lines:
        text = plain(line)
        for name, pattern in READY.items():
            signs[name] += pattern.sign is not None and pattern.sign.search(text) is not None
    best = max(signs, key=lambda name: signs[name])
    return best if signs[best] >= 2 else None


class BarSieve:
    """Lets through the training bar, and holds back the bars of other things that look the same.

    A Hugging Face evaluation draws its bar exactly as training does; only the total differs. The training bar is the
    one before a line with a training loss, and until there is one, the first. Lines without a bar pass.
    """

    def __init__(self) -> None:
        self._total: int | None = None
        self._last_total: int | None = None

    def pass_on(self, word: ProgressWord) -> ProgressWord | None:
        """The word, without the step of a bar that is not the training's; None when nothing is left of it."""
        if word.bar:
            self._last_total = word.target_step
            self._total = self._total if self._total is not None else word.target_step
        if word.loss is not None and self._last_total is not None:
            self._total = self._last_total
        if not word.bar or word.target_step == self._total:
            return word
        if word.loss is None and word.tokens is None:
            return None
        return dataclasses.replace(word, step=None, target_step=None, step_s=None)
