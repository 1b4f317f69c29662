"""The bundled trainer runs out of device memory, and ends as the undisturbed one does but for rounding."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.campaign_bed import Bed, trainer_command
from bench.campaign_workshop import PRESET, STEPS, Workshop

# The device of this trainer has room for two windows at once, and for four until something else takes room on it.
SMALL_DEVICE = """
import sys
import torch
from trainer import loop
from trainer.__main__ import main

plain, passes = loop.loss_of, 0


def loss_of(model, windows, **how):
    global passes
    passes += 1
    if passes > 12 and len(windows) > 2:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has")
    return plain(model, windows, **how)


loop.loss_of = loss_of
sys.exit(main())
"""


def test_the_bundled_trainer_goes_on_in_smaller_pieces(tmp_path: Path, workshop: Workshop, beds: list[Bed]) -> None:
    script = tmp_path / "small_device.py"
    script.write_text(SMALL_DEVICE)
    words = trainer_command(text=workshop.text, cache=workshop.cache, preset=PRESET, steps=STEPS, delay_s=0.0)
    root = tmp_path / "bed"
    root.mkdir()
    bed = Bed(root, [sys.executable, "-P", str(script), *words], settings={"job": {"shrink_batch": 3}})
    beds.append(bed)
    bed.observe()
    assert bed.ended(bed.start()) == 0, bed.tell()
    causes = [event["data"]["cause"] for event in bed.kinds("run_weighed")]
    assert causes == ["cuda_out_of_memory", "finished"], bed.tell()
    launches = [(event["data"]["resume_step"], event["data"]["batch_halvings"]) for event in bed.kinds("run_launching")]
    assert launches == [(None, 0), (10, 1)], bed.tell()
    assert not bed.problems(), bed.tell()

    seen, whole = bed.outcome(), workshop.reference()
    for exact in ("steps", "tokens", "first_loss"):
        assert seen.summary[exact] == whole.summary[exact], exact
    for rounded in ("last_loss", "validation_loss"):
        assert seen.summary[rounded] == pytest.approx(whole.summary[rounded], rel=1e-4), rounded
    assert seen.digest != whole.digest, "its sums were made in another order"
