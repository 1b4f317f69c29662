"""The child that talks to NVML, so that nobody else has to: a call into a driver can take for ever, or crash.

Responsible for answering each line on stdin with one line of JSON, and for its own end: when stdin ends, or by its own
alarm when a call is stuck, so that nobody ever has to signal it. Started by devices.py as a program of its own,
`python -I -S nvml_child.py SITE PROC ALARM_S`; SITE is the folder that holds pynvml. Needs that, the standard library
and its two neighbours, nvml_sampler.py and nvml_questions.py. Without `site` a first sample takes 38 ms, with it 43.
Refuses to call nvmlShutdown: one more call that can hang.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from watchdog.collectors.nvml_sampler import Sampler

_MISMATCH = 18  # nvml.h: library and kernel module are of different versions


def main(argv: list[str]) -> NoReturn:
    """One line in, one line out, until stdin ends."""
    site, proc, alarm_s = argv[1], argv[2], float(argv[3])
    # The handler and the mask of a signal are inherited over exec, so both are set.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, alarm_s)
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    import json
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a driver that crashes us each minute fills no disk
    encode = json.JSONEncoder(separators=(",", ":")).encode
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[:] = [ours, *sys.path, site]
    sampler: Sampler | None = None
    answer: dict[str, Any]
    while os.read(0, 4096):
        signal.setitimer(signal.ITIMER_REAL, alarm_s)
        try:
            if sampler is None:
                import pynvml

                from watchdog.collectors.nvml_sampler import Sampler

                sampler = Sampler(pynvml, proc)
            answer = sampler.answer()
        except ImportError as error:
            text = f"nvidia-ml-py cannot be imported ({error}): install it to see the driver"
            answer = {"code": -1, "text": text}
        signal.setitimer(signal.ITIMER_REAL, 0)  # waiting for a stopped parent to read is no fault of the driver
        line = memoryview((encode(answer) + "\n").encode())
        try:
            while line:
                line = line[os.write(out, line) :]
        except BrokenPipeError:
            break
        if answer.get("code") == _MISMATCH:
            break  # the library in memory outlived its driver; only a new process can load the one that fits
    os._exit(0)  # past the exit handlers of any library


if __name__ == "__main__":
    main(sys.argv)
