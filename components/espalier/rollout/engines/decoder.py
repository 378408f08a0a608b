"""What the lock-step engine needs of a model, and the decoder that works for every model.

`RowwiseDecoder` uses the model's own cache, one row after the other: slow, and exact for whatever
an architecture keeps (windows, convolutions, recurrent states). Siblings: `hf_decoder.py` and
`fused_decoder.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from espalier.rollout.engines.pages import Ints


class Decoder(Protocol):
    """Incremental decoding of contexts in numbered slots.

    `advance` returns hidden states, and `logits` projects only those that are sampled from:
    observations and prompts cost no projection.
    """

    def begin(self) -> None:
        """Forget every context, and use the current weights from now on."""
        ...

    def end(self) -> None:
        """Forget every context, and free their memory."""
        ...

    def advance(self, slots_R: Ints, counts_R: Ints, token_ids_M: Ints) -> Tensor:
        """Append tokens to some of the contexts; the others do not change.

        Args:
            slots_R: distinct slots; one that is not in use begins with an empty context.
            counts_R: how many tokens each appends, in ascending order.
            token_ids_M: the tokens, row after row.

        Returns:
            [R, H] hidden state of each row's last token.
        """
        ...

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """[N, V] logits of the next token; the caller may overwrite them."""
        ...

    def fork(self, source: int, targets: Sequence[int]) -> None:
        """Give unused slots a copy of the context of `source`."""
        ...

    def release(self, slot: int) -> None:
        """Forget the context of `slot`; it may be used again."""
        ...


class RowwiseDecoder:
    """Keeps one `past_key_values` per slot."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._device = model.device
        self._caches: dict[int, DynamicCache] = {}

    def begin(self) -> None:
        """See `Decoder.begin`; the weights are read in place."""
        self.end()

    def end(self) -> None:
        """See `Decoder.end`."""
        self._caches.clear()

    @torch.inference_mode()
    def advance(self, slots_R: Ints, counts_R: Ints, token_ids_M: Ints) -> Tensor:
        """See `Decoder.advance`."""
        parts = torch.from_numpy(token_ids_M).to(self._device).split(counts_R.tolist())
        pairs = zip(slots_R.tolist(), parts, strict=True)
        return torch.stack([self._read(slot, part) for slot, part in pairs])

    @torch.inference_mode()
    def logits(self, hidden_NH: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        projection = self._model.get_output_embeddings()
        assert projection is not None, "a causal LM has an output projection"
        return projection(hidden_NH)

    @torch.inference_mode()
    def fork(self, source: int, targets: Sequence[int]) -> None:
        """See `Decoder.fork`."""
        for target in targets:
            self._caches[target] = copy.deepcopy(self._caches[source])

    def release(self, slot: int) -> None:
        """See `Decoder.release`."""
        self._caches.pop(slot, None)

    def _read(self, slot: int, token_ids_T: Tensor) -> Tensor:
        if slot not in self._caches:
            self._caches[slot] = DynamicCache(config=self._model.config)
        output = self._model.base_model(
            input_ids=token_ids_T[None], past_key_values=self._caches[slot], use_cache=True
        )
        return output.last_hidden_state[0, -1]
