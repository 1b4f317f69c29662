"""What is looked at on a GPU host beside the faults: the probe, our facts, an orphan that nobody watches over, a
training that is left in peace, and one that is killed.

Responsible for asking the watchdog and, beside it, nvidia-smi, and for saying in a line what was seen. Refuses to make
anything but one process that holds 2 GiB, which it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

# What a healthy card reaches in bf16 (fp16 before sm_80) on large matrices, TFLOP/s: a good third of its data sheet.
# Any other card must pass the floor alone.
EXPECTED_TFLOPS = {"H200": 300, "H100": 250, "A100": 100, "L40": 60, "4090": 50, "3090": 25, "3060": 10, "T4": 8}
# nvidia-smi's field, ours, and by how much they may differ when read a moment apart (None: not at all).
FIELDS: tuple[tuple[str, str, float | None], ...] = (
    ("uuid", "uuid", None),
    ("name", "name", None),
    ("memory.total", "memory_total_bytes", None),
    ("enforced.power.limit", "power_limit_watts", 0.5),
    ("clocks.max.sm", "sm_clock_max_mhz", None),
    ("pcie.link.width.max", "pcie_width_max", None),
    ("compute_cap", "compute_capability", None),
    ("ecc.errors.uncorrected.volatile.total", "ecc_uncorrected", None),
    ("memory.used", "now.memory_used_bytes", 64 * 1024**2),
    ("power.draw", "now.power_watts", 60.0),
    ("temperature.gpu", "now.temperature_celsius", 5.0),
    ("pcie.link.width.current", "now.pcie_width", None),
)
ORPHAN = """
import os, sys, time, torch
block = torch.empty(2 * 1024**3, dtype=torch.uint8, device="cuda").fill_(1)
torch.cuda.synchronize()
print(os.getpid(), flush=True)
time.sleep(120)
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-c", "from watchdog.cli import main; main()", *words]


def answer_of(words: list[str], environment: dict[str, str], timeout_s: float) -> tuple[int, Any, str]:
    """(exit code, the JSON or None, what was said instead)."""
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=timeout_s)
    try:
        return done.returncode, json.loads(done.stdout), ""
    except ValueError:
        return done.returncode, None, (done.stderr or done.stdout)[-300:]


def probed(environment: dict[str, str]) -> tuple[bool, str, Any]:
    """The probe of the first device: right, above the floor, and as fast as such a card is."""
    code, answer, said = answer_of(command("probe", "--json", "--device", "0"), environment, 120)
    if answer is None or not answer["probes"]:
        return False, f"exit {code}: {said or answer}", answer
    probe = answer["probes"][0]
    least = next((least for name, least in EXPECTED_TFLOPS.items() if name in probe["name"]), 2)
    good = code == 0 and probe["correct"] and probe["tflops"] >= least
    return good, f"{probe['tflops']:.0f} TFLOP/s {probe['dtype']} at {probe['size']}, expected {least}", answer


def known(fact: Any) -> Any:
    return fact.get("value") if isinstance(fact, dict) and "state" in fact else fact


def compared(environment: dict[str, str]) -> tuple[bool, str, Any]:
    """Our facts beside nvidia-smi's, field by field, for every device."""
    query = ",".join(field for field, _, _ in FIELDS)
    told = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    _, answer, said = answer_of(command("diagnose", "--json", "--no-probe"), environment, 60)
    if answer is None:
        return False, said, None
    devices = {device["uuid"]: device for device in known(answer["facts"]["devices"])}
    wrong, rows = [], []
    for line in told.stdout.strip().splitlines():
        values = [value.strip() for value in line.split(",")]
        device = devices.get(values[0])
        if device is None:
            wrong.append(f"{values[0]} is not among our devices")
            continue
        for (field, ours, apart), theirs in zip(FIELDS, values, strict=True):
            mine = known((device["recent"][-1] if ours.startswith("now.") else device)[ours.removeprefix("now.")])
            if theirs.startswith("[") or theirs == "N/A":  # "no value": then we must have none, or know better
                theirs_value: Any = None
            elif ours.endswith("_bytes"):
                theirs_value = float(theirs) * 1024**2
            else:
                theirs_value = theirs if isinstance(mine, str) else float(theirs)
            same = mine == theirs_value or (apart is not None and abs(float(mine) - theirs_value) <= apart)
            rows.append(
                {"field": field, "nvidia_smi": theirs, "ours": mine, "same": bool(same or theirs_value is None)}
            )
            if not rows[-1]["same"]:
                wrong.append(f"{field}: nvidia-smi {theirs}, ours {mine}")
    return not wrong, "; ".join(wrong) or f"{len(rows)} readings alike", rows


def orphan_found(environment: dict[str, str]) -> tuple[bool, str, Any]:
    """A process that nobody watches over holds 2 GiB: it is named, as foreign and as the holder of the node."""
    # Started by a process that ends at once, so that it is nobody's child.
    starter = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-P', '-c', sys.argv[1]], start_new_session=True)"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", starter, ORPHAN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
    try:
        words = command("diagnose", "--json", "--no-probe", "--check", "foreign-process", "--check", "run-stuck")
        _, answer, said = answer_of(words, environment, 60)
    finally:
        os.kill(pid, 9)  # ours: it was started by the line above and told its own number
    if answer is None:
        return False, said, None
    found = [f for f in answer["findings"] if f["check"] == "foreign-process" and f["severity"] == "warning"]
    named = any(str(pid) in finding["reason"] + " ".join(finding["evidence"]) for finding in found)
    processes = known(answer["facts"]["processes"]) or {"holders": []}
    holders = [holder["pid"] for holder in processes["holders"]]
    # In a container NVML's numbers are another namespace's: then the open node is what there is.
    seen = f"foreign-process {'names' if named else 'does not name'} pid {pid}; holders of the node: {holders}"
    return pid in holders and (named or processes["initial_namespace"] is not True), seen, answer["findings"]


def nothing_flagged(bed: Any) -> tuple[bool, str, Any]:
    """While a real training runs on the device, no check says anything loud, three looks long."""
    supervisor = bed.start()
    bed.run_at_step(20)
    loud: list[dict[str, Any]] = []
    for _ in range(3):
        answer = json.loads(bed.call("diagnose", "--json", "--no-probe", timeout_s=60).stdout)
        loud += [finding for finding in answer["findings"] if finding["severity"] in ("warning", "critical")]
    devices = known(answer["facts"]["devices"])
    now = devices[0]["recent"][-1]
    figures = f"{known(now['utilization_percent'])} % at {known(now['power_watts'])} W"
    bed.call("stop", "--now", timeout_s=60)
    supervisor.wait(60)
    words = "; ".join(f"{finding['check']}: {finding['reason']}" for finding in loud)
    return not loud, words or f"quiet, {figures}", loud


def supervised(bed: Any, reference: Any) -> tuple[bool, str]:
    """The test preset, killed once; its end is the undisturbed one's."""
    from bench.campaign_workshop import differences

    bed.observe()
    supervisor = bed.start()
    run = bed.run_at_step(25)
    bed.harm(run.trainer)
    code = bed.ended(supervisor, timeout_s=120)
    found = [f"exit {code}"] if code else [*bed.problems(), *differences(bed.outcome(), reference)]
    return not found, "; ".join(found) or f"{len(bed.kinds('run_launching'))} runs, ends as undisturbed"
