"""`watchdog logs`: which file it is, and what is shown of one whose front was punched out."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.host.bed import CLOCK
from watchdog.actuators.outputlog import punch_front
from watchdog.collectors.processes import this_host
from watchdog.errors import StateError
from watchdog.opening import open_ledger
from watchdog.places import folders_of
from watchdog.settings import Settings, load
from watchdog.showing import log_of, show_log


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(environ={}, home=tmp_path, cwd=tmp_path, command=["true"], job="x")


def with_run(settings: Settings) -> Path:
    folders = folders_of(settings)
    ledger = open_ledger(folders, CLOCK, this_host())
    with contextlib.closing(ledger):
        for number in (1, 2):
            ledger.record("run_launching", "x", number=number, run_id=f"{number}-a", baseline_step=-1)
    log = folders.run("2-a").log
    log.parent.mkdir(parents=True)
    return log


def test_which_log(settings: Settings) -> None:
    for output in (False, True):
        with pytest.raises(StateError, match="watchdog run"):
            log_of(settings, output=output)
    log = with_run(settings)
    with pytest.raises(StateError, match="does not exist"):
        log_of(settings, output=True)
    log.write_text("hello\n")
    folders_of(settings).screen_log.write_text("said\n")
    assert log_of(settings, output=True) == log
    assert log_of(settings, output=False) == folders_of(settings).screen_log


def test_what_was_punched_out_is_not_shown(settings: Settings, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    log = with_run(settings)
    line = b"%07d " + b"." * 91 + b"\n"
    log.write_bytes(b"".join(line % number for number in range(20_000)))
    try:
        assert punch_front(log, 256 * 1024) > 0
    except OSError as error:
        pytest.skip(f"no holes can be punched here: {error}")
    show_log(settings, output=True, follow=False)
    shown = capsysbinary.readouterr().out
    assert b"\0" not in shown
    assert shown.endswith(line % 19_999)
    assert 200 * 1024 < len(shown) < 300 * 1024
