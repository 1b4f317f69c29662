"""Hearing an end: the kernel is asked once and anew, and nobody is waited for longer than two seconds."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.campaign_bed import wait_for
from tests.host.bed import BARE, CLOCK, Launched, folders_in, launched
from tests.unit.checks.host import host as healthy
from watchdog.collectors.run import RunWatch
from watchdog.concluding import EndEyes
from watchdog.core.causes import Cause
from watchdog.core.facts import Absent, Facts, Known, OomKills
from watchdog.core.kernel import KernelKind, KernelLine, KernelLog
from watchdog.core.seen import EndSeen


class Host:
    """What the collectors would say. `answers`: the kernel is read again when it is asked for anew."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = True
        self.kills = 0
        self.lines: tuple[KernelLine, ...] = ()
        self.closed = False
        self._read_s = CLOCK.monotonic()

    def __call__(self, anew: bool) -> Facts:
        self.asked += anew
        if self.answers:
            self._read_s = CLOCK.monotonic()
        kernel = Absent("closed") if self.closed else Known(KernelLog(lines=self.lines, since_s=0.0), self._read_s)
        oom = Known(OomKills(host=self.kills, cgroup=None, cgroup_path=""), self._read_s)
        return replace(healthy(), kernel=kernel, oom=oom)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Launched]:
    with launched(folders_in(tmp_path), [*BARE, "-c", "import time\ntime.sleep(60)"]) as run:
        yield run


@pytest.fixture
def watch(run: Launched) -> Iterator[RunWatch]:
    with contextlib.closing(RunWatch(run.record)) as watch:
        watch.shim()
        yield watch


def heard(eyes: EndEyes, watch: RunWatch) -> EndSeen:
    """The end, once it is known in full."""

    def look() -> EndSeen | None:
        watch.shim()
        end = eyes.look(watch, over=True, beat_pid=None, ours=False)
        return None if eyes.awaiting else end

    return wait_for(look, "the end", timeout_s=10)


def test_an_oom_kill_that_is_logged_after_the_death_is_heard(run: Launched, watch: RunWatch) -> None:
    host = Host()
    eyes = EndEyes(CLOCK, host)
    eyes.remember()
    host.answers = False
    run.kill()
    run.wait_over()
    watch.shim()
    eyes.look(watch, over=True, beat_pid=None, ours=False)
    assert eyes.awaiting, "what the kernel says is older than the end"
    text = f"Out of memory: Killed process {run.leader.pid} (python)"
    line = KernelLine(at_s=CLOCK.monotonic(), kind=KernelKind.OOM_KILL, text=text, number=run.leader.pid)
    host.lines, host.answers = (line,), True
    assert heard(eyes, watch).cause is Cause.OOM_KILL
    assert host.asked == 1


def test_what_the_kernel_said_before_the_run_is_not_of_it(run: Launched, watch: RunWatch) -> None:
    host = Host()
    before_s = run.record.started_ticks / os.sysconf("SC_CLK_TCK") - 2.0
    host.lines = (KernelLine(at_s=before_s, kind=KernelKind.OOM_KILL, text="x", number=run.leader.pid),)
    eyes = EndEyes(CLOCK, host)
    run.kill()
    run.wait_over()
    assert heard(eyes, watch).cause is Cause.KILLED


def test_a_counter_that_rose_while_the_log_is_closed(run: Launched, watch: RunWatch) -> None:
    host = Host()
    host.closed = True
    eyes = EndEyes(CLOCK, host)
    eyes.remember()
    host.kills = 1
    run.kill()
    run.wait_over()
    end = heard(eyes, watch)
    assert (end.cause, end.likely) == (Cause.OOM_KILL, True)


def test_a_kernel_that_does_not_answer_is_waited_for_two_seconds(run: Launched, watch: RunWatch) -> None:
    host = Host()
    host.answers = False
    eyes = EndEyes(CLOCK, host)
    run.kill()
    run.wait_over()
    begin_s = time.monotonic()
    assert heard(eyes, watch).cause is Cause.KILLED
    assert 1.5 < time.monotonic() - begin_s < 4.0


def test_an_end_that_needs_no_kernel_does_not_wait_for_it(tmp_path: Path) -> None:
    host = Host()
    host.answers = False
    with launched(folders_in(tmp_path), [*BARE, "-c", "raise TypeError('no')"]) as run:
        run.wait_over()
        with contextlib.closing(RunWatch(run.record)) as watch:
            eyes = EndEyes(CLOCK, host)
            begin_s = time.monotonic()
            assert heard(eyes, watch).cause is Cause.CODE_ERROR
            assert time.monotonic() - begin_s < 1.0
    assert host.asked == 0


def test_the_record_of_an_end_has_what_there_was_to_see(tmp_path: Path) -> None:
    """A real process that leaves a tail and a failure record, with the secrets of its environment hidden."""
    text = (
        "import json, os, sys\n"
        "print('first'); print('connect with s3cr3t!xyz --wandb-key kkkkkkkk1234', flush=True)\n"
        "chain = [{'class': 'OSError', 'message': 'refused s3cr3t!xyz', 'errno': None}]\n"
        "path = os.environ['GPUHOST_WATCHDOG_FAILURE_FILE']\n"
        "json.dump({'format': 1, 'chain': chain, 'traceback': 'Traceback:\\n  File x\\n'}, open(path, 'w'))\n"
        "input()\n"
    )
    host = Host()
    before_s = CLOCK.monotonic()
    host.lines = (
        KernelLine(at_s=before_s - 60, kind=KernelKind.OOM_KILL, text="of the run before", number=1),
        KernelLine(at_s=before_s + 0.01, kind=KernelKind.XID, text="Xid 79 s3cr3t!xyz", number=79),
    )
    with launched(folders_in(tmp_path), [*BARE, "-c", text]) as run, contextlib.closing(RunWatch(run.record)) as watch:
        eyes = EndEyes(CLOCK, host, ("s3cr3t!xyz",))
        eyes.remember()
        run.wait_over()
        end = heard(eyes, watch)
    left = json.dumps(end.left)
    assert "s3cr3t!xyz" not in left + f"{end.error} {end.words} {end.fault}"
    assert "kkkkkkkk1234" not in left
    assert end.left["tail"][1] == "connect with *** --wandb-key ***"
    assert end.left["failure"][0] == "OSError: refused ***"
    assert [line.partition(": ")[2] for line in end.left["kernel"]] == ["Xid 79 ***"]
    assert "GiB available" in end.left["facts"]["memory"]
    assert end.left["facts"]["seen"].endswith("before the end was noticed")


def test_one_that_left_well_is_heard_too_and_not_asked_why(tmp_path: Path) -> None:
    with launched(folders_in(tmp_path), [*BARE, "-c", "print('RuntimeError: not an error')"]) as run:
        run.wait_over()
        with contextlib.closing(RunWatch(run.record)) as watch:
            end = heard(EndEyes(CLOCK, Host()), watch)
    assert (end.cause, end.error, end.left["tail"]) == (Cause.FINISHED, None, ["RuntimeError: not an error"])
