"""The optimizer and its learning-rate schedule, for warm start, RL and critic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from espalier.config import OptimizerConfig
from espalier.records import TrainingError
from espalier.training.muon import MuonWithAdamW, hidden_matrices


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Return the rate of `step`, counted from 0: linear warm-up, then cosine decay.

    The decay ends at `final_share` of the peak.
    """
    warmup = max(1, round(config.warmup_share * total_steps))
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, total_steps - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.learning_rate * (config.final_share + (1 - config.final_share) * cosine)


def skipped_warning(step: int, *, skipped: int) -> str:
    """Return a log line on skipped updates of `step` (counted from 1)."""
    return (
        f"warning: step {step}: {skipped} optimizer update(s) skipped, their gradient is not "
        "finite; the weights stay as they were"
    )


class Updater:
    """AdamW or Muon with clipping; one `apply` is one optimizer update.

    A gradient that is not finite is not applied: it would make every weight NaN.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig, total_steps: int) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._config = config
        self._total_steps = total_steps
        self.skipped = 0
        """Number of updates whose gradient was not finite, since this updater was made."""
        self.skipped_in_a_row = 0
        """Number of skipped updates since the last applied one, over all resumes of the run."""
        self.rate_scale = 1.0
        """Factor of the schedule's rate, which a response to a health notice lowers."""
        self.optimizer = _optimizer(model, self._parameters, config)

    def forget_moments(self) -> None:
        """Begin the optimizer's moments anew, for weights that another update left."""
        self.optimizer.state.clear()

    def discard(self) -> None:
        """Clear the accumulated gradient without an update."""
        self.optimizer.zero_grad(set_to_none=True)

    def apply(self, step: int) -> float:
        """Clip the accumulated gradient, update at `step`'s learning rate, clear the gradient.

        With several processes the gradient must be summed over them before: all see the same norm
        and skip the same updates.

        Returns:
            The gradient's norm before clipping; not finite where the update was skipped.

        Raises:
            TrainingError: `max_skipped_updates` updates in a row were skipped.
        """
        for group in self.optimizer.param_groups:
            rate = learning_rate(self._config, step, self._total_steps)
            group["lr"] = self.rate_scale * rate
        norm = nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        norm_value = float(norm)
        if math.isfinite(norm_value):
            self.optimizer.step()
            self.skipped_in_a_row = 0
        else:
            self.skipped += 1
            self.skipped_in_a_row += 1
        self.discard()
        if self.skipped_in_a_row >= self._config.max_skipped_updates:
            raise TrainingError(
                f"step {step + 1}: {self.skipped_in_a_row} optimizer updates in a row had a "
                f"gradient that is not finite (norm {norm_value}) and were skipped, as many as the "
                "optimizer's max_skipped_updates allows; lower its learning_rate, set "
                'hardware.precision = "float32", or bound the importance ratios of '
                "training.algorithm"
            )
        return norm_value


def _optimizer(
    model: nn.Module, parameters: Sequence[nn.Parameter], config: OptimizerConfig
) -> torch.optim.Optimizer:
    matrices = hidden_matrices(model) if config.kind == "muon" else []
    left = {id(p) for p in matrices}
    others = [p for p in parameters if id(p) not in left]
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    if not matrices:
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)
    return MuonWithAdamW(
        matrices,
        groups,
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
    )
