"""docs/decisions: numbered without gaps, in one form, and each in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
DECISIONS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")


def test_numbers_have_no_gaps_and_no_twins() -> None:
    numbers = [int(path.name[:4]) for path in DECISIONS]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_each_has_the_form_and_is_in_the_index(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.name[:4]} ")
    assert re.search(r"^State: (accepted|superseded by \d{4})$", text, re.MULTILINE)
    for heading in ("## Why", "## Decision", "## What it costs"):
        assert heading in text, f"{path.name} lacks {heading!r}"
    assert f"]({path.name})" in (FOLDER / "README.md").read_text(encoding="utf-8"), f"{path.name} is not in the index"


def test_the_index_names_only_what_is_there() -> None:
    named = set(re.findall(r"\]\(([^)]+\.md)\)", (FOLDER / "README.md").read_text(encoding="utf-8")))
    assert named == {path.name for path in DECISIONS}
