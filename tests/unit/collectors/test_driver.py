"""The driver: absent, known or unknown, by a child, with a stand-in library at the C ABI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from watchdog.clock import SystemClock
from watchdog.collectors import driver
from watchdog.collectors.locks import command_of
from watchdog.collectors.processes import process_table
from watchdog.collectors.roots import Roots
from watchdog.core.facts import Absent, Driver, Known, Unknown

STAND_IN = r"""
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int code(void) {
    const char *how = getenv("FAKE_NVML");
    if (!how) return 0;
    if (!strcmp(how, "hang")) for (;;) pause();
    if (!strcmp(how, "crash")) raise(SIGSEGV);
    return atoi(how);
}
int nvmlInitWithFlags(unsigned flags) { return code(); }
int nvmlInit_v2(void) { return code(); }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "560.35.03", length); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
const char *nvmlErrorString(int code) { return "as the stand-in says"; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in library: apt install gcc libc6-dev")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(STAND_IN)
    name = driver.LIBRARY
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), str(folder / "nvml.c")],
        check=True,
    )
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> Roots:
    """A host with nothing of NVIDIA on it."""
    (tmp_path / "host/dev").mkdir(parents=True)
    return Roots(str(tmp_path / "host"))


@pytest.fixture
def reader(bare: Roots, library: Path, monkeypatch: pytest.MonkeyPatch) -> driver.DriverReader:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    return driver.DriverReader(bare, SystemClock())


def node(roots: Roots, name: str) -> None:
    Path(roots.dev, name).touch()


def test_a_host_without_library_and_nodes_has_no_driver_and_starts_no_child(
    bare: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")  # starting a child would raise
    fact = driver.DriverReader(bare, SystemClock(), environ={}).read(5.0)
    assert isinstance(fact, Absent)
    assert "libnvidia-ml.so.1" in fact.why


def test_the_library_is_found_where_the_loader_would(bare: Roots, tmp_path: Path) -> None:
    assert driver.find_library(bare, {}) is None
    cached = Path(bare.base, "opt/odd place")
    cached.mkdir(parents=True)
    Path(bare.base, "etc").mkdir()
    Path(bare.base, "etc/ld.so.cache").write_bytes(
        b"glibc-ld.so.cache1.1\0/gone/libnvidia-ml.so.1\0libnvidia-ml.so.1\0/opt/odd place/libnvidia-ml.so.1\0"
    )
    assert driver.find_library(bare, {}) is None  # a cache may be older than what it names
    (cached / driver.LIBRARY).touch()
    assert driver.find_library(bare, {}) == "/opt/odd place/libnvidia-ml.so.1"
    wsl = Path(bare.base, "usr/lib/wsl/lib")
    wsl.mkdir(parents=True)
    (wsl / driver.LIBRARY).touch()
    assert driver.find_library(bare, {}) == "/usr/lib/wsl/lib/libnvidia-ml.so.1"
    (tmp_path / driver.LIBRARY).touch()
    assert driver.find_library(bare, {"LD_LIBRARY_PATH": f":{tmp_path}"}) == str(tmp_path / driver.LIBRARY)


def test_dxg_proves_a_driver_only_beside_the_library_that_windows_brings(bare: Roots) -> None:
    node(bare, "dxg")
    assert driver.device_node(bare, "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1") is None
    assert driver.device_node(bare, "/usr/lib/wsl/lib/libnvidia-ml.so.1") == "/dev/dxg"
    node(bare, "nvidiactl")
    assert driver.device_node(bare, None) == "/dev/nvidiactl"


@pytest.mark.parametrize("code", [9, 12])
def test_no_driver_is_absent_without_a_node_and_unknown_with_one(code: int) -> None:
    line = json.dumps({"code": code, "text": "no"})
    assert isinstance(driver.parse_answer(line, node=None, at_s=1.0), Absent)
    found = driver.parse_answer(line, node="/dev/nvidiactl", at_s=1.0)
    assert isinstance(found, Unknown)
    assert "/dev/nvidiactl" in found.why


@pytest.mark.parametrize("code", [10, 15, 16, 17, 18, 999])
def test_other_codes_are_unknown_and_named(code: int) -> None:
    found = driver.parse_answer(json.dumps({"code": code, "text": "oh"}), node=None, at_s=1.0)
    assert found == Unknown(f"NVML answers with code {code}: oh")


@pytest.mark.parametrize("line", ["", "noise", "[]", "{}", '{"version": "1"}', '{"code": "x", "text": ""}', "3"])
def test_what_is_no_answer_is_unknown(line: str) -> None:
    found = driver.parse_answer(line, node=None, at_s=1.0)
    assert isinstance(found, Unknown)
    assert "no answer" in found.why


def test_a_driver_that_answers_is_known(reader: driver.DriverReader) -> None:
    fact = reader.read(20.0)
    assert isinstance(fact, Known)
    assert fact.value == Driver(version="560.35.03", devices=2)
    assert "pynvml" not in sys.modules  # never in this process


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("18", "code 18: RM has detected an NVML/RM version mismatch"),
        ("77", "code 77: as the stand-in says"),
        ("999", "code 999"),
        ("crash", "SIGSEGV"),
    ],
)
def test_a_driver_that_fails_is_unknown(
    reader: driver.DriverReader, monkeypatch: pytest.MonkeyPatch, how: str, words: str
) -> None:
    monkeypatch.setenv("FAKE_NVML", how)
    fact = reader.read(20.0)
    assert isinstance(fact, Unknown)
    assert words in fact.why


def test_a_driver_that_hangs_is_unknown_in_time_and_leaves_no_child(
    reader: driver.DriverReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML", "hang")
    started = time.monotonic()
    assert reader.read(1.5) == Unknown("NVML did not answer within 1.5 s")
    assert time.monotonic() - started < 6
    ours = [process.id.pid for process in process_table() if process.ppid == os.getpid()]
    assert not [pid for pid in ours if "collectors.driver" in command_of(pid)]


def test_not_loaded_is_absent(reader: driver.DriverReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML", "9")
    assert isinstance(reader.read(20.0), Absent)
