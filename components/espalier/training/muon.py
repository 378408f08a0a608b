"""Muon for the weight matrices of a policy, AdamW for all else, as one optimizer.

Jordan et al. 2024 (kellerjordan.github.io/posts/muon): the momentum of a matrix is made orthogonal,
so that an update moves all its directions alike. The scale of Liu et al. 2025 (arXiv:2502.16982,
sec. 2.2) lets both share one learning rate. Both are `torch.optim`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


class MuonWithAdamW(torch.optim.Optimizer):
    """One state and one list of groups over torch's two optimizers: saved and restored as one."""

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        others: Sequence[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        """Set up.

        Args:
            matrices: weights of two dimensions that map hidden states to hidden states.
            others: groups of all other parameters, each with its weight decay.
            lr: of the first step, for both.
            betas: of AdamW's moments; the second is Muon's momentum too.
            weight_decay: of the matrices.
        """
        self._muon = torch.optim.Muon(
            matrices,
            lr=lr,
            weight_decay=weight_decay,
            momentum=betas[1],
            adjust_lr_fn="match_rms_adamw",
        )
        self._adamw = torch.optim.AdamW(others, lr=lr, betas=betas, fused=True)
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        assert closure is None, "neither is asked to compute the loss again"
        # loading a state replaces both: the parts are handed what is there now
        parts = ((self._muon, self.param_groups[:1]), (self._adamw, self.param_groups[1:]))
        for part, groups in parts:
            part.param_groups, part.state = groups, self.state
            part.step()


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trained weights that Muon is for: all matrices but embeddings and output layers."""
    # the output layer is "lm_head" in most models, "embed_out" or else in others
    output = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    outer = {
        id(module.weight)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        or module is output
        or name.rpartition(".")[2] in ("lm_head", "score")
        if isinstance(getattr(module, "weight", None), nn.Parameter)
    }
    return [
        parameter
        for parameter in model.parameters()
        if parameter.requires_grad
        and parameter.ndim == 2
        and min(parameter.shape) > 1
        and id(parameter) not in outer
    ]
