"""The policies of the benchmarks: random weights of a given shape that write tool calls.

A random model samples control tokens now and then, and never a tool call. Two channels of the
residual stream are therefore kept out of the layers' reach: one is the same for all tokens and
forbids control tokens, one marks the start of a turn and calls for `<tool_call>`. The work of a
forward pass stays that of the shape.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Lfm2Config,
    Lfm2ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.benchmarks.rollout.script import TOOL, words

VOCABULARY = 2048
MAX_TOKENS = 4352
PAD, CALL, CALLED = "<|pad|>", "<tool_call>", "</tool_call>"
TURN = {
    "system": "<|system|>",
    "user": "<|user|>",
    "tool": "<|tool|>",
    "assistant": "<|assistant|>",
}
CONTROL = (PAD, CALL, CALLED, *TURN.values())
_FORBIDDING, _STARTING = 0, 1
"""The two channels; their loudness makes a forbidden token rarer than one in e^60."""
_LOUDNESS, _PUSH = 4.0, 60.0

CHAT_TEMPLATE = (
    "{%- if tools -%}<|system|>{{ tools | tojson }}{%- endif -%}"
    "{%- for message in messages -%}"
    "{{ '<|' + message.role + '|>' }}"
    "{%- if message.role == 'assistant' -%}{%- generation -%}"
    "{%- if message.tool_calls -%}"
    "<tool_call>{{ message.tool_calls[0].function | tojson }}</tool_call>"
    "{%- else -%}{{ message.content }}</tool_call>{%- endif -%}"
    "{%- endgeneration -%}"
    "{%- else -%}{{ message.content }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
"""Every turn is opened by one token; an assistant's turn is closed by `</tool_call>`."""


class Shape(NamedTuple):
    """Size of a policy; heads are 32 or 64 wide, which vLLM's CPU kernels know."""

    hidden: int
    feed_forward: int
    layers: int
    heads: int
    key_value_heads: int | None = None
    """None: as many as heads."""
    vocabulary: int = VOCABULARY
    """Tokens that the tokenizer does not have are as rare as control tokens."""


SHAPES = {
    "0.6m": Shape(96, 160, 3, 3),
    "1m": Shape(128, 256, 4, 4),
    "3m": Shape(192, 512, 6, 6),
    "8m": Shape(320, 768, 7, 5),
    "25m": Shape(512, 1408, 8, 8),
    "smollm2": Shape(576, 1536, 30, 9, key_value_heads=3, vocabulary=49_152),
}


def benchmark_tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """Byte-level BPE of the script's words, with one token for each control mark."""
    rng = random.Random(seed)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [words(rng, 40) for _ in range(2000)] + [str(TOOL).replace("'", '"')] * 50
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=CALLED,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def build_model(
    architecture: str, size: str, tokenizer: PreTrainedTokenizerFast, seed: int = 0
) -> PreTrainedModel:
    """Random weights; "qwen3" for all engines, "lfm2" is the tiny policy's architecture."""
    torch.manual_seed(seed)
    shape = SHAPES[size]
    common = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads or shape.heads,
        "max_position_embeddings": MAX_TOKENS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "tie_word_embeddings": False,
    }
    if architecture == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(head_dim=shape.hidden // shape.heads, **common))
    else:
        kinds = ["conv", "full_attention"] * shape.layers
        layers = {"layer_types": kinds[: shape.layers], "block_auto_adjust_ff_dim": False}
        model = Lfm2ForCausalLM(Lfm2Config(**common, **layers))
    _teach_the_format(model, tokenizer)
    return model.eval()


@torch.no_grad()
def _teach_the_format(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Make `<tool_call>` follow the start of a turn, and no control token anything else."""
    control = tokenizer.convert_tokens_to_ids(list(CONTROL))
    starting, call = tokenizer.convert_tokens_to_ids([TURN["assistant"], CALL])
    channels = [_FORBIDDING, _STARTING]
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "w2.weight")):
            weight[channels] = 0
    embedding = model.get_input_embeddings().weight
    embedding[:, _FORBIDDING] = _LOUDNESS
    embedding[:, _STARTING] = 0
    embedding[starting, _STARTING] = _LOUDNESS
    head = model.get_output_embeddings().weight
    head[:, channels] = 0
    head[control, _FORBIDDING] = -_PUSH
    head[len(tokenizer) :, _FORBIDDING] = -_PUSH
    head[call, _STARTING] = 3 * _PUSH


def save_benchmark_policy(directory: Path, architecture: str, size: str) -> int:
    """Write the policy where it is not yet, and return its number of parameters."""
    tokenizer = benchmark_tokenizer()
    model = build_model(architecture, size, tokenizer)
    if not (directory / "config.json").is_file():
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    return sum(weight.numel() for weight in model.parameters())
