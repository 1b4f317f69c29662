"""The table of causes in docs/job-contract.md is that of the code: what each spends, and what it takes."""

from __future__ import annotations

import re
from pathlib import Path

from watchdog.core import history
from watchdog.core.causes import REPEATS_ITSELF, Cause, Spends

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "job-contract.md").read_text(encoding="utf-8")


def test_every_cause_is_documented_as_it_is() -> None:
    section = DOCUMENT.partition("## How an end is judged\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", section, re.MULTILINE)
    assert rows == [(cause.value, cause.spends.value, cause.cure.value) for cause in Cause]


def test_what_repeats_itself_spends_the_trainers_ledger() -> None:
    assert {cause.spends for cause in REPEATS_ITSELF} == {Spends.TRAINER}


def test_the_ledgers_word_for_no_failure_is_that_of_the_causes() -> None:
    free = {cause.value for cause in Cause if cause.spends is Spends.NOTHING}
    assert free == {*history._NO_FAILURE, Cause.NOT_STARTED.value}
