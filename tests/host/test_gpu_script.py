"""The check for a GPU host, as far as a stand-in driver and a stand-in nvidia-smi can try it without a GPU."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from tests.fakes.nvml.standin import Scenario, build, environment

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
def script(repository: Path) -> ModuleType:
    path = repository / "tests/gpu/run"
    loader = importlib.machinery.SourceFileLoader("gpu_run", str(path))
    spec = importlib.util.spec_from_loader("gpu_run", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


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


def test_facts_that_agree_with_nvidia_smi(script: ModuleType, surroundings: dict[str, str], tmp_path: Path) -> None:
    tells(tmp_path)
    good, words, rows = script.compared(surroundings)
    assert good, words
    assert words == f"{len(TOLD)} readings alike"
    assert [row["field"] for row in rows] == list(TOLD)


@pytest.mark.parametrize(
    ("field", "value"),
    [("memory__total", "11264"), ("name", "NVIDIA T4"), ("power__draw", "61.0"), ("temperature__gpu", "71")],
)
def test_a_reading_that_differs_is_told(
    field: str, value: str, script: ModuleType, surroundings: dict[str, str], tmp_path: Path
) -> None:
    tells(tmp_path, **{field: value})
    good, words, _ = script.compared(surroundings)
    assert not good
    assert field.replace("__", ".") in words
    assert value in words


def test_every_field_is_asked_of_nvidia_smi_and_is_a_fact(script: ModuleType) -> None:
    assert [field for field, _, _ in script.FIELDS] == list(TOLD)
