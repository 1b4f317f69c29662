"""A stand-in for NVIDIA's library at the C ABI: unmodified pynvml, gpustat and nvitop read what a text file says.

Responsible for compiling the library, for the environment in which a program finds it, and for writing scenario files
so that a reader sees the old text or the new one, never half of it. Refuses a scenario that it does not understand: the
library names file and line on stderr, and every call answers UNKNOWN (999) until the file is right.

    library = build(tmp_path)
    scenario = Scenario(tmp_path / "scenario", "[device]\\nutil_sm = 97\\npower_mw = 60000\\n")
    subprocess.run([...], env=os.environ | environment(library, scenario.path))  # a running program finds it no more

The file is looked at on every call, so an edit is seen by the next one. Without FAKE_NVML the driver is "not loaded"
(9). FAKE_NVML_LOG names a file to which each call appends its function's name.

A line is `key = value`, or a comment after `#`. Before the first [device]:

    driver = 560.35.03    nvml = 12.560.35.03    cuda = 12060
    init = 9                                # what nvmlInit, nvmlInit_v2 and nvmlInitWithFlags answer; 0 is success
    event 79 0                              # an Xid of the device with that index; see below
    scramble processes                      # process lists as a binding shows them that expects another layout
    fail nvmlDeviceGetPowerUsage = 3        # that function answers that code; a name without _v2, _v3 stands for each
    hang nvmlDeviceGetUtilizationRates      # until the process dies, also when the line is taken back
    delay nvmlDeviceGetMemoryInfo = 250     # milliseconds
    crash nvmlDeviceGetTemperature          # a real SIGSEGV, without a core file
                                            # these four may stand in a [device], too, and then are of that device only

Then up to 16 sections [device], in the order of their indices. A key that is not written has the value of an idle
GeForce RTX 3060; what GeForce lacks is NOT_SUPPORTED (3). `none` = NOT_SUPPORTED. `na` = success, all bits ones.

    uuid, name, pci (00000000:01:00.0), serial, vbios, minor, brand, architecture, compute (8.6)
    memory_total_mib, memory_used_mib, memory_reserved_mib (240), bar1_total_mib, bar1_used_mib
        GetMemoryInfo counts reserved memory as used, GetMemoryInfo_v2 tells it apart: so does the driver
    power_mw, power_instant_mw (field 186), power_average_mw (185), power_limit_mw, power_enforced_limit_mw,
    power_default_limit_mw, power_min_limit_mw, power_max_limit_mw, energy_mj
    util_sm, util_mem, util_enc, util_dec, util_jpg, util_ofa
    temperature, temperature_memory (field 82), slowdown_temperature, shutdown_temperature, gpu_max_temperature, fan
    clock_graphics, clock_sm, clock_mem, clock_video, and each with _max
    event_reasons = 0x48, event_reasons_supported; counters in ns, as GetViolationStatus and as fields 74-81:
    violation_power_ns, violation_thermal_ns, violation_sync_boost_ns, violation_board_limit_ns,
    violation_low_utilization_ns, violation_reliability_ns, violation_app_clocks_ns, violation_base_clocks_ns;
    as fields 269, 270, 271: counter_sw_thermal_ns, counter_hw_thermal_ns, counter_power_brake_ns
    pstate, pcie_gen, pcie_width, pcie_gen_max, pcie_width_max, pcie_gen_device_max, pcie_tx_kib_s, pcie_rx_kib_s,
    pcie_replays
    ecc_mode, ecc_pending, ecc_volatile_corrected, ecc_volatile_uncorrected, ecc_aggregate_corrected,
    ecc_aggregate_uncorrected; remapped_correctable, remapped_uncorrectable, remapped_pending, remapped_failed;
    retired_sbe, retired_dbe, retired_pending
        none of a family is there until one of it is written; then the others are 0, and ecc_mode is 1
    recovery_action (field 230), mig (1: no utilization), mig_pending, persistence, display_active, display_mode,
    compute_mode
    process = PID MIB|na compute|graphics|mps [NAME]    # repeatable; without a NAME its name is NOT_FOUND (6)
    process_util = PID SM MEM [ENC DEC]                 # repeatable; without any GetProcessUtilization is NOT_FOUND
    lost = 1              # every call for this device answers GPU_IS_LOST (15), finding it by its UUID, too
    lost = 999            # or that code
    reset_required = 1    # or RESET_REQUIRED (16)
    events = none         # RegisterEvents answers NOT_SUPPORTED

An Xid goes to the first wait of a process that registered for that device, and once: a second line of the same text is
a second event, a rewritten file repeats none. A wait ends after its timeout, but not later than after a minute.

`wsl=True` compiles what is different under WSL2: no memory of processes, no events, no persistence mode.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"
_SOURCES = Path(__file__).parent
_COMPILE = ["cc", "-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
_WARNINGS = ["-Wall", "-Wextra", "-Werror"]


class Scenario:
    """The file that says what the devices are like, at `path`."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.write(text)

    def write(self, text: str) -> None:
        """The whole text anew. A reader sees the old text or this one."""
        self.text = text
        # The library looks at the time of change, and two writes within one tick of the kernel's clock share theirs.
        before_ns = self.path.stat().st_mtime_ns if self.path.exists() else 0
        changed_ns = max(time.time_ns(), before_ns + 1)
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        fresh.write_text(text)
        os.utime(fresh, ns=(changed_ns, changed_ns))
        os.replace(fresh, self.path)

    def replace(self, old: str, new: str) -> None:
        """Puts `new` where `old` stands, which must be in exactly one place."""
        if (found := self.text.count(old)) != 1:
            raise ValueError(f"{old!r} stands {found} times in {self.path}")
        self.write(self.text.replace(old, new))

    def event(self, xid: int, device: int = 0) -> None:
        """One more Xid of that device."""
        self.write(f"event {xid} {device}\n{self.text}")


def build(folder: Path, *, missing: Sequence[str] = (), wsl: bool = False) -> Path:
    """The library in that folder, without the functions named in `missing`. Compiled once for each form of it."""
    library = folder / LIBRARY
    fresh = library.with_name(f"{LIBRARY}.{os.getpid()}")
    shutil.copy(_compiled(tuple(sorted(missing)), wsl), fresh)
    os.replace(fresh, library)
    return library


def environment(library: Path, scenario_file: Path, log: Path | None = None) -> dict[str, str]:
    """What a program needs around it to load the library (itself, or its folder) and read that file."""
    folder = library if library.is_dir() else library.parent
    others = os.environ.get("LD_LIBRARY_PATH")
    found = {
        "LD_LIBRARY_PATH": f"{folder}:{others}" if others else str(folder),
        "FAKE_NVML": str(scenario_file),
    }
    return found | ({"FAKE_NVML_LOG": str(log)} if log else {})


def _compiled(missing: tuple[str, ...], wsl: bool) -> Path:
    """The library in a folder that outlives the test run. Two workers may compile at once: the later one wins."""
    sources = sorted(_SOURCES.glob("*.[ch]"))
    form = hashlib.sha256(repr((_COMPILE, missing, wsl)).encode())
    for source in sources:
        form.update(source.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"nvml-standin-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; remove it or set TMPDIR")
    library = folder / f"{form.hexdigest()[:32]}.so"
    if library.exists():
        return library
    if unknown := set(missing) - (_exported(_compiled((), wsl)) if missing else set()):
        raise ValueError(f"the library never had {sorted(unknown)}")
    with tempfile.TemporaryDirectory(dir=folder) as workplace:
        hidden = Path(workplace) / "hidden.map"
        hidden.write_text("{ global: *; local: " + " ".join(f"{name};" for name in missing) + " };\n")
        fresh = Path(workplace) / LIBRARY
        command = [*_COMPILE, *_WARNINGS, f"-Wl,-soname,{LIBRARY}", f"-DWSL={int(wsl)}", "-o", str(fresh)]
        if missing:
            command.append(f"-Wl,--version-script={hidden}")
        command += [str(source) for source in sources if source.suffix == ".c"]
        made = subprocess.run([*command, "-ldl"], capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"the NVML stand-in does not compile:\n{made.stderr}")
        os.replace(fresh, library)
    return library


def _exported(library: Path) -> set[str]:
    listed = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in listed.stdout.splitlines()}
