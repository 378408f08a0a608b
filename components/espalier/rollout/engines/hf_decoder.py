"""A decoder over any Hugging Face causal LM, by its own cache."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


class HfDecoder:
    """Drives a model through `past_key_values`; correct for every architecture, tuned for none."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)

    @torch.inference_mode()
    def start(self, token_ids_PT: Tensor, *, rows: Tensor, max_tokens: int) -> Tensor:
        """See `Decoder.start`; the cache grows as needed, so `max_tokens` is not reserved."""
        del max_tokens
        self._cache = DynamicCache(config=self._model.config)
        hidden = self._forward(token_ids_PT)
        self.keep(rows)
        return hidden[rows]

    @torch.inference_mode()
    def advance(self, token_ids_B: Tensor) -> Tensor:
        """See `Decoder.advance`."""
        return self._forward(token_ids_B[:, None])

    @torch.inference_mode()
    def logits(self, hidden_NH: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        projection = self._model.get_output_embeddings()
        assert projection is not None, "a causal LM has an output projection"
        return projection(hidden_NH)

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """See `Decoder.keep`."""
        self._cache.reorder_cache(cast("torch.LongTensor", rows))

    def _forward(self, token_ids_BT: Tensor) -> Tensor:
        output = self._model.base_model(
            input_ids=token_ids_BT, past_key_values=self._cache, use_cache=True
        )
        return output.last_hidden_state[:, -1]
