"""bench/record.py: results are added between the markers, with their surroundings, and nothing else is touched."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from bench import record

FRAME = f"# Benchmarks\n\n{record.BEGIN}\n\n{record.END}\n\nafter\n"


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "benchmarks.md"
    path.write_text(FRAME, encoding="utf-8")
    return path


def test_blocks_are_added_in_order_between_the_markers(document: Path) -> None:
    record.append("first", [{"what": "a|b", "ratio": 1.23456}], seed=7, document=document)
    once = document.read_text(encoding="utf-8")
    record.append("second", [{"what": "c", "ratio": 2.0}], details={"rounds": 3}, document=document)
    text = document.read_text(encoding="utf-8")
    assert text.startswith(once[: once.index(record.END)])
    assert text.endswith(f"{record.END}\n\nafter\n")
    assert text.index("### first") < text.index("### second") < text.index(record.END)
    assert "| a\\|b | 1.235 |" in text
    assert "- seed: 7" in text
    assert "- seed: none" in text
    assert '{"rounds": 3}' in text
    assert text.count("- commit: ") == text.count("- processor: ") == text.count("- python: ") == 2


def test_a_document_without_markers_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.md"
    path.write_text("# Benchmarks\n", encoding="utf-8")
    with pytest.raises(ValueError, match="put them back"):
        record.append("first", [{"ratio": 1.0}], document=path)
    assert path.read_text(encoding="utf-8") == "# Benchmarks\n"


def test_rows_with_other_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="columns"):
        record.table([{"a": 1}, {"b": 2}])


def test_numbers_that_json_cannot_carry_are_refused() -> None:
    when = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    with pytest.raises(ValueError, match="JSON"):
        record.block("x", [{"a": 1}], seed=None, details={"a": float("nan")}, when=when, where={})


@pytest.mark.parametrize(
    ("text", "name"),
    [("processor\t: 0\nmodel name\t: Some CPU @ 3GHz\nmodel name\t: Other\n", "Some CPU @ 3GHz"), ("", None)],
)
def test_the_processor_is_named(text: str, name: str | None) -> None:
    assert record.processor(text) == (name or record.platform.machine())


def test_the_real_document_has_its_markers() -> None:
    text = record.DOCUMENT.read_text(encoding="utf-8")
    assert text.index(record.BEGIN) < text.index(record.END)
