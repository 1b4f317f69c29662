"""The child that talks to NVML, so that nobody else has to: a call into a driver can take for ever, or crash.

Responsible for answering `sample N` on stdin with one line of JSON: up to N samples, a second apart, each with its
seconds since the first one. Fewer when one took over a second or the driver refused, when the pipe would be full, or
when `hurry` comes meanwhile, which has no answer of its own. Responsible for its own end as well: when stdin ends, or
by its own alarm when a call is stuck, so that nobody ever has to signal it. Started by devices.py as a program of its
own, `python -I -S nvml_child.py SITE PROC ALARM_S`; SITE is the folder that holds pynvml. Needs that, the standard
library and its two neighbours, nvml_sampler.py and nvml_questions.py. Without `site` a first sample takes 38 ms, with
it 43.
Refuses to call nvmlShutdown: one more call that can hang.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import select

    from watchdog.collectors.nvml_sampler import Sampler

_MISMATCH = 18  # nvml.h: library and kernel module are of different versions
COMM = b"watchdog-nvml"  # the command in /proc: who looks for users of a GPU leaves out who only asks
_EVERY_S = 1.0
_MOST_SAMPLES = 20
_PIPE_BYTES = 60_000  # a pipe holds 65,536; of what is longer the parent has the rest a turn later


def _wanted(said: bytes) -> int:
    """How many samples. A `hurry` that comes after the answer is about nothing."""
    lines = said.splitlines()
    if lines[-1] == b"hurry":
        return min(len(lines) - 1, 1)
    return min(int(lines[-1].split()[1]), _MOST_SAMPLES)


def _is_full(answer: dict[str, Any]) -> bool:
    """Whether any device was asked more than at a glance."""
    from watchdog.collectors.nvml_questions import GLANCE  # there already, with the sampler

    return any(len(row[3]) > GLANCE for row in answer["devices"])


def _waiter() -> select.poll:
    import select  # not paid by who asks for one sample

    poll = select.poll()
    poll.register(0, select.POLLIN)
    return poll


def _undisturbed(poll: select.poll, wait_s: float) -> bool:
    """Waits; False, and at once, when the parent says something. Leaves when it is gone."""
    if not poll.poll(wait_s * 1000):
        return True
    if not os.read(0, 4096):
        os._exit(0)
    return False


def main(argv: list[str]) -> NoReturn:
    """One question in, one line out, until stdin ends."""
    site, proc, alarm_s = argv[1], argv[2], float(argv[3])
    # The handler and the mask of a signal are inherited over exec, so both are set.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, alarm_s)
    with open("/proc/self/comm", "wb", buffering=0) as comm:
        comm.write(COMM)
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
    poll: select.poll | None = None
    full_bytes = glance_bytes = 0  # as large as they were in the last answer; the first question is for one
    while said := os.read(0, 4096):
        if not (wanted := _wanted(said)):
            continue
        signal.setitimer(signal.ITIMER_REAL, alarm_s + (wanted - 1) * _EVERY_S)
        samples: list[tuple[float, dict[str, Any]]] = []
        room_bytes = _PIPE_BYTES
        first_s = time.monotonic()
        while True:
            after_s = round(time.monotonic() - first_s, 3)
            try:
                if sampler is None:
                    import pynvml

                    from watchdog.collectors.nvml_sampler import Sampler

                    sampler = Sampler(pynvml, proc)
                answer = sampler.answer(several=wanted > 1, again=bool(samples))
            except ImportError as error:
                text = f"nvidia-ml-py cannot be imported ({error}): install it to see the driver"
                answer = {"code": -1, "text": text}
            except Exception as error:  # told with its words; a child that ended would be a number only
                answer = {"code": -1, "text": f"the child that asks NVML failed: {type(error).__name__}: {error}"}
            samples.append((after_s, answer))
            if len(samples) == wanted or "code" in answer:
                break
            room_bytes -= full_bytes if _is_full(answer) else glance_bytes
            if room_bytes < full_bytes:
                break
            wait_s = first_s + len(samples) * _EVERY_S - time.monotonic()
            poll = poll or _waiter()
            if wait_s < 0 or not _undisturbed(poll, wait_s):
                break
        signal.setitimer(signal.ITIMER_REAL, 0)  # neither waiting nor a stopped parent is the driver's fault
        # Written at once: each second by itself, with cold caches, a sample takes five times as long to encode.
        encoded = [encode(sample) for sample in samples]
        full_bytes, glance_bytes = max(map(len, encoded)), min(map(len, encoded))
        line = memoryview(f"[{','.join(encoded)}]\n".encode())
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
