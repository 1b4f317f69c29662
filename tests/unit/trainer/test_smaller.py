"""A smaller micro-batch: the same tokens, the same order, the same training but for the last bits of a sum."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.capture import CaptureFixture
from hypothesis import given
from hypothesis import strategies as st

from watchdog import contract

Call = Callable[..., int]
STEPS, RESUMED = 24, 8
RUN = ["--steps", str(STEPS), "--save-every", str(RESUMED), "--log-every", "1"]


def losses(said: str) -> dict[int, float]:
    """By step, as the trainer printed them."""
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+)/\d+  loss (\S+)", said, re.MULTILINE)}


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many windows went through the model at once, in training and in evaluating."""
    from trainer import loop

    seen: list[int] = []
    plain = loop.loss_of

    def watched(model, windows, **how):  # type: ignore[no-untyped-def]
        seen.append(len(windows))
        return plain(model, windows, **how)

    monkeypatch.setattr(loop, "loss_of", watched)
    return seen


@pytest.mark.parametrize(("halvings", "at_once"), [(1, 2), (2, 1), (5, 1)])
def test_resumed_with_smaller_micro_batches_it_ends_as_the_undisturbed_one(
    call: Call,
    arguments: list[str],
    supervised,
    capfd: CaptureFixture[str],
    sizes: list[int],
    halvings: int,
    at_once: int,
) -> None:
    assert call([*arguments, *RUN], supervised.environment(resume="fresh")) == 0
    whole = losses(capfd.readouterr().out)
    folder: Path = supervised.checkpoints
    before = json.loads((folder / "summary.json").read_text())
    digest = contract.Manifest.read(folder / f"step-{STEPS:08d}.manifest.json").digest
    assert set(sizes) == {4}, "the whole batch of the preset at once"

    for path in folder.glob("step-*"):
        if int(path.name[5:13]) > RESUMED:
            path.unlink()
    supervised.ack_file.unlink()
    sizes.clear()
    manifest = folder / f"step-{RESUMED:08d}.manifest.json"
    environment = supervised.environment(resume="require", manifest=manifest)
    assert call([*arguments, *RUN], {**environment, contract.ENV_BATCH_HALVINGS: str(halvings)}) == 0
    said = capfd.readouterr().out
    assert set(sizes) == {at_once}, "in training and in evaluating"
    assert f"batch     4 samples a step, {at_once} at once" in said

    small = losses(said)
    assert sorted(small) == list(range(RESUMED + 1, STEPS + 1)), "the same steps, each once"
    for step, loss in small.items():
        assert loss == pytest.approx(whole[step], abs=2e-3), step
    after = json.loads((folder / "summary.json").read_text())
    assert after["tokens"] == before["tokens"]
    assert after["validation_loss"] == pytest.approx(before["validation_loss"], rel=1e-3)
    assert after["last_loss"] == pytest.approx(before["last_loss"], rel=1e-3)
    record = contract.Manifest.read(folder / f"step-{STEPS:08d}.manifest.json")
    assert (record.step, record.tokens) == (STEPS, before["tokens"])
    assert supervised.beat().tokens == before["tokens"]
    assert record.digest != digest, "it went another way: the sums were made in another order"


def test_grown_back_it_goes_on_from_what_the_small_one_saved(
    call: Call, arguments: list[str], supervised, sizes: list[int]
) -> None:
    environment = supervised.environment(resume="fresh")
    assert call([*arguments, *RUN], {**environment, contract.ENV_BATCH_HALVINGS: "1"}) == 0
    supervised.ack_file.unlink()
    sizes.clear()
    manifest = supervised.checkpoints / f"step-{RESUMED * 2:08d}.manifest.json"
    (supervised.checkpoints / f"step-{STEPS:08d}.manifest.json").unlink()
    assert call([*arguments, *RUN], supervised.environment(resume="require", manifest=manifest)) == 0
    assert set(sizes) == {4}
    assert supervised.beat().step == STEPS


def test_the_gradients_are_those_of_the_mean_over_all_tokens() -> None:
    import torch

    from trainer import presets
    from trainer.loop import gradients_of, loss_of
    from trainer.models import build

    chosen = presets.preset("transformer-test")
    torch.manual_seed(1)
    model = build(chosen).double()
    windows = torch.randint(0, chosen.vocabulary, (7, 33))
    expected_loss = loss_of(model, windows)
    expected_loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    for at_once in (1, 2, 3, 4, 7):  # parts that are no divisors weigh as much as they are long
        model.zero_grad(set_to_none=True)
        value = gradients_of(model, windows, at_once=at_once)
        assert value == pytest.approx(expected_loss.item(), rel=1e-6)
        found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@given(batch=st.integers(1, 4096), halvings=st.integers(0, contract.BATCH_HALVINGS_MOST))
def test_a_micro_batch_is_never_larger_than_asked_for_and_never_nothing(batch: int, halvings: int) -> None:
    from trainer.loop import micro_batch

    size = micro_batch(batch, halvings)
    assert 1 <= size <= batch
    assert size == 1 or size < batch / 2**halvings + 1


def test_what_the_supervisor_did_not_say_is_told_and_nothing_is_trained(
    call: Call, arguments: list[str], supervised, capfd: CaptureFixture[str]
) -> None:
    environment = {**supervised.environment(resume="fresh"), contract.ENV_BATCH_HALVINGS: "one"}
    assert call([*arguments, *RUN], environment) == 1
    assert "GPUHOST_WATCHDOG_BATCH_HALVINGS is 'one', not a whole number from 0 to 16" in capfd.readouterr().err
    assert not list(supervised.checkpoints.glob("*.pt"))
