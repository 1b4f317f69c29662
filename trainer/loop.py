"""The loop: step, beat, log, evaluate, save; drain when asked; stop when it diverges.

Responsible for the order of these and for what each failure means: a disk that is full costs a checkpoint, not the
training; a loss or gradient that is not finite ends it. Refuses to know how the state came to be (`job`), and holds
no fault of its own making: drills come from outside.
"""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer import optimizer as optimizers
from trainer import state as states
from trainer.console import Console
from trainer.data import Dataset
from trainer.errors import Diverged, TrainerError, first_errno
from trainer.presets import Preset
from trainer.state import State
from watchdog import contract
from watchdog.contract import Run

SUMMARY = "summary.json"
_REST_SLICE_S = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cadence:
    """Steps between saves, evaluations (0: only at the end) and lines; rest in seconds after each step."""

    save_every: int
    eval_every: int
    log_every: int
    step_delay_s: float
    gradient_limit: float


def micro_batch(batch: int, halvings: int) -> int:
    """Samples at once when a batch is halved so often, down to 1. Rounded up: the last part may be smaller."""
    return max(1, -(-batch // 2**halvings))


def loss_of(model: nn.Module, windows: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats per token of windows (B, context + 1): each token from those before it; fp32."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten(), reduction=reduction)


def gradients_of(model: nn.Module, windows: Tensor, *, at_once: int) -> float:
    """Adds the gradients of the mean loss over all windows; returns that loss, in nats.

    With all windows at once it is one pass to the last bit. In parts it is the same mean over the same tokens, summed
    in another order, for a part of the memory. Stops at a part whose loss is not finite.
    """
    total = 0.0
    for part in windows.split(at_once):
        loss = loss_of(model, part) * (len(part) / len(windows))
        total += loss.item()
        if not math.isfinite(total):
            break
        loss.backward()
    return total


def validation_loss(model: nn.Module, data: Dataset, preset: Preset, run: Run) -> float:
    """Mean cross-entropy in nats over the preset's windows of the validation text, always the same ones."""
    at_once = micro_batch(preset.batch, run.batch_halvings)
    windows = torch.from_numpy(data.validation_windows(preset.validation_windows, context=preset.context))
    total = 0.0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(windows), at_once):
            run.beat("evaluate", progress=start / len(windows))
            total += loss_of(model, windows[start : start + at_once], reduction="sum").item()
    model.train()
    return total / (len(windows) * preset.context)


def worst_gradient(model: nn.Module) -> tuple[str, float]:
    """The tensor to blame: the first with a gradient that is not finite, else the one with the largest norm."""
    worst, largest = "", -1.0
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        norm = parameter.grad.float().norm().item()
        if not math.isfinite(norm):
            return name, norm
        if norm > largest:
            worst, largest = name, norm
    return worst, largest


class Training:
    """One run of the loop over a state that is ready: fresh and saved, or restored."""

    def __init__(
        self,
        *,
        run: Run,
        console: Console,
        preset: Preset,
        cadence: Cadence,
        folder: Path,
        data: Dataset,
        state: State,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        saved_step: int | None,
    ) -> None:
        self.run = run
        self.console = console
        self.preset = preset
        self.cadence = cadence
        self.folder = folder
        self.data = data
        self.state = state
        self.model = model
        self.optimizer = optimizer
        self.saved_step = saved_step
        self.at_once = micro_batch(state.batch, run.batch_halvings)
        self._started_s = time.monotonic()
        self._steps_here = 0

    def train(self) -> int:
        """Until the target or a request to stop. Returns the exit code. Raises Diverged, TrainerError."""
        state, target = self.state, self.state.schedule.target
        self.run.beat(
            "first_step", step=state.step, target_step=target, tokens=state.tokens, checkpoint_step=self.saved_step
        )
        while state.step < target and not self.run.draining:
            norm, rate = self._step()
            self._log(norm, rate)
            if state.step < target:
                if self.cadence.eval_every and state.step % self.cadence.eval_every == 0:
                    self._evaluate()
                if state.step % self.cadence.save_every == 0:
                    self._try_to_save()
                self._rest()
        if state.step < target:
            return self._drain()
        self.save_or_fail("the last checkpoint")
        self._finish()
        return contract.EXIT_FINISHED

    # --- one step -------------------------------------------------------------------------------------------
    def _step(self) -> tuple[float, float]:
        """One step and its beat; the state advances only when the step is whole. Returns gradient norm and rate."""
        state = self.state
        number = state.step + 1
        windows = torch.from_numpy(self.data.batch(state.position, state.batch, context=state.context, seed=state.seed))
        self.optimizer.zero_grad(set_to_none=True)
        value = gradients_of(self.model, windows, at_once=self.at_once)
        if not math.isfinite(value):
            self.run.beat("train", loss=value)
            raise Diverged(f"the loss of step {number} is {value}; nothing after step {state.step} was kept")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.preset.clip).item()
        self._judge(number, value, norm)
        rate = state.schedule.rate(number)
        optimizers.set_rate(self.optimizer, rate)
        self.optimizer.step()
        self._steps_here += 1
        state.step = number
        state.position += state.batch
        state.tokens += state.batch * state.context
        state.last_loss = value
        if state.first_loss is None:
            state.first_loss = value
        self.run.beat("train", step=number, tokens=state.tokens, loss=value, gradient_norm=norm, learning_rate=rate)
        return norm, rate

    def _judge(self, number: int, loss: float, norm: float) -> None:
        limit = self.cadence.gradient_limit
        if math.isfinite(norm) and (self._steps_here > 0 or norm <= limit):
            return
        # Clipping has scaled the gradients already; which one is the largest has not changed by it.
        name, _scaled = worst_gradient(self.model)
        self.run.beat("train", loss=loss, gradient_norm=norm)
        if not math.isfinite(norm):
            raise Diverged(f"the gradient norm of step {number} is {norm}, first in tensor {name}; no step was taken")
        raise Diverged(
            f"the gradient norm of step {number}, the first of this run, is {norm:.3g}, above {limit:g}, most of it in "
            f"tensor {name}; no step was taken (--gradient-limit)"
        )

    def _log(self, norm: float, rate: float) -> None:
        state, every = self.state, self.cadence.log_every
        if state.step % every and state.step != state.schedule.target and self._steps_here > 1:
            return
        elapsed = time.monotonic() - self._started_s
        speed = self._steps_here * state.batch * state.context / max(elapsed, 1e-9)
        self.console.say(
            f"step {state.step}/{state.schedule.target}  loss {state.last_loss:.4f}  grad {norm:.3f}  "
            f"lr {rate:.2e}  {speed:,.0f} tok/s"
        )

    def _rest(self) -> None:
        until = time.monotonic() + self.cadence.step_delay_s
        while not self.run.draining and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _REST_SLICE_S))

    # --- evaluating and saving ------------------------------------------------------------------------------
    def _evaluate(self) -> float:
        loss = validation_loss(self.model, self.data, self.preset, self.run)
        entropy = self.data.entropy
        self.console.say(
            f"evaluate  step {self.state.step}  validation {loss:.4f} nats, {loss / entropy:.3f} of unigram entropy"
        )
        self.run.beat("train")
        return loss

    def save(self) -> None:
        """Raises OSError."""
        if self.saved_step == self.state.step:
            return
        self.run.beat("save")
        manifest = states.save(self.folder, self.state, self.model, self.optimizer, self.run)
        self.saved_step = self.state.step
        size, digest = manifest.files[0].size_bytes / 1e6, manifest.digest[:12]
        self.console.say(f"saved     step {self.state.step}  {size:.1f} MB  sha256 {digest}")

    def _try_to_save(self) -> None:
        try:
            self.save()
        except OSError as error:
            if first_errno(error, states.DISK_ERRNOS) is None:
                raise
            self.console.say(
                f"save      step {self.state.step} could not be saved: {error}; training goes on, the checkpoint of "
                f"step {self.saved_step} stays, next try at step {self.state.step + self.cadence.save_every}"
            )
        self.run.beat("train", checkpoint_step=self.saved_step)

    def save_or_fail(self, what: str) -> None:
        """Save, where going on without would lose the run. Raises TrainerError when the disk does not take it."""
        try:
            self.save()
        except OSError as error:
            if first_errno(error, states.DISK_ERRNOS) is None:
                raise
            raise TrainerError(
                f"{what} (step {self.state.step}) could not be saved: {error}; free the disk of {self.folder} and "
                f"start again"
            ) from error

    # --- endings --------------------------------------------------------------------------------------------
    def _drain(self) -> int:
        self.run.beat("drain")
        self.save_or_fail("the checkpoint on leaving")
        self.run.beat("drain", checkpoint_step=self.saved_step)
        self.console.say(
            f"drained   asked to stop: step {self.state.step} of {self.state.schedule.target} is saved, leaving"
        )
        return contract.EXIT_FINISHED

    def _finish(self) -> None:
        state = self.state
        loss = self._evaluate()
        summary = {
            "event": "summary",
            "preset": state.preset,
            "steps": state.step,
            "tokens": state.tokens,
            "first_loss": state.first_loss,
            "last_loss": state.last_loss,
            "validation_loss": loss,
            "unigram_entropy": self.data.entropy,
            "ratio": loss / self.data.entropy,
        }
        try:
            contract.write_json_durably(self.folder / SUMMARY, summary)
        except OSError as error:
            # The checkpoint is safe and the line below says it all: not worth a failure.
            self.console.say(f"summary   could not be written to {self.folder / SUMMARY}: {error}")
        self.console.say_json(summary)
        self.run.beat("finished", step=state.step, checkpoint_step=self.saved_step)
