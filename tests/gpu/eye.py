"""An independent eye on the memory of one device: NVML's word, 50 times a second, beside whatever the watchdog says.

Responsible for a line `BEGUN ENDED USED BUSY` for each look, on its standard output: between these two moments of the
wall clock, in seconds, so many bytes were in use, at so much utilization in percent (-1: not told). Before them comes a
line of JSON that says which device it is. Its name in /proc is that of a program that only asks, so that nobody takes
it for a user of the device. Refuses to make up a figure: a look that NVML refused is a line `BEGUN ENDED error WORDS`.

    python -P tests/gpu/eye.py INDEX      until its standard input ends
"""

from __future__ import annotations

import ctypes
import json
import select
import sys
import time
from typing import Any

import pynvml

from watchdog.collectors.nvml_child import COMM

PERIOD_S = 0.02
_PR_SET_NAME = 15


def utilization(device: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)
    except pynvml.NVMLError:  # MIG has none
        return -1


def main(index: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, COMM, 0, 0, 0)
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    told = {"uuid": pynvml.nvmlDeviceGetUUID(device), "name": pynvml.nvmlDeviceGetName(device)}
    told["devices"] = pynvml.nvmlDeviceGetCount()
    print(json.dumps(told), flush=True)
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    while True:
        begun_s = time.time()
        try:
            said = f"{pynvml.nvmlDeviceGetMemoryInfo(device).used} {utilization(device)}"
        except pynvml.NVMLError as error:
            said = f"error {error}"
        print(f"{begun_s:.4f} {time.time():.4f} {said}", flush=True)
        if poll.poll(PERIOD_S * 1000):
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
