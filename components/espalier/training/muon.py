"""One optimizer that applies Muon to the weight matrices of a policy and AdamW to the rest.

Jordan et al. 2024 (kellerjordan.github.io/posts/muon): the momentum of a matrix is made orthogonal,
so that an update is equally large in all its directions. The scale of Liu et al. 2025
(arXiv:2502.16982, sec. 2.2) lets both rules share one learning rate.

`torch.optim.Muon` computes in bfloat16 everywhere. A CPU without bfloat16 instructions takes a
hundred times as long, which was most of a step of a small policy; here a CPU computes in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan's polynomial. It is steep at zero: five iterations are enough."""
_ITERATIONS = 5
_SMALLEST_NORM = 1e-7
_RMS_OF_ADAMW = 0.2
"""Root mean square of AdamW's usual updates (Liu et al.)."""


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon and AdamW with one state and one list of groups, the first of them Muon's."""

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
            lr: learning rate of the first step, for both.
            betas: decay rates of AdamW's moments; the second is also Muon's momentum.
            weight_decay: weight decay of the matrices.
        """
        muon = {
            "params": list(matrices),
            "lr": lr,
            "momentum": betas[1],
            "weight_decay": weight_decay,
        }
        self._adamw = torch.optim.AdamW(others, lr=lr, betas=betas, fused=True)
        super().__init__([muon, *self._adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        assert closure is None, "neither is asked to compute the loss again"
        muon, *others = self.param_groups
        for matrix in muon["params"]:
            if matrix.grad is not None:
                self._update(matrix, matrix.grad, muon)
        # loading a state replaces both lists: AdamW must use the current ones
        self._adamw.param_groups, self._adamw.state = others, self.state
        self._adamw.step()

    def _update(self, matrix: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum = state["momentum_buffer"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        update = orthogonalized(gradient.lerp(momentum, group["momentum"]))  # Nesterov momentum
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        scale = _RMS_OF_ADAMW * math.sqrt(max(matrix.shape))
        matrix.add_(update, alpha=-group["lr"] * scale)


def orthogonalized(matrix: Tensor) -> Tensor:
    """Return the matrix with singular values between 0.5 and 1.5, and its directions unchanged.

    It uses the Newton-Schulz iterations of Jordan et al., in bfloat16 on a GPU and in float32
    elsewhere.
    """
    linear, cubic, quintic = _QUINTIC
    turned = matrix.bfloat16() if matrix.is_cuda else matrix.float()
    is_tall = matrix.size(0) > matrix.size(1)
    turned = turned.T if is_tall else turned
    turned = turned / turned.norm().clamp(min=_SMALLEST_NORM)
    for _ in range(_ITERATIONS):
        gram = turned @ turned.T
        gram = torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic)
        turned = torch.addmm(turned, gram, turned, beta=linear)
    return turned.T if is_tall else turned


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the trained weights for Muon: all matrices except embeddings and output layers."""
    # the output layer is "lm_head" in most models, "embed_out" or another name in others
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
