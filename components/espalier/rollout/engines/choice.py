"""Which decoder fits a policy's architecture."""

from __future__ import annotations

from transformers import Lfm2ForCausalLM, PreTrainedModel

from espalier.rollout.engines.decoder import Decoder
from espalier.rollout.engines.engine import StopRule
from espalier.rollout.engines.hf_decoder import HfDecoder, is_pageable
from espalier.rollout.engines.lfm2_decoder import Lfm2Decoder
from espalier.rollout.engines.lockstep import LockstepEngine
from espalier.rollout.engines.rowwise_decoder import RowwiseDecoder


def lockstep_engine(
    model: PreTrainedModel, stop_rule: StopRule, *, max_rows: int
) -> LockstepEngine:
    """An engine over `model` in this process, with the fastest decoder that is exact for it."""
    return LockstepEngine(model, _decoder(model), stop_rule, max_rows=max_rows)


def _decoder(model: PreTrainedModel) -> Decoder:
    if isinstance(model, Lfm2ForCausalLM):
        rope = model.config.rope_parameters
        if rope is not None and rope.get("rope_type") == "default":
            return Lfm2Decoder(model)
    return HfDecoder(model) if is_pageable(model) else RowwiseDecoder(model)
