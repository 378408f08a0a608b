"""Which decoder fits a policy's architecture: the fastest one that is exact for it."""

from __future__ import annotations

import numpy as np
import torch
from transformers import Lfm2ForCausalLM, PreTrainedModel

from espalier.rollout.engines.decoder import Decoder
from espalier.rollout.engines.engine import StopRule
from espalier.rollout.engines.fused_decoder import FusedDecoder, is_fusible
from espalier.rollout.engines.hf_decoder import HfDecoder, NotPlainAttentionError, is_pageable
from espalier.rollout.engines.lockstep import LockstepEngine
from espalier.rollout.engines.rowwise_decoder import RowwiseDecoder

_FUSED_BELOW = 200_000_000
"""Parameters from which on products take nearly all the time of a step, and a second copy of the
weights nearly all the memory."""


def lockstep_engine(
    model: PreTrainedModel, stop_rule: StopRule, *, max_rows: int
) -> LockstepEngine:
    """An engine over `model` in this process."""
    return LockstepEngine(model, decoder_for(model), stop_rule, max_rows=max_rows)


def decoder_for(model: PreTrainedModel) -> Decoder:
    """The fastest decoder that says what plain transformers says of a short text."""
    is_small = model.num_parameters() < _FUSED_BELOW or isinstance(model, Lfm2ForCausalLM)
    if is_small and is_fusible(model) and _agrees(FusedDecoder(model), model):
        return FusedDecoder(model)
    if is_pageable(model) and _agrees(HfDecoder(model), model):
        return HfDecoder(model)
    return RowwiseDecoder(model)


@torch.inference_mode()
def _agrees(decoder: Decoder, model: PreTrainedModel) -> bool:
    token_ids = np.arange(12) % model.config.get_text_config().vocab_size
    slot = np.zeros(1, np.int64)
    was_training = model.training
    expected = model.eval()(torch.from_numpy(token_ids)[None], use_cache=False).logits[0, -1]
    model.train(was_training)
    decoder.begin()
    try:
        for part in (token_ids[:7], token_ids[7:11], token_ids[11:]):
            hidden = decoder.advance(slot, slot + len(part), part)
    except NotPlainAttentionError:
        return False
    got = decoder.logits(hidden)[0]
    decoder.end()
    return torch.allclose(got, expected, rtol=1e-3, atol=1e-3)
