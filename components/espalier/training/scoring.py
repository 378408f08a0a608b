"""Log-probs of tokens under the policy, computed only where they are asked for.

Axes: R rows, T tokens of a row, N scored tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from espalier.training.distribution import ScoreRequest, Scores, joined, token_scores
from espalier.training.packing import PackedBatch

LOGITS_AT_ONCE = 1 << 26
"""256 MiB of float32. A vocabulary of 150k would otherwise need 5 GB for 8k tokens, several times
over in the backward pass; beyond this, logits are computed by the piece, and again in backward."""

PLAIN = ScoreRequest()


def score(model: PreTrainedModel, batch: PackedBatch, request: ScoreRequest = PLAIN) -> Scores:
    """Score the batch's tokens (nats), with gradient where the caller has it enabled.

    The output projection runs on the N scored positions alone: in a search episode most tokens
    are read, not written.
    """
    before_NH = hidden_before(model.base_model, batch)
    projection = model.get_output_embeddings()
    assert projection is not None, "a causal LM has an output projection"

    def scored(hidden_NH: Tensor, targets_N: Tensor) -> Scores:
        return token_scores(projection(hidden_NH), targets_N, request)

    piece = max(1, LOGITS_AT_ONCE // projection.weight.shape[0])
    if len(before_NH) <= piece:
        return scored(before_NH, batch.targets_N)
    parts: list[Scores] = [
        checkpoint(scored, hidden_NH, targets_N, use_reentrant=False)
        for hidden_NH, targets_N in zip(
            before_NH.split(piece), batch.targets_N.split(piece), strict=True
        )
    ]
    return joined(parts)


class Scorer(nn.Module):
    """A causal LM that is asked for log-probs and nothing else.

    A sharded model gathers its weights when the outermost module is called; this is that module.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: PackedBatch, request: ScoreRequest) -> Scores:
        """See `score`."""
        return score(self.model, batch, request)


def hidden_before(base_model: nn.Module, batch: PackedBatch) -> Tensor:
    """[N, H]: the last hidden state at the position before each scored token."""
    hidden_RTH = base_model(
        input_ids=batch.token_ids_RT,
        position_ids=batch.position_ids_RT,
        attention_mask=_attention_masks(base_model, batch),
        use_cache=False,
    ).last_hidden_state
    return hidden_RTH[batch.scored_rows_N, batch.scored_columns_N - 1]


def _attention_masks(base_model: nn.Module, batch: PackedBatch) -> Tensor | dict[str, Tensor]:
    segments = batch.segment_ids_RT
    width = segments.shape[1]
    same = segments[:, :, None] == segments[:, None, :]
    causal = torch.ones(width, width, dtype=torch.bool, device=segments.device).tril()
    attends = (same & causal)[:, None]
    layer_types = getattr(base_model.config, "layer_types", None)
    if layer_types and "conv" in layer_types:
        return {"full_attention": attends, "conv": (segments > 0).to(torch.float32)}
    return attends
