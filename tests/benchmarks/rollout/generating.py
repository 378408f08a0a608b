"""What both contestants over transformers' `generate` share: turn lengths, and a count of work."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor, PreTrainedModel


class ClosesTurns(LogitsProcessor):
    """Writes the closing tag at each row's scripted length: `generate` ends a row by a token."""

    def __init__(self, lengths: Sequence[int], prompt_width: int, closing_id: int) -> None:
        self._ends = torch.tensor(lengths) + prompt_width
        self._closing_id = closing_id

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        closing = self._ends == input_ids.shape[1] + 1
        if closing.any():
            scores = scores.clone()
            scores[closing] = -torch.inf
            scores[closing, self._closing_id] = 0.0
        return scores


class ForwardCounter:
    """Counts the positions that a model forwards."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.positions = 0
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(
        self, _: torch.nn.Module, args: tuple[torch.Tensor, ...], named: dict[str, object]
    ) -> None:
        token_ids = args[0] if args else named["input_ids"]
        assert isinstance(token_ids, torch.Tensor)
        self.positions += token_ids.numel()
