"""The sampling child as a program, spoken to over its pipes, with the stand-in library at the C ABI."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml.standin import Scenario, build, environment
from watchdog.collectors import nvml_child
from watchdog.collectors.nvml_questions import COUNTERS, FAST, GLANCE, SLOW

DEADLINE_S = 20.0
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(
        text: str = "[device]\n", *, alarm_s: float = 30.0, site: str | None = None, log: Path | None = None
    ) -> Any:
        spec = importlib.util.find_spec("pynvml")
        assert spec is not None
        assert spec.origin is not None
        begin.scenario = Scenario(tmp_path / "scenario", text)  # type: ignore[attr-defined]
        library = build(tmp_path)
        process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                nvml_child.__file__,
                site or os.path.dirname(spec.origin),
                "/proc",
                str(alarm_s),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment(library, begin.scenario.path, log),  # type: ignore[attr-defined]
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        with process:  # closes the pipes and reaps
            pass


def say(process: subprocess.Popen[bytes], words: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(words)
    process.stdin.flush()


def hear(process: subprocess.Popen[bytes]) -> list[tuple[float, dict[str, Any]]]:
    """(seconds after the first, answer) of each sample."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], DEADLINE_S)[0], "no answer"
    return [(after_s, answer) for after_s, answer in json.loads(process.stdout.readline())]


def ask(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    say(process, b"sample 1\n")
    ((after_s, answer),) = hear(process)
    assert after_s == 0.0
    return answer


def fast(answer: dict[str, Any], device: int = 0) -> dict[str, Any]:
    return dict(zip(FAST, answer["devices"][device][3], strict=False))  # what is not asked again is not there


def slow(answer: dict[str, Any], device: int = 0) -> dict[str, Any]:
    fields, counters, _ = answer["devices"][device][6]
    return dict(zip([*SLOW, *COUNTERS], fields + counters, strict=True))


def test_slow_readings_and_versions_come_first_and_then_now_and_then(start: Start) -> None:
    process = start()
    first, second = ask(process), ask(process)
    assert first["driver"] == ["560.35.03", "12.6"]
    assert slow(first)["name"] == "NVIDIA GeForce RTX 3060"
    assert "driver" not in second
    assert second["devices"][0][6] is None
    assert second["devices"][0][0] == first["devices"][0][0]


def test_it_leaves_when_stdin_ends_and_not_with_a_core(start: Start) -> None:
    process = start()
    ask(process)
    assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (0, 0)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(DEADLINE_S) == 0


def test_the_alarm_ends_it_in_a_call_and_lets_it_be_between_calls(
    start: Start, wait_until: Callable[..., object]
) -> None:
    process = start(alarm_s=1.0)
    ask(process)
    idle_since = time.monotonic()
    wait_until(lambda: time.monotonic() > idle_since + 1.3, "longer than the alarm")
    ask(process)
    start.scenario.write("hang nvmlDeviceGetPowerUsage\n[device]\n")  # type: ignore[attr-defined]
    say(process, b"sample 1\n")
    assert process.wait(DEADLINE_S) == -signal.SIGALRM


def test_several_samples_are_taken_a_second_apart_and_told_in_one_line(start: Start) -> None:
    process = start()
    say(process, b"sample 3\n")
    answers = hear(process)
    assert [after_s for after_s, _ in answers] == pytest.approx([0.0, 1.0, 2.0], abs=0.3)
    assert ["driver" in answer for _, answer in answers] == [True, False, False]


BUSY = "[device]\nutil_sm = 97\npower_mw = 150000\npstate = 2\npcie_gen = 4\n"


def lengths(answers: list[tuple[float, dict[str, Any]]], device: int = 0) -> list[int]:
    """How many readings each sample has."""
    return [len(answer["devices"][device][3]) for _, answer in answers]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[device]\n", GLANCE),
        (BUSY, GLANCE),
        (BUSY + "process = HERE 400 compute\n", GLANCE),
        (BUSY + "event_reasons = 0x4\n", GLANCE),  # a software power cap is the usual state
        (BUSY + "event_reasons = none\nutil_enc = none\n", GLANCE),  # what this driver cannot tell will not change
        (BUSY + "pcie_gen_max = none\npcie_width_max = none\n", GLANCE),
        (BUSY + "power_mw = 84000\n", len(FAST)),  # below half of its limit: it may be faking
        (BUSY + "power_enforced_limit_mw = none\n", len(FAST)),
        (BUSY + "event_reasons = 0x20\n", len(FAST)),
        (BUSY + "event_reasons = 0x80\n", len(FAST)),
        (BUSY + "pcie_width = 8\n", len(FAST)),
        (BUSY + "pcie_gen = 1\n", len(FAST)),
        (BUSY + "process = 4194304 400 compute\n", len(FAST)),  # not in /proc
        (BUSY + "temperature = 500\n", len(FAST)),  # cannot be true
        ("fail nvmlDeviceGetDecoderUtilization = 999\n" + BUSY, len(FAST)),
        ("[device]\nprocess = 4194304 400 compute\n", len(FAST)),
        ("[device]\nutil_sm = none\n", len(FAST)),
        ("[device]\npower_mw = none\n", len(FAST)),
        ("[device]\nevent_reasons = 0x21\n", len(FAST)),
        ("fail nvmlDeviceGetTemperature = 999\n[device]\n", len(FAST)),
    ],
)
def test_within_a_conversation_the_rest_is_asked_again_only_of_what_is_remarkable(
    start: Start, text: str, wanted: int
) -> None:
    process = start(text.replace("HERE", str(os.getpid())))
    say(process, b"sample 2\n")
    assert lengths(hear(process)) == [len(FAST), wanted]


@pytest.mark.parametrize(
    ("old", "new", "name", "value"),
    [
        ("util_sm = 97", "util_sm = 3", "utilization_percent", 3),
        ("util_sm = 97", "util_sm = 101", "utilization_percent", {"u": "101 % is no utilization"}),
        ("power_mw = 150000", "power_mw = 60000", "power_watts", 60.0),
        ("power_mw = 150000", "power_mw = 4294967295", "power_watts", {"a": "the driver gives no value (N/A)"}),
        ("util_sm = 97", "util_sm = 97\nmemory_used_mib = 500", "memory_used_bytes", 500 * 2**20),
    ],
)
def test_a_glance_that_shows_anything_new_becomes_a_full_look(
    start: Start, old: str, new: str, name: str, value: object
) -> None:
    process = start(BUSY + BUSY)
    ask(process)
    say(process, b"sample 3\n")
    time.sleep(0.5)
    start.scenario.write(BUSY.replace(old, new) + BUSY)  # type: ignore[attr-defined]
    answers = hear(process)
    assert fast(answers[1][1])[name] == value
    assert lengths(answers, device=1) == [len(FAST), GLANCE, GLANCE]


def test_a_glance_that_fails_becomes_a_full_look_that_tells_why(start: Start) -> None:
    process = start(BUSY)
    ask(process)
    say(process, b"sample 2\n")
    time.sleep(0.5)
    start.scenario.write(f"fail nvmlDeviceGetPowerUsage = 999\n{BUSY}")  # type: ignore[attr-defined]
    assert fast(hear(process)[1][1])["power_watts"] == {"u": "NVML code 999: Unknown Error"}


@pytest.mark.parametrize("text", ["[device]\n", BUSY], ids=["idle", "busy"])
def test_a_process_that_dies_and_leaves_its_memory_is_seen_at_once(start: Start, text: str) -> None:
    """Not a byte changes: that is what a ghost is."""
    victim = subprocess.Popen(["sleep", "100"])
    process = start(text + f"process = {victim.pid} 400 compute\n")
    ask(process)
    say(process, b"sample 3\n")
    time.sleep(0.5)
    victim.kill()
    victim.wait()
    answers = hear(process)
    assert lengths(answers) == [len(FAST)] * 3
    assert [fast(answer)["processes"][0][3] for _, answer in answers] == [True, False, False]


def test_xids_that_come_within_a_conversation_are_told_once(start: Start) -> None:
    process = start(BUSY)
    ask(process)
    say(process, b"sample 2\n")
    time.sleep(0.5)
    start.scenario.event(79)  # type: ignore[attr-defined]
    assert [answer["devices"][0][5] for _, answer in hear(process)] == [[], []]
    say(process, b"sample 2\n")
    assert [answer["devices"][0][5] for _, answer in hear(process)] == [[[79, 1]], []]


def test_who_is_in_a_hurry_gets_what_there_is(start: Start) -> None:
    process = start()
    ask(process)
    say(process, b"sample 9\n")
    began_s = time.monotonic()
    say(process, b"hurry\n")
    assert 1 <= len(hear(process)) <= 2
    assert time.monotonic() - began_s < 3.0
    assert "devices" in ask(process)


def test_it_does_not_sleep_through_the_death_of_its_parent(start: Start) -> None:
    process = start()
    ask(process)
    say(process, b"sample 9\n")
    assert process.stdin is not None
    process.stdin.close()
    began_s = time.monotonic()
    assert process.wait(DEADLINE_S) == 0
    assert time.monotonic() - began_s < 3.0


def test_a_driver_that_refuses_ends_the_batch(start: Start) -> None:
    process = start("init = 18\n[device]\n")
    say(process, b"sample 5\n")
    (only,) = hear(process)
    assert only[1]["code"] == 18


def test_what_a_device_cannot_do_is_asked_once_a_minute(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    process = start("[device]\nutil_sm = none\nutil_enc = none\n", log=log)
    for _ in range(3):
        assert fast(ask(process))["utilization_percent"] == {"a": "Not Supported"}
    calls = log.read_text().split()
    assert calls.count("nvmlDeviceGetUtilizationRates") == 1
    assert calls.count("nvmlDeviceGetEncoderUtilization") == 1
    assert calls.count("nvmlDeviceGetPowerUsage") == 3
    assert calls.count("nvmlInitWithFlags") == 1
    assert calls.count("nvmlDeviceGetUUID") == 1
    assert "nvmlShutdown" not in calls


def test_a_mismatch_is_told_and_then_a_fresh_process_is_needed(start: Start) -> None:
    process = start("init = 18\n")
    assert ask(process) == {"code": 18, "text": "RM has detected an NVML/RM version mismatch."}
    assert process.wait(DEADLINE_S) == 0


def test_init_is_tried_again_with_the_next_question(start: Start) -> None:
    process = start("init = 9\n")
    assert ask(process)["code"] == 9
    start.scenario.write("[device]\n")  # type: ignore[attr-defined]
    assert fast(ask(process))["temperature_celsius"] == 38


def test_a_driver_that_forgot_us_is_initialised_once_more(start: Start, tmp_path: Path) -> None:
    process = start()
    ask(process)
    start.scenario.write("fail nvmlDeviceGetPowerUsage = 1\n[device]\n")  # type: ignore[attr-defined]
    assert ask(process)["code"] == 1
    start.scenario.write("[device]\n")  # type: ignore[attr-defined]
    answer = ask(process)
    assert fast(answer)["power_watts"] == 16.0
    assert answer["devices"][0][6] is not None  # after a driver's death all is read anew


def test_without_pynvml_it_says_what_to_install(start: Start, tmp_path: Path) -> None:
    answer = ask(start(site=str(tmp_path)))
    assert answer["code"] == -1
    assert "install it" in answer["text"]


def test_it_needs_nothing_but_its_two_neighbours_and_pynvml(start: Start) -> None:
    process = start()
    ask(process)
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "libnvidia-ml.so.1" in maps
    assert "psutil" not in maps
