"""Long lines on a terminal."""

from __future__ import annotations

import io
import os
import pty

from watchdog.wrapping import width_of, wrapped


def test_what_follows_stands_under_the_words() -> None:
    line = f"{'HOLD':<11} {'word ' * 20}/a/path/that/is/much/longer/than/a/line/of/this/terminal/and/must/stay-whole"
    found = wrapped(["short", line.rstrip()], 40, 12)
    assert found[0] == "short"
    assert found[1].startswith("HOLD        word word")
    assert all(each.startswith(" " * 12 + "w") for each in found[2:-1]), found
    assert found[-1].strip() == "/a/path/that/is/much/longer/than/a/line/of/this/terminal/and/must/stay-whole"
    assert all(len(each) <= 40 for each in found[:-1])
    assert " ".join(" ".join(found[1:]).split()) == " ".join(line.split()), "nothing is lost"


def test_an_indented_line_keeps_its_column() -> None:
    assert wrapped(["  next      " + "word " * 12], 40, 10)[1].startswith("    word")
    assert wrapped([" " * 14 + "word " * 12], 40, 12)[1].startswith(" " * 14 + "word")


def test_only_a_terminal_has_a_width() -> None:
    assert width_of(io.StringIO()) is None
    assert wrapped(["x " * 500], None, 12) == ["x " * 500]
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        assert (width_of(terminal) or 0) >= 40
    os.close(master)
