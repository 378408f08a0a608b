"""The optimiser and its schedule, shared by every kind of training here."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from espalier.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Linear warm-up, then cosine decay to `final_share` of the peak (step counts from 0)."""
    warmup = max(1, round(config.warmup_share * total_steps))
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, total_steps - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.learning_rate * (config.final_share + (1 - config.final_share) * cosine)


class Updater:
    """AdamW with clipping; one `apply` is one optimizer step."""

    def __init__(self, model: nn.Module, config: OptimizerConfig, total_steps: int) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._config = config
        self._total_steps = total_steps
        decayed = [p for p in self._parameters if p.ndim >= 2]
        plain = [p for p in self._parameters if p.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": config.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=config.learning_rate,
            betas=config.betas,
            fused=True,
        )

    def apply(self, step: int) -> float:
        """Clip the accumulated gradient, update at `step`'s learning rate, clear the gradient.

        Returns:
            The gradient's norm before clipping.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self._config, step, self._total_steps)
        norm = nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm)
