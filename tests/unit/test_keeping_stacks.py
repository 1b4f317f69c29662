"""Keeping stacks beside the loop: one record of each, no failure and no hang is passed on, and no second thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from watchdog import keeping_stacks
from watchdog.actuators.stacks import Kept, Order
from watchdog.clock import SystemClock
from watchdog.core.stacks import Stacks
from watchdog.folders import RunFolder
from watchdog.keeping_stacks import StackKeeper


class Ahead(SystemClock):
    """The machine's clock, set ahead by as much as a test wants."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Book:
    def __init__(self) -> None:
        self.written: list[tuple[str, str, dict[str, Any]]] = []

    def note(self, kind: str, sentence: str, **data: Any) -> None:
        self.written.append((kind, sentence, data))


def watch_of(folder: Path, number: int = 1) -> Any:
    """As much of a RunWatch as is asked for."""
    record = SimpleNamespace(number=number, run_id=f"{number}-a")
    return SimpleNamespace(record=record, start=None, folder=RunFolder(path=folder))


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def clock() -> Ahead:
    return Ahead()


@pytest.fixture
def keeper(book: Book, clock: Ahead) -> StackKeeper:
    return StackKeeper(clock, book.note)


def test_a_run_of_nobody_is_kept_as_that(
    tmp_path: Path, keeper: StackKeeper, book: Book, wait_until: Callable[..., object]
) -> None:
    keeper.begin(watch_of(tmp_path), (), None)
    wait_until(lambda: keeper.look() or keeper.over, "the end of the keeping")
    [(kind, sentence, data)] = book.written
    assert kind == "stacks_kept"
    assert sentence.startswith("run 1: nobody of it could be looked at; 0 processes, 0 threads, kept in ")
    assert (data["path"], data["run_id"], data["frames"]) == (str(tmp_path / "stacks.txt"), "1-a", [])
    keeper.look()
    assert len(book.written) == 1


def test_what_fails_is_said(
    tmp_path: Path,
    keeper: StackKeeper,
    book: Book,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: Callable[..., object],
) -> None:
    def fail(order: Order, clock: object) -> Kept:
        raise ValueError("a defect of ours")

    monkeypatch.setattr(keeping_stacks, "keep_stacks", fail)
    keeper.begin(watch_of(tmp_path), (), None)
    wait_until(lambda: keeper.look() or keeper.over, "the end of the keeping")
    [(kind, sentence, data)] = book.written
    assert (kind, data["path"]) == ("stacks_kept", None)
    assert "run 1: its stacks could not be kept: stacks: ValueError: a defect of ours" in sentence


def test_one_that_hangs_is_given_up_and_gets_no_second_beside_it(
    tmp_path: Path,
    keeper: StackKeeper,
    book: Book,
    clock: Ahead,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: Callable[..., object],
) -> None:
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def hang(order: Order, clock: object) -> Kept:
        calls.append(order)
        begun.set()
        go_on.wait(30)
        return Kept(stacks=Stacks(looks=()), words="late", frames=())

    monkeypatch.setattr(keeping_stacks, "keep_stacks", hang)
    keeper.begin(watch_of(tmp_path), (), None)
    assert begun.wait(10)
    keeper.look()
    assert not keeper.over
    clock.ahead_s = 60.0
    keeper.look()
    assert keeper.over
    keeper.begin(watch_of(tmp_path, 2), (), None)
    assert keeper.over
    assert [sentence[:40] for _, sentence, _ in book.written] == [
        "run 1: its stacks could not be kept: sta",
        "run 2: its stacks could not be kept: the",
    ]
    assert len(calls) == 1
    go_on.set()

    def again() -> bool:
        keeper.begin(watch_of(tmp_path, 3), (), None)
        return not keeper.over

    wait_until(again, "a keeping that may begin")
    wait_until(lambda: keeper.look() or keeper.over, "the end of the keeping")
    assert book.written[-1][1].startswith("run 3: late; ")
    assert len(calls) == 2
