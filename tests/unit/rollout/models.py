"""Causal LMs of a few thousand parameters, one for each way of decoding."""

from functools import cache

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from espalier.rollout.engines.hf_decoder import HfDecoder
from espalier.rollout.engines.lfm2_decoder import Lfm2Decoder
from espalier.rollout.engines.rowwise_decoder import RowwiseDecoder
from tests.unit.tiny import tiny_policy

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
def llama():
    return _built(LlamaForCausalLM, LlamaConfig(**_SIZES))


@cache
def mistral_with_a_window():
    return _built(MistralForCausalLM, MistralConfig(sliding_window=8, **_SIZES))


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


DECODERS = {
    "embedded policy": lambda: Lfm2Decoder(embedded()),
    "lfm2": lambda: Lfm2Decoder(lfm2_with_shared_heads_and_biases()),
    "qwen3": lambda: HfDecoder(qwen3()),
    "llama": lambda: HfDecoder(llama()),
    "gpt2": lambda: HfDecoder(gpt2()),
    "windowed": lambda: RowwiseDecoder(mistral_with_a_window()),
    "row by row": lambda: RowwiseDecoder(lfm2_with_shared_heads_and_biases()),
}
MODELS = {
    "embedded policy": embedded,
    "lfm2": lfm2_with_shared_heads_and_biases,
    "qwen3": qwen3,
    "llama": llama,
    "gpt2": gpt2,
    "windowed": mistral_with_a_window,
    "row by row": lfm2_with_shared_heads_and_biases,
}
