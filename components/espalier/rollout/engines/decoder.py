"""The interface of decoders for the lock-step engine, and the decoder that works for every model.

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
from transformers.cache_utils import DynamicLayer

from espalier.rollout.engines.pages import Ints


class Decoder(Protocol):
    """Incremental decoding of contexts in numbered slots.

    `advance` returns hidden states, and `logits` projects only those that are sampled from:
    observations and prompts cost no projection.
    """

    def begin(self) -> None:
        """Discard every context, and use the current weights from now on."""
        ...

    def end(self) -> None:
        """Discard every context, and free their memory."""
        ...

    @property
    def rewinds(self) -> bool:
        """Whether `rewind` works; it cannot where a state is overwritten, as a window's is."""
        ...

    def advance(
        self, slots_R: Ints, counts_R: Ints, token_ids_M: Ints, lasts_R: Ints | None = None
    ) -> Tensor:
        """Append tokens to some of the contexts; the others do not change.

        Args:
            slots_R: distinct slots; one that is not in use begins with an empty context.
            counts_R: number of tokens to append to each slot, in ascending order.
            token_ids_M: the tokens, row after row.
            lasts_R: how many of a row's last tokens need hidden states; None needs one per row.

        Returns:
            [sum of `lasts_R`, H] hidden states, row after row.
        """
        ...

    def rewind(self, slots_R: Ints, counts_R: Ints) -> None:
        """Take back the last tokens of contexts that the last `advance` appended to.

        Args:
            slots_R: distinct slots.
            counts_R: tokens to take back, fewer than the row's `lasts_R` were.
        """
        ...

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Return [N, V] logits of the next token; the caller may overwrite them."""
        ...

    def fork(self, source: int, targets: Sequence[int]) -> None:
        """Copy the context of `source` to unused slots."""
        ...

    def release(self, slot: int) -> None:
        """Discard the context of `slot`, which may then be used again."""
        ...


class RowwiseDecoder:
    """Keeps one `past_key_values` per slot."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._device = model.device
        self._caches: dict[int, DynamicCache] = {}

    def begin(self) -> None:
        """Discard every context; the weights are read in place."""
        self.end()

    def end(self) -> None:
        """Discard every context, and free their memory."""
        self._caches.clear()

    @property
    def rewinds(self) -> bool:
        """Whether every layer keeps all keys and values, and nothing else."""
        layers = DynamicCache(config=self._model.config).layers
        return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)

    @torch.inference_mode()
    def advance(
        self, slots_R: Ints, counts_R: Ints, token_ids_M: Ints, lasts_R: Ints | None = None
    ) -> Tensor:
        """Append tokens to some of the contexts; the others do not change."""
        parts = torch.from_numpy(token_ids_M).to(self._device).split(counts_R.tolist())
        lasts = [1] * len(parts) if lasts_R is None else lasts_R.tolist()
        rows = zip(slots_R.tolist(), parts, lasts, strict=True)
        return torch.cat([self._read(slot, part)[-last:] for slot, part, last in rows])

    def rewind(self, slots_R: Ints, counts_R: Ints) -> None:
        """Take back the last tokens of contexts that the last `advance` appended to."""
        for slot, count in zip(slots_R.tolist(), counts_R.tolist(), strict=True):
            self._caches[slot].crop(-count)

    @torch.inference_mode()
    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Return [N, V] logits of the next token; the caller may overwrite them."""
        projection = self._model.get_output_embeddings()
        assert projection is not None, "a causal LM has an output projection"
        return projection(hidden_NH)

    @torch.inference_mode()
    def fork(self, source: int, targets: Sequence[int]) -> None:
        """Copy the context of `source` to unused slots."""
        for target in targets:
            self._caches[target] = copy.deepcopy(self._caches[source])

    def release(self, slot: int) -> None:
        """Discard the context of `slot`, which may then be used again."""
        self._caches.pop(slot, None)

    def _read(self, slot: int, token_ids_T: Tensor) -> Tensor:
        if slot not in self._caches:
            self._caches[slot] = DynamicCache(config=self._model.config)
        output = self._model.base_model(
            input_ids=token_ids_T[None], past_key_values=self._caches[slot], use_cache=True
        )
        return output.last_hidden_state[0]
