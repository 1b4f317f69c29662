"""Who has a GPU open, by the device nodes among the open files of `/proc/*/fd`.

Responsible for naming the processes that hold a device: `/dev/nvidia0` and its like, or `/dev/dxg` on WSL. The nodes
beside them (`nvidiactl`, `nvidia-uvm`, `nvidia-caps/...`) are listed with a holder, and alone make none: whoever has
only those has asked how many devices there are.
Leaves out who only asks: our own sampling child (named by the caller), and the programs of core/askers.py, which keep
every device open for as long as they live and compute nothing. A member of the run is never left out, whatever it calls
itself.
Refuses to read a command line or an environment (on a sick process both can hang), to judge, and to scan at all on a
host without such a node.

Known limit: without root the files of other users' processes are hidden; they are counted, not guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from msgspec import Struct

from watchdog.collectors.openfiles import Scan
from watchdog.collectors.processes import read_process
from watchdog.collectors.roots import Roots
from watchdog.contract import printable
from watchdog.core.askers import only_asks
from watchdog.core.facts import DeviceHolder

_DEVICE = re.compile(r"/dev/(?:nvidia\d+|dxg)")


class Holders(Struct, frozen=True, kw_only=True):
    """By pid. `unreadable`: processes whose open files are hidden from us; 0 where there is no device to hold."""

    holders: tuple[DeviceHolder, ...] = ()
    unreadable: int = 0


def has_device(roots: Roots) -> bool:
    """Whether there is a node that a process could hold. Raises OSError when `/dev` cannot be listed."""
    return any(_DEVICE.fullmatch(f"/dev/{name}") for name in os.listdir(roots.dev))


def read_holders(roots: Roots, *, run: Collection[int] = (), leave_out: Collection[int] = ()) -> Holders:
    """Everybody who has a device open; `run` are the pids of this job's run. Raises OSError.

    Measured: 6 ms on a host with 96 processes and 235 open files; without a device nothing is scanned.
    """
    if not has_device(roots):
        return Holders()
    scan = Scan(roots.proc)
    nodes: dict[int, set[str]] = {}
    for file in scan:
        if file.name.startswith(("/dev/nvidia", "/dev/dxg")) and file.pid not in leave_out:
            nodes.setdefault(file.pid, set()).add(file.name)
    holders = []
    for pid in sorted(nodes):
        if not any(_DEVICE.fullmatch(node) for node in nodes[pid]):
            continue
        process = read_process(pid, roots.proc)
        if process is None:  # ended while we looked: it holds nothing any more
            continue
        if only_asks(process.command) and pid not in run:
            continue
        command, of_run = printable(process.command), pid in run
        holders.append(DeviceHolder(pid=pid, command=command, nodes=tuple(sorted(nodes[pid])), of_run=of_run))
    return Holders(holders=tuple(holders), unreadable=scan.unreadable)
