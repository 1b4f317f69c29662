"""Limits: the figures that checks compare facts with, passed in and never reached for.

Responsible for the names, the units and the defaults. Refuses to know where a figure comes from: settings fill this
in for a job; `diagnose` without any configuration uses the defaults.
"""

from __future__ import annotations

import dataclasses

GIB = 1024**3


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one job asks of its host.

    `memory_need_bytes` and `disk_need_bytes` are what a launch needs free; below `inodes_least` free inodes a
    checkpoint, a log and a ledger can no longer be counted on.
    """

    memory_need_bytes: int = GIB
    disk_need_bytes: int = GIB
    inodes_least: int = 1000
