"""What people ask of a supervisor, by signal and by message: in order, once, and never forgotten."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from watchdog.core.branching import GoBack
from watchdog.core.seen import Request
from watchdog.core.view import RunView, StatusView
from watchdog.listening import Listener
from watchdog.remembered import Remembered, from_record


def view(state: str = "running", *, alive: bool = True) -> StatusView:
    run = RunView(number=3, run_id="3-a", alive=alive)
    return StatusView(job="x", state=state, since_wall_s=1, now_wall_s=2, sentence="", run=run, hold_reason="stuck")


def listener(seen: StatusView | None = None, hangups: list[int] | None = None) -> Listener:
    remembered = Remembered(at_s=7.0)
    return Listener(
        lambda: hangups.append(1) if hangups is not None else None, lambda: seen or view(), lambda: remembered
    )


@pytest.fixture
def own_handlers() -> Iterator[None]:
    """The test's signals are its own; afterwards they are as they were."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_requests_come_in_their_order_and_what_was_put_back_comes_first() -> None:
    asked = listener()
    assert asked.next() is None
    for request in (Request.RELAUNCH, Request.DRAIN, Request.STOP):
        asked.ask(request)
    first = asked.next()
    assert first is Request.RELAUNCH
    asked.put_back(first)
    assert [asked.next() for _ in range(4)] == [Request.RELAUNCH, Request.DRAIN, Request.STOP, None]


def test_waiting_ends_for_a_request_a_descriptor_or_the_time() -> None:
    asked = listener()
    reader, writer = os.pipe()
    begun_s = time.monotonic()
    asked.wait(0.05, [reader])
    assert time.monotonic() - begun_s >= 0.04
    os.close(writer)
    asked.wait(30, [reader])
    os.close(reader)
    asker = threading.Timer(0.05, asked.ask, [Request.DRAIN])
    asker.start()
    asked.wait(30, [])
    asked.wait(30, [])  # not taken yet: no waiting at all
    assert asked.next() is Request.DRAIN
    asked.ask(Request.STOP)
    asked.next()
    asked.wait(30, [])  # the wake-up that is left over ends one wait at most
    again_s = time.monotonic()
    asked.wait(0.05, [])
    assert time.monotonic() - again_s >= 0.04
    assert time.monotonic() - begun_s < 20
    asker.join()


@pytest.mark.usefixtures("own_handlers")
def test_signals() -> None:
    """INT drains, again stops, a third insists; TERM only ever drains; HUP asks for nothing."""
    hangups: list[int] = []
    asked = listener(hangups=hangups)
    asked.listen_to_signals()
    os.kill(os.getpid(), signal.SIGHUP)
    assert hangups == [1]
    assert asked.next() is None
    first, second = (signal.SIGINT, Request.DRAIN), (signal.SIGINT, Request.STOP)
    for number, request in ((signal.SIGTERM, Request.DRAIN), first, second):
        os.kill(os.getpid(), number)
        assert asked.next() is request
    assert not asked.insisted
    os.kill(os.getpid(), signal.SIGINT)
    assert asked.insisted
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("command", "request_"),
    [("relaunch", Request.RELAUNCH), ("stop", Request.DRAIN), ("stop-now", Request.STOP), ("status", None)],
)
def test_messages(command: str, request_: Request | None) -> None:
    asked = listener()
    answer = asked.answer({"command": command})
    assert answer["ok"] is True
    assert asked.next() is request_
    if command == "status":
        assert answer["status"]["run"]["number"] == 3
    else:
        assert (answer["state"], answer["run"]) == ("running", 3)


@pytest.mark.parametrize("message", [{}, *({"command": value} for value in (None, 5, ["stop"], "x" * 5000))])
def test_messages_that_are_none(message: dict[str, Any]) -> None:
    asked = listener()
    answer = asked.answer(message)
    assert answer["ok"] is False
    assert "known are status, facts, relaunch, stop, stop-now" in answer["error"]
    assert len(answer["error"]) < 300
    assert asked.next() is None


def test_a_relaunch_while_a_run_does_not_end_is_refused() -> None:
    asked = listener(view("hold"))
    answer = asked.answer({"command": "relaunch"})
    assert answer["ok"] is False
    assert "stuck" in answer["error"]
    assert asked.next() is None
    asked = listener(view("hold", alive=False))
    assert asked.answer({"command": "relaunch"})["run"] is None
    assert asked.next() is Request.RELAUNCH


def test_what_was_dropped_is_told_to_the_loop_once_and_followed_never() -> None:
    asked = listener()
    asked.drop({"command": "status"}, "whoever asked has hung up")
    asked.drop({"command": ["stop"]}, "whoever asked has hung up")
    assert asked.dropped() == [], "a question changes nothing"
    asked.drop({"command": "relaunch"}, "whoever asked gave up 3.0 s ago")
    assert asked.dropped() == [
        "a request to relaunch was dropped: whoever asked gave up 3.0 s ago; it was not carried out"
    ]
    assert asked.dropped() == []
    assert asked.next() is None


def test_what_is_remembered_can_be_asked_for() -> None:
    answer = listener().answer({"command": "facts"})
    assert from_record(answer["facts"]) == Remembered(at_s=7.0)


def test_a_wish_for_an_earlier_step_goes_to_whoever_goes_back_and_not_to_the_loop() -> None:
    wishes: list[GoBack] = []
    answers = ["--from 41: step 41 was never verified", None]

    def go_back(wish: GoBack) -> str | None:
        wishes.append(wish)
        return answers.pop(0)

    asked = Listener(lambda: None, view, lambda: Remembered(at_s=7.0), go_back)
    message = {"command": "relaunch", "from": 41, "by": "joe\n\x1b[2J", "why": "x" * 5000, "force": True}
    refused = asked.answer(message)
    assert (refused["ok"], refused["usage"], refused["error"]) == (False, True, "--from 41: step 41 was never verified")
    assert asked.answer({"command": "relaunch", "from": 40}) == {"ok": True, "state": "running", "run": 3}
    assert asked.next() is None, "it is read back before anything is asked of the loop"
    assert (wishes[0].by, len(wishes[0].why), wishes[0].afresh) == ("joe??[2J", 300, True)
    assert wishes[1] == GoBack(step=40, by="somebody", why="no reason was given")


@pytest.mark.parametrize("step", ["40", 40.0, True, -1, 2**63, [], {}])
def test_a_step_that_is_none(step: object) -> None:
    asked = listener()
    answer = asked.answer({"command": "relaunch", "from": step})
    assert (answer["ok"], "not the number of a step" in answer["error"]) == (False, True)
    assert asked.next() is None


def test_force_is_a_request_of_its_own() -> None:
    asked = listener()
    asked.answer({"command": "relaunch", "force": True})
    assert asked.next() is Request.RELAUNCH_AFRESH
    asked.answer({"command": "relaunch", "force": "yes"})
    assert asked.next() is Request.RELAUNCH


@pytest.mark.parametrize(
    "more", [{}, {"force": True}, {"from": 5, "by": "a", "why": "b"}], ids=["plain", "force", "from"]
)
@pytest.mark.parametrize("state", ["stopping", "weighing"])
def test_a_relaunch_of_a_job_that_is_being_stopped_is_refused_and_says_what_to_do(state: str, more: dict) -> None:
    seen = dataclasses.replace(view(state, alive=state == "stopping"), leaving=True, options=" --job x")
    asked = listener(seen)
    answer = asked.answer({"command": "relaunch", **more})
    assert answer["ok"] is False
    assert "stopped" in answer["error"]
    assert answer["error"].endswith("when it has left: watchdog run --job x")
    assert asked.next() is None
    assert asked.answer({"command": "stop-now"})["ok"] is True
