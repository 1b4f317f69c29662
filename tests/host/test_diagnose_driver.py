"""`watchdog diagnose` as a person or a monitoring system calls it, with every kind of driver: words, time, exit code.

The driver is the stand-in at the C ABI. Only the checks of the driver and its devices are asked for: what else is
wrong with the host that runs the tests is not their business.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import WATCHDOG
from tests.fakes.nvml.standin import Scenario, build, environment
from tests.host.askers import end_askers
from tests.host.bed import strict_json
from watchdog.collectors.nvml_library import find_library, nothing_here
from watchdog.collectors.roots import Roots

CHECKS = (
    *("driver", "driver-hung", "driver-crash", "driver-mismatch"),
    *("device-missing", "device-readings", "gpu-lost", "ghost-context"),
)
ASKED = tuple(word for check in CHECKS for word in ("--check", check))
Answer = tuple[subprocess.CompletedProcess[str], float]


@pytest.fixture
def diagnose(tmp_path: Path) -> Iterator[Callable[..., Answer]]:
    """`diagnose(scenario, *words)`: the answer, and the seconds it took. Without a scenario there is no stand-in."""
    made: list[Scenario] = []

    def call(scenario: str | None, *words: str) -> Answer:
        around = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "XDG_STATE_HOME": str(tmp_path / "state")}
        if scenario is not None:
            made.append(Scenario(tmp_path / "scenario", scenario))
            around |= environment(build(tmp_path), made[-1].path)
        began_s = time.monotonic()
        answer = subprocess.run(
            [*WATCHDOG, "diagnose", *words], env=around, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert "Traceback" not in answer.stderr
        return answer, time.monotonic() - began_s

    yield call
    for scenario in made:
        end_askers(scenario)


def test_an_idle_geforce_is_in_order(diagnose: Callable[..., Answer]) -> None:
    answer, _ = diagnose("[device]\n", "--no-probe", *ASKED)
    assert answer.returncode == 0, answer.stdout
    assert "NVIDIA driver 560.35.03, CUDA 12.6, 1 device" in answer.stdout
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["ok"] * len(CHECKS)


@pytest.mark.parametrize(
    ("scenario", "code", "words"),
    [
        ("init = 18\n[device]\n", 2, "the library and the kernel module are of different versions"),
        ("crash nvmlDeviceGetUtilizationRates\n[device]\n", 2, "3 children in a row died"),  # it asked again
        ("[device]\nlost = 1\n", 2, "gpu-lost"),
        ("[device]\nutil_sm = 4000000\n", 1, "4000000 % is no utilization"),
        ("init = 9\n[device]\n", 0, "no NVIDIA driver"),  # no device node says that there should be one
        ("nonsense = 1\n", 1, "NVML says that there is an error that it does not know (code 999)"),
    ],
    ids=["mismatch", "crash", "lost", "lies", "not loaded", "code 999"],
)
def test_what_is_wrong_with_the_driver(scenario: str, code: int, words: str, diagnose: Callable[..., Answer]) -> None:
    answer, _ = diagnose(scenario, "--no-probe", *ASKED)
    assert (answer.returncode, words in answer.stdout) == (code, True), answer.stdout


@pytest.mark.parametrize("hangs", ["nvmlInitWithFlags", "nvmlDeviceGetUtilizationRates"])
def test_a_driver_that_hangs_is_unknown_within_the_time_that_was_given(
    hangs: str, diagnose: Callable[..., Answer]
) -> None:
    """Seconds of silence prove no hung driver, and are no pass."""
    answer, took_s = diagnose(f"hang {hangs}\n[device]\n", "--no-probe", "--wait", "2", *ASKED)
    assert answer.returncode == 3, answer.stdout
    assert "NVML has not answered for 2.0 s (60 s of it would be a hung driver)" in answer.stdout
    assert 2 <= took_s < 4


def test_a_driver_that_hangs_is_told_alike_however_short_the_wait(diagnose: Callable[..., Answer]) -> None:
    answer, _ = diagnose("hang nvmlInitWithFlags\n[device]\n", "--no-probe", "--wait", "1", "--check", "driver")
    assert answer.returncode == 3
    assert "(60 s of it would be a hung driver)" in answer.stdout
    assert "next    watchdog diagnose --wait 70" in answer.stdout
    assert "sampling child leaves by itself within 90 s" in answer.stdout


@pytest.mark.parametrize("check", ["ecc", "lock-unlinked", "reset-required", "sysmem-paging", "windows-drive"])
def test_a_check_asked_for_by_name_has_a_word_where_nothing_is_to_judge(
    check: str, diagnose: Callable[..., Answer]
) -> None:
    answer, _ = diagnose("[device]\n", "--no-probe", "--check", check)
    assert answer.returncode == 0, answer
    (line,) = answer.stdout.splitlines()
    assert line.startswith(f"absent    {check} · nothing here that it judges: "), line
    answer, _ = diagnose("[device]\n", "--no-probe", "--json", "--check", check)
    (finding,) = strict_json(answer.stdout)["findings"]
    assert (finding["check"], finding["absent"], finding["severity"]) == (check, True, "ok")


@pytest.mark.parametrize("check", ["driver-hung", "gpu-lost", "device-missing", "xid", "blind", "compute-floor"])
def test_under_a_driver_that_hangs_no_check_passes_in_silence(check: str, diagnose: Callable[..., Answer]) -> None:
    answer, _ = diagnose("hang nvmlInitWithFlags\n[device]\n", "--wait", "1", "--check", check)
    assert answer.returncode == 3, answer
    assert answer.stdout.startswith(f"unknown   {check} · NVML has not answered for "), answer.stdout


def test_all_names_what_was_not_judged(diagnose: Callable[..., Answer]) -> None:
    answer, _ = diagnose("[device]\n", "--no-probe", "--all")
    (line,) = [line for line in answer.stdout.splitlines() if "not judged here: " in line]
    assert line.startswith("absent    not judged here: ")
    assert {"ecc", "sysmem-paging", "windows-drive"} <= set(line.partition(": ")[2].split(", "))


def test_a_failure_of_its_own_is_json_where_json_was_asked_for(diagnose: Callable[..., Answer]) -> None:
    answer, _ = diagnose(None, "--json", "--config", "nowhere.toml")
    found = strict_json(answer.stdout)
    assert (answer.returncode, found["exit_code"]) == (3, 3)
    assert "nowhere.toml" in found["error"]
    assert set(found) == {"format", "exit_code", "error"}
    wrong, _ = diagnose(None, "--json", "--colour")
    assert (wrong.returncode, "--colour" in strict_json(wrong.stdout)["error"]) == (3, True)
    assert "nowhere.toml" in answer.stderr


@pytest.mark.skipif(
    nothing_here(Roots(), find_library(Roots(), {})) is None, reason="this host has a driver of its own"
)
def test_without_any_driver_nothing_is_passed(diagnose: Callable[..., Answer]) -> None:
    answer, _ = diagnose(None, "--no-probe", "--json", *ASKED)
    assert answer.returncode == 0
    findings = strict_json(answer.stdout)["findings"]
    assert {finding["check"] for finding in findings} == set(CHECKS) & {finding["check"] for finding in findings}
    assert findings
    assert all(finding["absent"] for finding in findings), findings
    human, _ = diagnose(None, "--no-probe", *ASKED)
    assert "no NVIDIA driver: GPU checks are absent, not passed" in human.stdout
    assert not [line for line in human.stdout.splitlines() if line.startswith("ok")]


@pytest.mark.parametrize("scenario", ["[device]\n", "hang nvmlInitWithFlags\n", "init = 18\n", "[device]\nlost = 1\n"])
def test_the_json_is_as_its_schema_says(scenario: str, repository: Path, diagnose: Callable[..., Answer]) -> None:
    """Of all checks: whatever this host is like, the answer has the form that is promised."""
    jsonschema: Any = pytest.importorskip("jsonschema")
    schema = json.loads((repository / "docs" / "diagnose.schema.json").read_text())
    answer, _ = diagnose(scenario, "--no-probe", "--wait", "1", "--json")
    found = strict_json(answer.stdout)
    jsonschema.Draft202012Validator(schema).validate(found)
    assert answer.returncode == found["exit_code"]


def test_what_can_be_asked_about_the_checks(diagnose: Callable[..., Answer]) -> None:
    listing, _ = diagnose(None, "--list")
    assert listing.returncode == 0
    assert "ghost-context" in listing.stdout
    about, _ = diagnose(None, "--explain", "ghost-context")
    assert about.returncode == 0
    assert "Near misses" in about.stdout
    wrong, _ = diagnose(None, "--check", "gost-context")
    assert (wrong.returncode, wrong.stdout) == (3, "")
    assert "there is no check 'gost-context'; did you mean ghost-context?" in wrong.stderr
    wrong, _ = diagnose(None, "--check", "nonsense")
    assert wrong.returncode == 3
    assert "watchdog diagnose --list" in wrong.stderr
