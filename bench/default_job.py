"""The built-in job as `make run` runs it: how long it takes on this machine, and how far below the entropy it ends.

Runs `watchdog run` on the built-in job in a folder of its own (text and tokens are prepared anew) and reads what the
trainer and the ledger say. Refuses to report a job that was not finished at the first attempt.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.record import append


def main(arguments: list[str]) -> int:
    """Print the row; `--record` appends it to docs/benchmarks.md."""
    parser = argparse.ArgumentParser(prog="bench.default_job", description=__doc__)
    parser.add_argument("--record", action="store_true", help="append the result to docs/benchmarks.md")
    wanted = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "XDG_STATE_HOME": f"{folder}/state",
            "XDG_CACHE_HOME": f"{folder}/cache",
            "GPUHOST_WATCHDOG_METRICS__PORT": "0",
        }
        command = [sys.executable, "-P", "-c", "from watchdog.cli import main; main()"]
        begin_s = time.monotonic()
        code = subprocess.run([*command, "run"], env=environment, cwd=folder, check=False).returncode
        wall_s = time.monotonic() - begin_s
        cpu_s = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        ask = [*command, "status", "--json"]
        status = subprocess.run(ask, env=environment, cwd=folder, capture_output=True, check=True)
        view = json.loads(status.stdout)
        if code != 0 or view["restarts"] != 0:
            print(f"not finished at the first attempt: exit {code}, {view['restarts']} restarts", file=sys.stderr)
            return 1
        summary = json.loads(Path(view["checkpoints"], "summary.json").read_text(encoding="utf-8"))
    row = {
        "preset": summary["preset"],
        "steps": summary["steps"],
        "tokens": summary["tokens"],
        "validation_loss": summary["validation_loss"],
        "unigram_entropy": summary["unigram_entropy"],
        "loss_over_entropy": round(summary["ratio"], 3),
        "wall_s": round(wall_s),
        "cpu_s": round(cpu_s, 1),
    }
    print(json.dumps(row))
    if wanted.record:
        append("the built-in job", [row])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
