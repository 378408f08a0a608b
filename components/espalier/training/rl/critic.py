"""The critic: a value of the state before each token, learned beside the policy.

Its body starts as a copy of the policy's, its head at zero; weights and optimizer are its own.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from espalier.training.packing import PackedBatch
from espalier.training.scoring import hidden_before


class Critic(nn.Module):
    """A transformer without its vocabulary, and a linear head."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.body = copy.deepcopy(policy.base_model)
        width = int(policy.config.hidden_size)
        self.head = nn.Linear(width, 1, device=policy.device, dtype=policy.dtype)
        # the first values are 0, and not noise that the advantages would carry
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: PackedBatch) -> Tensor:
        """[N] reward units: the value before each scored token."""
        hidden_NH = hidden_before(self.body, batch)
        with torch.autocast(hidden_NH.device.type, enabled=False):
            values_N1 = self.head(hidden_NH.to(self.head.weight.dtype))
        return values_N1.sum(dim=1)  # no squeeze: a sharded module must not return a view
