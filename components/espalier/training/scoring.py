"""Log-probs of tokens under the policy, computed only where they are asked for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from espalier.training.packing import PackedBatch


class Scores(NamedTuple):
    """[N] log-probs of the scored tokens, and the entropy of the distributions they came from."""

    logprobs_N: Tensor
    entropy_N: Tensor


def score(model: PreTrainedModel, batch: PackedBatch, *, temperature: float = 1.0) -> Scores:
    """Score the batch's tokens (nats), with gradient where the caller has it enabled.

    The output projection runs on the N scored positions alone: in a search episode most tokens
    are read, not written.
    """
    hidden_RTH = model.base_model(
        input_ids=batch.token_ids_RT,
        position_ids=batch.position_ids_RT,
        attention_mask=_attention_masks(model, batch),
        use_cache=False,
    ).last_hidden_state
    before_NH = hidden_RTH[batch.scored_rows_N, batch.scored_columns_N - 1]
    projection = model.get_output_embeddings()
    assert projection is not None, "a causal LM has an output projection"
    logits_NV = projection(before_NH) / temperature
    all_logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    logprobs_N = all_logprobs_NV.gather(1, batch.targets_N[:, None]).squeeze(1)
    with torch.no_grad():
        entropy_N = -(all_logprobs_NV.exp() * all_logprobs_NV).sum(dim=-1)
    return Scores(logprobs_N, entropy_N)


def _attention_masks(model: PreTrainedModel, batch: PackedBatch) -> Tensor | dict[str, Tensor]:
    segments = batch.segment_ids_RT
    width = segments.shape[1]
    same = segments[:, :, None] == segments[:, None, :]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    attends = (same & causal)[:, None]
    if getattr(model.config, "layer_types", None) and "conv" in model.config.layer_types:
        return {"full_attention": attends, "conv": (segments > 0).to(torch.float32)}
    return attends
