"""How much memory the guest takes: the supervisor with its metrics server, and the shim, both while a run lives.

Peak resident memory (VmHWM in /proc/PID/status, MiB), beside a Python that does nothing, in the same run. Refuses to
measure a supervisor that has not been scraped, asked and kept busy for a moment: an idle one would flatter.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from bench.record import append

_PATIENCE_S = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Peak resident memory in MiB."""

    supervisor_mib: float
    shim_mib: float
    python_mib: float


def peak_mib(pid: int) -> float:
    """VmHWM of a process in MiB. Raises OSError when it is gone."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None, f"/proc/{pid}/status has no VmHWM"
    return int(found[1]) / 1024


def bare_python_mib() -> float:
    """A Python of the same kind that has imported nothing."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        peak = peak_mib(child.pid)
        child.communicate(b"\n")
    return peak


def measure(folder: Path, *, busy_s: float = 5.0) -> Footprint:
    """Supervise `sleep`, scrape and ask for `busy_s` seconds, read the peaks, stop. Raises TimeoutError."""
    environment = os.environ | {"XDG_STATE_HOME": str(folder), "GPUHOST_WATCHDOG_METRICS__PORT": "0"}
    command = [sys.executable, "-P", "-c", "from watchdog.cli import main; main()"]
    with subprocess.Popen(
        [*command, "run", "--job", "footprint", "--", "sleep", "600"],
        env=environment,
        cwd=folder,
        stdout=subprocess.DEVNULL,
    ) as supervisor:
        try:
            ask = [*command, "status", "--json", "--job", "footprint"]
            deadline = time.monotonic() + _PATIENCE_S
            while True:
                answer = subprocess.run(ask, env=environment, cwd=folder, capture_output=True, check=True)
                view = json.loads(answer.stdout)
                if view["run"] is not None and view["run"]["shim_pid"] and view["metrics_url"]:
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no run after {_PATIENCE_S:g} s; the supervisor says: {view['sentence']}")
                time.sleep(0.1)
            end = time.monotonic() + busy_s
            while time.monotonic() < end:
                with urllib.request.urlopen(view["metrics_url"], timeout=5) as page:
                    page.read()
                subprocess.run(ask, env=environment, cwd=folder, capture_output=True, check=True)
            return Footprint(
                supervisor_mib=peak_mib(supervisor.pid),
                shim_mib=peak_mib(view["run"]["shim_pid"]),
                python_mib=bare_python_mib(),
            )
        finally:
            subprocess.run(
                [*command, "stop", "--now", "--job", "footprint"],
                env=environment,
                cwd=folder,
                check=False,
                capture_output=True,
            )
            supervisor.wait(_PATIENCE_S)


def main(arguments: list[str]) -> int:
    """Print a table; `--record` appends it to docs/benchmarks.md."""
    parser = argparse.ArgumentParser(prog="bench.footprint", description=__doc__)
    parser.add_argument("--record", action="store_true", help="append the result to docs/benchmarks.md")
    wanted = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    rows: list[dict[str, object]] = [
        {"what": "supervisor", "peak_mib": round(found.supervisor_mib, 1), "limit_mib": 60},
        {"what": "shim", "peak_mib": round(found.shim_mib, 1), "limit_mib": 15},
        {"what": "python -I -S", "peak_mib": round(found.python_mib, 1), "limit_mib": ""},
    ]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    print(json.dumps(dataclasses.asdict(found)))
    if wanted.record:
        append("footprint", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
