"""The embedded policy: a small LFM2 (short convolutions and attention), trained from scratch.

LFM2 is chosen by measurement: with its depthwise convolutions, a model of half a million parameters
learns to copy names in minutes on a CPU, which plain attention of that size does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import GenerationConfig, Lfm2Config, Lfm2ForCausalLM, PreTrainedTokenizerBase

from espalier.config import PolicyConfig
from espalier.policy.tokenizer import END, PAD

_LAYER_TYPES = {"conv": "conv", "attention": "full_attention"}


def build_policy(
    config: PolicyConfig,
    tokenizer: PreTrainedTokenizerBase,
    stop_texts: Sequence[str],
    *,
    max_tokens: int,
    seed: int,
) -> Lfm2ForCausalLM:
    """Build a randomly initialised policy of `config`'s size for `tokenizer`'s vocabulary.

    Args:
        config: sizes and layers.
        tokenizer: from `train_tokenizer`.
        stop_texts: markers that end a message of the policy; empty if the end token does.
        max_tokens: longest context.
        seed: of the weights.
    """
    torch.manual_seed(seed)
    stop_ids = tokenizer.convert_tokens_to_ids(list(stop_texts) or [END])
    model = Lfm2ForCausalLM(
        Lfm2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.feed_forward_size,
            block_auto_adjust_ff_dim=False,
            num_hidden_layers=len(config.layers),
            layer_types=[_LAYER_TYPES[layer] for layer in config.layers],
            num_attention_heads=config.attention_heads,
            num_key_value_heads=config.attention_heads,
            max_position_embeddings=max_tokens,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            initializer_range=0.05,  # 0.02 suits widths in the thousands; at 128 it learns slower
            pad_token_id=_token_id(tokenizer, PAD),
            bos_token_id=None,
            eos_token_id=_token_id(tokenizer, END),
        )
    )
    model.generation_config = GenerationConfig(
        eos_token_id=stop_ids, pad_token_id=_token_id(tokenizer, PAD)
    )
    return model.eval()


def _token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    token_id = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(token_id, int), "one token has one id"
    return token_id
