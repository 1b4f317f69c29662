"""The template: filled argument by argument, and what is wrong with one is said by name."""

from __future__ import annotations

import pytest

from watchdog.core.notice import PLACEHOLDERS, SUMMARY_CHARACTERS, filled, one_line, wrong_with

VALUES = dict.fromkeys(PLACEHOLDERS, "x")


def test_an_argument_stays_one_argument_whatever_is_filled_in() -> None:
    hostile = "a b; rm -rf / $(id) 'q' \"w\" {job}\n--flag"
    assert filled(["tell", "--title={event}", "{summary}"], VALUES | {"event": "hold", "summary": hostile}) == (
        "tell",
        "--title=hold",
        hostile,
    )


def test_what_was_filled_in_is_not_filled_in_again() -> None:
    assert filled(["t", "{job}{run}"], VALUES | {"job": "{run}", "run": "7"}) == ("t", "{run}7")


def test_other_braces_are_text() -> None:
    template = ["curl", "-d", '{"text": "{summary}", "n": {"a": 1}}', "{}", "{0}"]
    assert wrong_with(template) == ""
    assert filled(template, VALUES)[2:] == ('{"text": "x", "n": {"a": 1}}', "{}", "{0}")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (["tell", "{sumary}"], "argument 1 holds the unknown placeholder {sumary}; allowed are {event}, {job}, {run}"),
        (["tell", "{event}", "${HOME}"], "argument 2 holds the unknown placeholder {HOME}"),
        (["tell", "{Event}"], "{Event}"),
        (["{job}"], "the program holds the placeholder {job}"),
        (["./tell"], "must be a name that is looked up on PATH, or an absolute path"),
        (["", "x"], "the program, is empty"),
        (["tell", "a\0b"], "NUL"),
    ],
)
def test_what_is_wrong_is_named(template: list[str], words: str) -> None:
    assert words in wrong_with(template)


def test_no_command_is_none() -> None:
    assert wrong_with([]) == ""


def test_a_summary_is_one_line_and_bounded() -> None:
    assert one_line("two\nlines\x1b[31m\tred") == "two lines [31m red"
    assert len(one_line("x" * 5000)) == SUMMARY_CHARACTERS
