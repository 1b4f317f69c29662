"""Limits as a person configures them: the key in the file, and the value with its unit."""

from __future__ import annotations

from typing import Any

_ELSEWHERE = {  # limits that are no keys of [limits]
    "memory_need_bytes": "[memory] need",
    "disk_need_bytes": "[disk] need",
    "devices": "[job] devices",
    "devices_doubt": "CUDA_VISIBLE_DEVICES",
    "train_deadline_s": "[deadlines] train",
    "first_step_deadline_s": "[deadlines] first_step",
    "xid": "[checks] xid",
}


def key_of(name: str) -> str:
    """`[limits] xid_window` for the field `xid_window_s`."""
    return _ELSEWHERE.get(name) or f"[limits] {name.removesuffix('_s').removesuffix('_bytes')}"


def shown(name: str, value: Any) -> str:
    """`3600 s`, `1 GiB`, `0.45`, `GPU-3f1c, 1`."""
    if value is None or value in ({}, ""):
        return "none stated"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes"):
        return f"{value / 1024**3:g} GiB"
    seconds = name.endswith("_s") and not name.endswith("per_s")
    return f"{value:g} s" if seconds else f"{value:g}"
