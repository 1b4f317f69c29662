"""Where the supervisor stands: the word that status, metrics and the ledger share."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """Where the supervisor stands; the value is what people and metrics see."""

    GATING = "gating"  # choosing a checkpoint and waiting for the gates
    RUNNING = "running"
    STOPPING = "stopping"
    WEIGHING = "weighing"  # a run has ended; what follows depends on what it left
    BACKOFF = "backoff"
    HOLD = "hold"
    FINISHED = "finished"
    LEFT = "left"
