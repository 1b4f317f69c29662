"""How a collector fared, as status, metrics and a diagnosis show it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CollectorView:
    """How one collector fared last time."""

    duration_s: float
    success: bool
    last_success_wall_s: float | None
    why: str = ""
