"""Measuring: never beside a run, compared with the baseline, and teaching it only what is right."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.checks.host import TRAINER_PID, UUID, beat, gpu, host, lock, process, processes
from tests.unit.collectors.standin import Standin, answer
from watchdog import baselines
from watchdog.clock import SystemClock
from watchdog.core.baselines import key_of
from watchdog.core.facts import Absent, Facts, Known, Unknown, Wsl
from watchdog.core.findings import Severity
from watchdog.core.limits import Limits
from watchdog.errors import SettingsError
from watchdog.measuring import (
    Measuring,
    ProbeReport,
    baselines_file,
    driver_of,
    needed,
    probe,
    report_lines,
    report_record,
)
from watchdog.settings import Settings, load

CLOCK = SystemClock()
OTHER = "GPU-77777777-0000-0000-0000-000000000000"
NO_RUN = Absent("no run was ever launched")
NOBODY = processes(run=(), holders=())
KEY = key_of(device=UUID, driver="560.35.03", dtype="bf16", size=8192)


@pytest.fixture
def standin(tmp_path: Path) -> Standin:
    return Standin(tmp_path).says(answer())


@pytest.fixture
def settings(tmp_path: Path, standin: Standin) -> Settings:
    overrides = {"state.folder": str(tmp_path / "state"), "probe.python": str(standin.path), "probe.deadline": "20s"}
    return load(environ={}, home=tmp_path, cwd=tmp_path, overrides=overrides)


FREE = (lock("supervisor", held=False, holders=()), lock("run", held=False, holders=()))


def idle(**changes: Any) -> Facts:
    return host(
        **(
            {"beat": NO_RUN, "progress": NO_RUN, "processes": NOBODY, "locks": FREE, "devices": (gpu(processes=()),)}
            | changes
        )
    )


def measure(
    settings: Settings, facts: Facts | None = None, device: str | None = None, *, store: bool = True, **limits: Any
) -> ProbeReport:
    said: list[str] = []
    report = probe(
        settings, facts or idle(), Limits(**limits), clock=CLOCK, device=device, store=store, say=said.append
    )
    assert len(said) >= len(report.probes)
    assert all("20 s at most" in line for line in said)
    json.dumps(report_record(report), allow_nan=False)
    assert all(line.isprintable() for line in report_lines(report))
    return report


def known(settings: Settings) -> dict[str, tuple[float, ...]]:
    return dict(baselines.read(baselines_file(settings)))


# --- results and what they teach ----------------------------------------------------------------------------
def test_each_result_is_compared_with_those_before_and_remembered(settings: Settings, standin: Standin) -> None:
    for count, tflops in enumerate((25.0, 26.0, 24.0)):
        standin.says(answer(tflops=tflops))
        report = measure(settings)
        assert report.exit_code == 0
        (found,) = report.probes
        assert (found.device, found.tflops, found.baseline_count) == (UUID, tflops, count)
    assert found.baseline_tflops == 25.5
    assert known(settings) == {KEY: (25.0, 26.0, 24.0)}
    (line,) = report_lines(report)
    assert line.startswith("a card: 24 TFLOP/s, 25.5 before (2 results) · bf16, 8192 x 8192, 43 ms each")


def test_without_store_nothing_is_written(settings: Settings) -> None:
    assert measure(settings, store=False).exit_code == 0
    assert not baselines_file(settings).parent.exists()


@pytest.mark.parametrize("error", [3.1, "inf"])
def test_a_wrong_product_is_critical_and_teaches_nothing(settings: Settings, standin: Standin, error: object) -> None:
    standin.says(answer(correct=False, worst_error=error), 1)
    report = measure(settings)
    assert report.exit_code == 2
    assert known(settings) == {}
    lines = report_lines(report)
    assert "product WRONG" in lines[0]
    assert any(line.startswith("CRITICAL") for line in lines)
    record = report_record(report)
    assert record["probes"][0]["worst_error"] == error
    assert {"check": "wrong-product", "severity": "critical"}.items() <= record["findings"][0].items()


def test_a_result_below_the_floor_teaches_nothing(settings: Settings, standin: Standin) -> None:
    standin.says(answer(tflops=0.4))
    assert measure(settings).exit_code == 2
    assert known(settings) == {}


def test_a_result_far_below_the_baseline_is_told_and_teaches_nothing(settings: Settings, standin: Standin) -> None:
    for _ in range(3):
        measure(settings)
    standin.says(answer(tflops=12.0))
    report = measure(settings)
    assert report.exit_code == 1
    assert "12.00 TFLOP/s (floor 2.0, this device's own baseline 25.50)" in "\n".join(report_lines(report))
    assert known(settings) == {KEY: (25.5, 25.5, 25.5)}


def test_a_baseline_of_too_few_results_is_not_taken_along_either(settings: Settings, standin: Standin) -> None:
    measure(settings)
    standin.says(answer(tflops=12.0))
    assert measure(settings).exit_code == 0
    assert known(settings) == {KEY: (25.5,)}


@pytest.mark.parametrize(
    ("facts", "row"),
    [
        (idle(driver=replace(idle().driver.value, version="570.86.10")), answer()),  # type: ignore[union-attr]
        (idle(), answer(dtype="fp16")),
        (idle(), answer(size=4096)),
        (idle(devices=(gpu(processes=(), uuid=OTHER),)), answer()),
    ],
    ids=["driver", "dtype", "size", "device"],
)
def test_another_form_has_a_baseline_of_its_own(
    settings: Settings, standin: Standin, facts: Facts, row: dict[str, Any]
) -> None:
    measure(settings)
    standin.says(row)
    (found,) = measure(settings, facts).probes
    assert (found.baseline_tflops, found.baseline_count) == (None, 0)
    assert len(known(settings)) == 2


def test_of_two_devices_the_one_that_is_right_is_remembered(settings: Settings, standin: Standin) -> None:
    right, wrong = json.dumps(answer()), json.dumps(answer(correct=False))
    standin.does(f"print({wrong!r} if {OTHER!r} in sys.argv else {right!r})")
    report = measure(settings, idle(devices=(gpu(processes=()), gpu(processes=(), uuid=OTHER, index=1))))
    assert [each.device for each in report.probes] == [UUID, OTHER]
    assert report.exit_code == 2
    assert known(settings) == {KEY: (25.5,)}


def test_a_device_that_cannot_be_measured_hides_no_other_ones_wrong_product(
    settings: Settings, standin: Standin
) -> None:
    wrong = json.dumps(answer(correct=False))
    standin.does(f"if {OTHER!r} in sys.argv: print({wrong!r}); sys.exit(1)\nos.kill(os.getpid(), signal.SIGSEGV)")
    two = idle(devices=(gpu(processes=()), gpu(processes=(), uuid=OTHER, index=1)))
    report = measure(settings, two)
    assert [each.device for each in report.probes] == [OTHER]
    assert report.exit_code == 2
    assert [(each.device, each.tried) for each in report.left_out] == [(UUID, True)]
    told = {(each.check, each.severity, each.device) for each in report.findings if each.severity > 0}
    assert told == {
        ("wrong-product", Severity.CRITICAL, OTHER),
        ("compute-floor", Severity.UNKNOWN, UUID),
    }
    assert any("SIGSEGV" in line and "GPU-3f1c" in line for line in report_lines(report))
    standin.does(f"if {OTHER!r} in sys.argv: print({json.dumps(answer())!r}); sys.exit(0)\nsys.exit(9)")
    assert measure(settings, two).exit_code == 3
    assert list(known(settings)) == [KEY.replace(UUID, OTHER)]


def test_a_device_that_is_in_use_is_named_beside_the_results(settings: Settings, standin: Standin) -> None:
    busy = gpu(processes=(process(pid=99, command="blender"),), uuid=OTHER, index=1)
    report = measure(settings, idle(devices=(gpu(processes=()), busy)))
    assert (report.exit_code, [each.device for each in report.left_out]) == (0, [OTHER])
    assert f"{busy.label}: not measured: it is in use by pid 99 (blender)" in report_lines(report)


# --- the file of baselines ----------------------------------------------------------------------------------
def test_a_broken_file_is_told_beside_the_result_and_is_never_overwritten(settings: Settings, standin: Standin) -> None:
    path = baselines_file(settings)
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 1, "tflops": {"k": "25"}}')
    before = path.read_bytes()
    for store in (True, False):
        report = measure(settings, store=store)
        assert report.probes[0].baseline_tflops is None
        assert ("is no file of baselines" in report.note) is store
        assert report.exit_code == (1 if store else 0)
    assert path.read_bytes() == before


def test_two_at_once_would_falsify_each_other(settings: Settings, standin: Standin) -> None:
    with baselines.alone(baselines_file(settings), make=True) as alone:
        assert alone
        report = measure(settings)
        assert report.exit_code == 3
        assert "another probe" in (report.why or "")
    assert measure(settings).exit_code == 0


@pytest.mark.parametrize("device", ["", "  "])
def test_a_device_without_a_name_is_an_error(settings: Settings, standin: Standin, device: str) -> None:
    with pytest.raises(SettingsError, match=r"--device '.*': must be a UUID, its beginning, an index, or cpu"):
        measure(settings, device=device)


def test_a_beginning_that_fits_several_devices_is_an_error(settings: Settings, standin: Standin) -> None:
    two = idle(devices=(gpu(processes=()), gpu(uuid="GPU-4a", index=1, processes=())))
    with pytest.raises(SettingsError, match=r"--device GPU-: fits 2 devices: .*GPU-3f1c0a52.*GPU-4a"):
        measure(settings, two, device="GPU-")
    assert not standin.asked


def test_a_device_with_an_odd_name_is_not_there(settings: Settings, standin: Standin) -> None:
    for device in ("²", "9" * 5000):
        assert "no device that is here" in (measure(settings, device=device).why or "")


# --- what is measured ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", [None, "cpu", "0", UUID])
@pytest.mark.parametrize(
    "facts",
    [
        host(),
        host(beat=NO_RUN),
        host(devices=Absent("no GPU here")),
        idle(beat=Unknown("the beat file cannot be believed")),
        idle(processes=Unknown("processes has not answered for 11 s")),
    ],
    ids=["beats", "no beats", "no GPU", "beat unknown", "processes unknown"],
)
def test_beside_a_run_nothing_is_measured(
    settings: Settings, standin: Standin, facts: Facts, device: str | None
) -> None:
    report = measure(settings, facts, device)
    assert (report.exit_code, report.probes) == (3, ())
    assert report.why
    assert report_lines(report) == [f"not measured: {report.why}"]
    assert report_record(report)["not_measured"] == report.why
    assert not standin.asked
    if isinstance(facts.beat, Known):
        assert str(TRAINER_PID) in report.why or "no GPU here" in report.why


@pytest.mark.parametrize("changes", [{"alive": False}, {"age_s": 500.0}])
def test_a_run_that_hangs_is_measured_beside(settings: Settings, changes: dict[str, Any]) -> None:
    assert measure(settings, host(beat=beat(**changes))).exit_code == 0


def test_only_the_devices_of_the_job_are_measured_and_one_may_be_named(settings: Settings, standin: Standin) -> None:
    two = idle(devices=(gpu(processes=()), gpu(processes=(), uuid=OTHER, index=1)))
    assert [each.device for each in measure(settings, two, devices=("1",)).probes] == [OTHER]
    assert [each.device for each in measure(settings, two, "0", devices=("1",)).probes] == [UUID]
    assert [each.device for each in measure(settings, two, "gpu-3f1c").probes] == [UUID]
    assert measure(settings, two, "GPU-0").why == (
        f"--device GPU-0: the job uses no device that is here; here are {', '.join(d.label for d in two.devices.value)}"
    )
    assert [arguments[3] for arguments in standin.asked] == [OTHER, UUID, UUID]


def test_without_a_gpu_the_cpu_is_measured_and_has_a_baseline_by_its_name(settings: Settings, standin: Standin) -> None:
    standin.says(answer(device="Some CPU", dtype="fp32", size=512, tflops=0.1))
    none = idle(driver=Absent("no driver"), devices=Absent("no driver"))
    for count in range(2):
        report = measure(settings, none)
        assert report.exit_code == 0
        assert report.probes[0].baseline_count == count
    assert standin.asked[0][3] == "cpu"
    device = "cpu:Some CPU, 8 threads, torch 2.7.1"
    assert list(known(settings)) == [key_of(device=device, driver="no driver", dtype="fp32", size=512)]


@pytest.mark.parametrize("changes", [{"threads": 1}, {"torch": "2.8.0"}])
def test_a_cpu_that_computes_with_less_is_not_a_sick_one(
    settings: Settings, standin: Standin, changes: dict[str, Any]
) -> None:
    for _ in range(3):
        standin.says(answer(device="Some CPU", tflops=0.4))
        assert measure(settings, device="cpu").exit_code == 0
    standin.says(answer(device="Some CPU", tflops=0.1, **changes))
    assert measure(settings, device="cpu").exit_code == 0
    standin.says(answer(device="Some CPU", tflops=0.1))
    assert measure(settings, device="cpu").exit_code == 1


def test_a_gpu_is_compared_whatever_threads_there_are(settings: Settings, standin: Standin) -> None:
    measure(settings)
    standin.says(answer(threads=1, torch="2.8.0"))
    assert measure(settings).probes[0].baseline_count == 1


def test_a_gpu_that_cannot_be_seen_is_not_replaced_by_the_cpu(settings: Settings, standin: Standin) -> None:
    report = measure(settings, idle(devices=Unknown("NVML does not answer")))
    assert (report.exit_code, report.why) == (3, "NVML does not answer")
    assert not standin.asked


def test_what_could_not_be_measured_is_unknown_and_named(settings: Settings, standin: Standin) -> None:
    standin.does("os.kill(os.getpid(), signal.SIGSEGV)")
    report = measure(settings)
    assert report.exit_code == 3
    assert report.why is not None
    assert "RTX 3060" in report.why
    assert "SIGSEGV" in report.why


def test_a_diagnosis_learns_nothing(settings: Settings) -> None:
    measuring = Measuring(settings, CLOCK, driver_of(idle()), lambda line: None)
    fact = measuring.measure(idle().devices.value)  # type: ignore[union-attr]
    assert isinstance(fact, Known)
    assert not baselines_file(settings).exists()


def test_what_judging_a_probe_needs_is_looked_at(settings: Settings, standin: Standin) -> None:
    """On WSL the next step is another one: that fact must be there."""
    assert {"driver", "devices", "processes", "probe", "wsl"} <= needed()
    standin.says(answer(tflops=0.4))
    absent = Absent("not read")
    wsl = Wsl(version=2, kernel="6.6-microsoft", systemd=True, guest_settings=absent, windows_settings=absent)
    unused = (gpu(processes=(), utilization_percent=0, memory_used_bytes=2**28),)
    assert "wsl --shutdown" in "\n".join(report_lines(measure(settings, idle(wsl=wsl, devices=unused))))
    assert "wsl --shutdown" not in "\n".join(report_lines(measure(settings, idle())))


def test_a_driver_without_a_version_is_called_so() -> None:
    assert driver_of(idle()) == "560.35.03"
    assert driver_of(idle(driver=Absent("none"))) == driver_of(idle(driver=Unknown("hangs"))) == "no driver"


def test_no_figure_makes_a_report_fall_over(settings: Settings) -> None:
    report = measure(settings)
    odd = replace(report.probes[0], worst_error=math.nan, baseline_tflops=math.inf, seconds=1e-9)
    odd_report = dataclasses.replace(report, probes=(odd,))
    assert report_lines(odd_report)
    json.dumps(report_record(odd_report), allow_nan=False)
