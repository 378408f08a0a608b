"""Causal LMs of a few thousand parameters, one for each way of decoding."""

from functools import cache

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from espalier.rollout.engines.decoder import RowwiseDecoder
from espalier.rollout.engines.fused_decoder import FusedDecoder
from espalier.rollout.engines.hf_decoder import HfDecoder
from tests.factories.tiny import tiny_policy

VOCABULARY = 300

_NO_SPECIALS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    # a fresh model of this width is all but uniform; wider weights make its choices differ
    "initializer_range": 0.2,
    **_NO_SPECIALS,
}


def _built(model_class, config):
    torch.manual_seed(0)
    return model_class(config).eval()


@cache
def qwen3():
    return _built(Qwen3ForCausalLM, Qwen3Config(head_dim=8, **_SIZES))


@cache
def qwen2():
    model = _built(Qwen2ForCausalLM, Qwen2Config(**_SIZES))
    for layer in model.model.layers:  # biases begin at zero
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            torch.nn.init.normal_(part.bias)
    return model


@cache
def llama():
    return _built(LlamaForCausalLM, LlamaConfig(**_SIZES))


@cache
def gelu_llama():
    return _built(LlamaForCausalLM, LlamaConfig(hidden_act="gelu", **_SIZES))


@cache
def gemma2_with_capped_logits():
    config = Gemma2Config(head_dim=8, layer_types=["full_attention"] * 2, **_SIZES)
    return _built(Gemma2ForCausalLM, config)


@cache
def mamba():
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, **_NO_SPECIALS)
    return _built(MambaForCausalLM, config)


@cache
def mistral_with_a_window():
    return _built(MistralForCausalLM, MistralConfig(sliding_window=8, **_SIZES))


@cache
def mistral():
    return _built(MistralForCausalLM, MistralConfig(sliding_window=None, **_SIZES))


@cache
def gpt2():
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=256, **_NO_SPECIALS
    )
    return _built(GPT2LMHeadModel, config)


@cache
def lfm2_with_shared_heads_and_biases():
    config = Lfm2Config(
        **_SIZES | {"num_hidden_layers": 3},
        block_auto_adjust_ff_dim=False,
        layer_types=["conv", "full_attention", "full_attention"],
        conv_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    return _built(Lfm2ForCausalLM, config)


@cache
def embedded():
    return tiny_policy().model


CASES = {
    "tiny policy": (FusedDecoder, embedded),
    "fused lfm2": (FusedDecoder, lfm2_with_shared_heads_and_biases),
    "fused qwen3": (FusedDecoder, qwen3),
    "fused qwen2 with biases": (FusedDecoder, qwen2),
    "fused llama": (FusedDecoder, llama),
    "qwen3 in pages": (HfDecoder, qwen3),
    "gpt2 in pages": (HfDecoder, gpt2),
    "mistral by its window": (RowwiseDecoder, mistral_with_a_window),
    "qwen3 row by row": (RowwiseDecoder, qwen3),
    "lfm2 row by row": (RowwiseDecoder, lfm2_with_shared_heads_and_biases),
}
"""Each decoder with models that ask different things of it."""
