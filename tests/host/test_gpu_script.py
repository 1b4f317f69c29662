"""The check for a GPU host, as far as a stand-in driver and a stand-in nvidia-smi can try it without a GPU."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.campaign_bed import wait_for
from tests.fakes.cuda import standin as cuda
from tests.fakes.nvml.standin import Scenario, build, environment
from tests.gpu import cures, looks
from tests.gpu.card import Card, stand_in_card
from tests.gpu.trial import Trial
from tests.gpu.workloads import devices
from watchdog.core.askers import only_asks

UUID = "GPU-3f1c0a52-7d11-4c1e-9a43-0c5e6f7a8b90"
CARD = f"""
[device]
uuid = {UUID}
name = NVIDIA GeForce RTX 3060
memory_total_mib = 12288
memory_used_mib = 400
power_limit_mw = 170000
power_mw = 150000
temperature = 41
clock_sm_max = 2100
pcie_width_max = 16
pcie_width = 16
compute = 8.6
util_sm = 3
"""
TOLD = {
    "uuid": UUID,
    "name": "NVIDIA GeForce RTX 3060",
    "memory.total": "12288",
    "enforced.power.limit": "170.00",
    "clocks.max.sm": "2100",
    "pcie.link.width.max": "16",
    "compute_cap": "8.6",
    "ecc.errors.uncorrected.volatile.total": "[N/A]",
    "memory.used": "411",
    "power.draw": "148.31",
    "temperature.gpu": "42",
    "pcie.link.width.current": "16",
}


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A home without a configuration, the stand-in library, and room for a stand-in nvidia-smi in the path."""
    scenario = Scenario(tmp_path / "nvml.conf", CARD)
    found = os.environ | environment(build(tmp_path), scenario.path) | {"HOME": str(tmp_path)}
    found["XDG_STATE_HOME"] = str(tmp_path / "state")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return found


def tells(folder: Path, **changes: str) -> None:
    """nvidia-smi prints the fields it is asked for, as the real one does with csv,noheader,nounits."""
    told = TOLD | {name.replace("__", "."): value for name, value in changes.items()}
    cases = "\n".join(f'    {name}) out="$out, {value}" ;;' for name, value in told.items())
    program = folder / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\nout=\nfor field in $(echo "${1#--query-gpu=}" | tr "," " "); do case "$field" in\n'
        f'{cases}\n    *) echo "unknown field $field" >&2; exit 1 ;;\nesac; done\necho "${{out#, }}"\n'
    )
    program.chmod(0o755)


# --- facts beside nvidia-smi ----------------------------------------------------------------------------------------
def test_facts_that_agree_with_nvidia_smi(surroundings: dict[str, str], tmp_path: Path) -> None:
    tells(tmp_path)
    good, words, rows = looks.compared(surroundings)
    assert good, words
    assert words == f"{len(TOLD)} readings alike"
    assert [row["field"] for row in rows] == list(TOLD)


@pytest.mark.parametrize(
    ("field", "value"),
    [("memory__total", "11264"), ("name", "NVIDIA T4"), ("power__draw", "61.0"), ("temperature__gpu", "71")],
)
def test_a_reading_that_differs_is_told(field: str, value: str, surroundings: dict[str, str], tmp_path: Path) -> None:
    tells(tmp_path, **{field: value})
    good, words, _ = looks.compared(surroundings)
    assert not good
    assert field.replace("__", ".") in words
    assert value in words


def test_every_field_is_asked_of_nvidia_smi_and_is_a_fact() -> None:
    assert [field for field, _, _ in looks.FIELDS] == list(TOLD)


# --- faults of the device, on the stand-in ----------------------------------------------------------------------------
CAUSES = ["shim_killed", "stalled", "stalled", "cuda_out_of_memory", "cuda_out_of_memory"]


def rows_of(done: subprocess.CompletedProcess[str], report: Path) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, Any]] = json.loads(report.read_text())["checks"]
    return rows


@pytest.mark.timeout(240)  # five jobs, each of them ended by a fault and launched again
def test_each_fault_is_cured_on_the_stand_in(repository: Path, tmp_path: Path) -> None:
    words = [repository / "tests/gpu/run", "--stand-in", "--json", tmp_path / "report"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=220)
    *rows, last = rows_of(done, tmp_path / "report")
    assert [row["check"] for row in rows] == list(cures.CASES)
    assert [row["details"]["detected_as"] for row in rows] == CAUSES
    assert last["check"] == "in time"
    for row in rows:
        cured = row["details"]
        assert cured["recovered"], row
        assert cured["after_mib"] - cured["before_mib"] <= 64, row
        assert cured["peak_mib"] - cured["before_mib"] >= 1024, row
    stalls = [row["details"]["detected_s"] for row in rows[1:3]]
    assert all(2.0 <= seconds <= 3.0 for seconds in stalls), stalls
    assert "no device and no torch is tried here" in done.stdout


@pytest.mark.timeout(150)
def test_where_the_driver_counts_other_pids_the_kernel_is_cured_too(repository: Path, tmp_path: Path) -> None:
    """As in a container: NVML names pids that are nobody's here, so the device must look idle to be measured."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made here")
    words = [*inside, repository / "tests/gpu/run", "--stand-in", "--only", "endless", "--json", tmp_path / "report"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=130)
    row, _ = rows_of(done, tmp_path / "report")
    assert row["details"]["detected_as"] == "stalled"
    assert row["details"]["runs"] == 2


@pytest.mark.timeout(150)
def test_the_way_of_a_real_device_is_gone_as_far_as_it_goes_without_torch(
    card: Card, repository: Path, tmp_path: Path
) -> None:
    """The same steps as on a GPU host, with the stand-ins in the driver's place."""
    loader = importlib.machinery.SourceFileLoader("gpu_run", str(repository / "tests/gpu/run"))
    spec = importlib.util.spec_from_loader("gpu_run", loader)
    assert spec is not None
    script = importlib.util.module_from_spec(spec)
    loader.exec_module(script)
    table = script.Table(100.0, "a stopped process")
    (tmp_path / "real").mkdir()
    script.on_a_gpu(tmp_path / "real", table)
    assert [row["check"] for row in table.rows] == [
        "a kernel without torch",
        "a stopped process",
        "an independent eye on the memory",
    ]
    assert all(row["ok"] for row in table.rows), table.rows
    assert table.rows[0]["details"] == {"kind": "cuda"}


@pytest.fixture
def card(tmp_path: Path) -> Iterator[Card]:
    folder = tmp_path / "card"
    folder.mkdir()
    with stand_in_card(folder) as made:
        yield made


@pytest.mark.timeout(150)
def test_memory_that_does_not_come_back_is_told(card: Card, tmp_path: Path) -> None:
    """Somebody takes 500 MiB while the run is ended: the eye has no reason to believe that it is not the run's."""
    assert card.stand_in is not None
    with Trial(card, tmp_path / "job", kind=card.light, mib=1024) as trial:
        trial.start()
        run = trial.training()
        cuda.hold(card.stand_in, 500)
        trial.strikes()
        trial.bed.strike(run.trainer_id)
        cured = trial.finish("killed", ("killed",))
    assert cured.recovered
    assert not cured.ok
    assert "MiB stayed in use" in cured.seen
    assert "at the end 1140 MiB are in use" in cured.seen
    assert cured.back_s is None


def test_who_looks_at_the_memory_is_no_user_of_the_device(card: Card) -> None:
    found = [
        Path(f"/proc/{pid}/comm").read_text().strip()
        for pid in filter(str.isdigit, os.listdir("/proc"))
        if b"tests/gpu/eye.py" in _words(pid)
    ]
    assert found
    assert all(map(only_asks, found)), found
    assert card.eye.looks()[-1].used_mib == 640  # 400 in use and what the driver keeps


def _words(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_without_a_gpu_it_says_so_and_what_it_would_do(repository: Path) -> None:
    done = subprocess.run([repository / "tests/gpu/run", "--dry"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    if "a GPU is here" in done.stdout:
        pytest.skip("there is one")
    assert all(name in done.stdout for name in cures.CASES)
    done = subprocess.run([repository / "tests/gpu/run"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stdout.startswith("no GPU: nvidia-smi says ")


# --- the driver's library by ctypes -----------------------------------------------------------------------------------
TRIED = """cuInit 0
cuDeviceGet 0
cuDevicePrimaryCtxRetain 7
cuCtxSetCurrent 1
cuMemAlloc_v2 16777216
cuMemsetD8_v2 +0 1 16777216
cuCtxSynchronize
cuMemAlloc_v2 8
cuMemsetD8_v2 +16777216 0 8
cuCtxSynchronize
cuModuleLoadData sm_50
cuModuleGetFunction work
cuLaunchKernel work grid 1 1 1 block 1 1 1 shared 0 stream 0 extra 0 word +16777216 rounds 1000000
cuCtxSynchronize
"""
WORKLOADS = Path(devices.__file__).parent


def around(folder: Path, *, mib: int = 4096, **more: str) -> dict[str, str]:
    card = cuda.card(folder / "card", mib)
    return os.environ | cuda.environment(cuda.build(folder), card, FAKE_CUDA_LOG=str(folder / "calls"), **more)


def tried(folder: Path, **how: Any) -> tuple[subprocess.CompletedProcess[str], str]:
    words = [sys.executable, "-P", str(WORKLOADS / "devices.py"), "cuda"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, env=around(folder, **how))
    return done, (folder / "calls").read_text()


def test_the_driver_is_called_as_it_wants_to_be(tmp_path: Path) -> None:
    done, calls = tried(tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["free_mib"] == 4096 - 300 - 16 - 1
    assert calls == TRIED


def test_another_form_of_the_kernels_is_tried_where_one_is_refused(tmp_path: Path) -> None:
    done, calls = tried(tmp_path, FAKE_CUDA_REFUSES="sm_50")
    assert done.returncode == 0, done.stderr
    assert [line for line in calls.splitlines() if "Module" in line][:2] == [
        "cuModuleLoadData sm_50",
        "cuModuleLoadData sm_80",
    ]


def test_the_drivers_word_for_too_little_memory_is_kept(tmp_path: Path) -> None:
    done, _ = tried(tmp_path, mib=310)
    assert done.returncode != 0
    assert done.stderr.endswith("CudaError: cuMemAlloc_v2 answered CUDA_ERROR_OUT_OF_MEMORY (2)\n")


ENDLESS = """
import signal, sys
sys.path.insert(0, sys.argv[1])
import devices
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
devices.Cuda().endless()
"""


def test_who_waits_for_an_endless_kernel_hears_nothing(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    with subprocess.Popen([sys.executable, "-P", "-c", ENDLESS, str(WORKLOADS)], env=around(tmp_path)) as process:
        try:
            last = "cuCtxSynchronize"
            wait_for(
                lambda: log.exists() and "endless grid" in (said := log.read_text()) and said.split()[-1] == last,
                "the kernel to be waited for",
                timeout_s=20,
            )
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
        finally:
            process.kill()


def test_the_stand_in_is_declared_as_the_driver_is() -> None:
    headers = cuda.header_folder()
    if headers is None:
        pytest.skip("no cuda.h here")
    assert cuda.disagreement(headers) == ""


@pytest.mark.parametrize(("version", "target"), devices.TARGETS)
def test_the_kernels_are_ptx(version: str, target: str, tmp_path: Path) -> None:
    if not shutil.which("ptxas"):
        pytest.skip("no ptxas here")
    text = tmp_path / "kernels.ptx"
    text.write_text(devices.PTX.format(version=version, target=target))
    made = subprocess.run(
        ["ptxas", "-arch=sm_90", str(text), "-o", str(tmp_path / "kernels")], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
