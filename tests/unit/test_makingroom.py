"""The one try before a launch: looked at again, recorded, done, recorded; in that order or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.host.test_reclaim import GIB, MIB, Host
from watchdog.actuators.reclaim import Reclaimer
from watchdog.clock import SystemClock
from watchdog.core.fact import Known
from watchdog.core.facts import Memory
from watchdog.core.gates import memory_gate
from watchdog.core.state import Record
from watchdog.errors import RecordingError
from watchdog.makingroom import RoomMaker, RunLives, left_to_a_person
from watchdog.policy import policy_from
from watchdog.settings import Settings, load

Wait = Callable[..., object]


class Book:
    """A ledger in memory, which may refuse; notes what the kernel had been told when each record came."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.records: list[Record] = []
        self.told: list[str] = []
        self.refuses = False
        self.run_lives = False

    def record(self, records: Sequence[Record]) -> None:
        if self.refuses:
            raise RecordingError("the disk is full")
        self.records += records
        self.told.append(self.host.text("drop_caches"))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """2,500 MiB available, 1,000 unused, 3,000 to be had when all cache is gone."""
    return Host(tmp_path / "host")


@pytest.fixture
def book(host: Host) -> Book:
    return Book(host)


@pytest.fixture
def room(host: Host, book: Book) -> RoomMaker:
    return RoomMaker(
        Reclaimer(host.roots, SystemClock(), sync=[host.base]), SystemClock(), book.record, lambda: book.run_lives
    )


def ended(room: RoomMaker, wait_until: Wait) -> str:
    def over() -> bool:
        room.look()
        return room.over

    wait_until(over, "the try to end")
    return room.words


def test_it_is_recorded_before_and_after_what_is_done(
    host: Host, book: Book, room: RoomMaker, wait_until: Wait
) -> None:
    room.begin(2800 * MIB)
    words = ended(room, wait_until)
    assert [record.kind for record in book.records] == ["reclaiming", "reclaimed"]
    assert book.told == ["", "3"]
    assert book.records[0].data["before"]["available_bytes"] == 2500 * MIB
    assert "2.4 GiB available, 2.7 needed" in book.records[0].sentence
    assert book.records[1].data["met"] is False
    assert words.startswith("0.00 GiB came back from reclaim")


def test_what_cannot_be_recorded_is_not_done(host: Host, book: Book, room: RoomMaker, wait_until: Wait) -> None:
    book.refuses = True
    room.begin(2800 * MIB)
    assert "cannot be recorded: the disk is full" in ended(room, wait_until)
    assert host.text("drop_caches") == ""


def test_nothing_is_dropped_in_vain_nor_recorded(host: Host, book: Book, room: RoomMaker, wait_until: Wait) -> None:
    room.begin(100 * GIB)
    assert "2.9 GiB at most, 100.0 are needed" in ended(room, wait_until)
    assert (book.records, host.text("drop_caches")) == ([], "")


def test_room_that_came_by_itself_needs_no_words(host: Host, book: Book, room: RoomMaker, wait_until: Wait) -> None:
    host.free(7000)
    room.begin(2800 * MIB)
    assert ended(room, wait_until) == ""
    assert book.records == []


def test_a_host_that_cannot_be_seen_is_left_alone(host: Host, book: Book, room: RoomMaker, wait_until: Wait) -> None:
    host.write("/proc/meminfo", "")
    room.begin(2800 * MIB)
    assert "cannot be seen" in ended(room, wait_until)
    assert book.records == []


def test_a_run_that_somebody_started_by_hand_keeps_its_cache(
    host: Host, book: Book, room: RoomMaker, wait_until: Wait
) -> None:
    book.run_lives = True
    room.begin(2800 * MIB)
    assert "a run is alive" in ended(room, wait_until)
    assert (book.records, host.text("drop_caches")) == ([], "")


@pytest.mark.parametrize("mode", [fcntl.LOCK_SH, fcntl.LOCK_EX])
def test_a_run_is_seen_by_its_lock(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "run.lock"
    lives = RunLives(str(path), SystemClock())
    assert not lives(), "there never was one"
    with open(path, "w") as file:
        assert not lives()
        fcntl.flock(file, mode)
        assert lives()
        assert f"pid {os.getpid()}" in lives.why
    assert not lives()
    assert lives.why == ""


def test_a_lock_that_cannot_be_seen_may_be_held(tmp_path: Path) -> None:
    path = tmp_path / "loop"
    path.symlink_to(path)
    lives = RunLives(str(path / "run.lock"), SystemClock())
    assert lives()
    assert "cannot be told" in lives.why


def test_each_try_is_its_own(host: Host, book: Book, room: RoomMaker, wait_until: Wait) -> None:
    room.look()
    assert (room.over, room.words) == (False, "")
    room.begin(2800 * MIB)
    ended(room, wait_until)
    room.begin(2800 * MIB)
    assert not room.over
    ended(room, wait_until)
    assert len(book.records) == 4
    room.forget()
    assert (room.over, room.words) == (False, "")


def settings_with(tmp_path: Path, text: str) -> Settings:
    config = tmp_path / "elsewhere.toml"
    config.write_text(f'[job]\ncommand = ["true"]\n[memory]\n{text}')
    return load(config=config, job=None, command=(), overrides={}, environ={}, home=tmp_path, cwd=tmp_path)


def test_a_person_who_switched_it_off_hears_at_the_gate_what_they_can_do(tmp_path: Path, host: Host) -> None:
    assert left_to_a_person(settings_with(tmp_path, "")) == ""
    assert policy_from(settings_with(tmp_path, ""), leave_on_hold=True).reclaims
    settings = settings_with(tmp_path, "reclaim = false\n")
    assert not policy_from(settings, leave_on_hold=True).reclaims
    reclaimer = Reclaimer(host.roots, SystemClock(), sync=[host.base])
    room = RoomMaker(reclaimer, SystemClock(), lambda _records: None, lambda: False, untried=left_to_a_person(settings))
    memory = Known(Memory(total_bytes=8 * GIB, available_bytes=GIB, host_available_bytes=GIB), 0.0)
    gate = memory_gate(memory, 2 * GIB, tried=room.words)
    assert not gate.open
    assert "[memory] reclaim is false" in gate.words
    assert gate.words.endswith(f"by hand: watchdog reclaim --config {tmp_path}/elsewhere.toml --job true")
    room.forget()
    assert "by hand" in room.words, "at each stay at the gates"
