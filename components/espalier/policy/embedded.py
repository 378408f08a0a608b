"""The tiny policy: a small LFM2 (short convolutions and attention), and its own tokenizer.

The model is trained from scratch. LFM2 is chosen by measurement: with its depthwise convolutions, a
model of half a million parameters learns to copy names in minutes on a CPU, which plain attention
of that size does not. The tokenizer is an uncased byte-level BPE over words, trained on train text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import (
    GenerationConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from espalier.config import PolicyConfig
from espalier.dialects import Syntax
from espalier.records.message import ToolSpec

PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"

_INLINE_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}"
    "{%- if loop.first or loop.previtem.role != 'tool' -%}<|assistant|>{%- endif -%}"
    "{%- generation -%}{{ message.content }}{%- endgeneration -%}"
    "{%- elif message.role == 'tool' -%}RESULT"
    "{%- else -%}<|user|> {{ message.content }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt and messages[-1].role != 'tool' -%}<|assistant|>{%- endif -%}"
)
"""Everything after `<|assistant|>` is one continuation, without role markers between turns."""
_TURN_TEMPLATE = _INLINE_TEMPLATE.replace(
    "{{ message.content }}{%- endgeneration -%}",
    "{{ message.content }}<|end|>{%- endgeneration -%}",
    1,
)
"""The same, with `<|end|>` after each message of the policy."""


def chat_template(syntax: Syntax, tools: Sequence[ToolSpec]) -> str:
    """Return the chat template of a tiny policy in a dialect."""
    template = _INLINE_TEMPLATE if syntax.inline_results else _TURN_TEMPLATE
    if syntax.name != "tags":  # a template that names no dialect is read as tags
        template = "{#- dialect: NAME -#}" + template
    result = syntax.write_result("CONTENT", tools).replace("CONTENT", "{{ message.content }}")
    if result.endswith("\n"):  # Jinja drops what is blank before the next block
        result = result.removesuffix("\n") + "{{ '\\n' }}"
    return template.replace("NAME", syntax.name).replace("RESULT", result)


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    syntax: Syntax,
    tools: Sequence[ToolSpec],
    *,
    splits_digits: bool = False,
) -> PreTrainedTokenizerFast:
    """Train the tokenizer on `texts`; frequent words become single tokens, rare names pieces.

    Args:
        texts: texts of training documents and questions.
        vocab_size: size of the whole vocabulary, the dialect's markers included.
        syntax: syntax of the policy's dialect.
        tools: tools that the policy may call.
        splits_digits: makes each digit a token, for policies that must copy unseen numbers.

    Case and accents are removed, so decoded text differs from the original: answers are compared,
    and documents searched, under the same normalisation. Training is deterministic.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    words = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.pre_tokenizer = words
    if splits_digits:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, digits])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    frames = syntax.frames(tools)
    markers = tuple(dict.fromkeys((*syntax.markers(tools), *frames)))
    trainer.vocab_size = vocab_size - len(markers)
    tokenizer.train_from_iterator(texts, trainer)
    # lstrip: no blank token before the closing tag in "lyon </search>"; rstrip: nor line breaks
    # in dialects that put tags on separate lines
    rstrip = not syntax.inline_results
    tokenizer.add_tokens(
        [AddedToken(text, lstrip=True, rstrip=rstrip, normalized=False) for text in markers]
    )
    if frames:
        # the blank that every word begins with does not belong to the argument
        behind = "|".join(re.escape(frame) for frame in frames)
        tokenizer.decoder = decoders.Sequence(
            [decoders.ByteLevel(), decoders.Replace(Regex(f"(?<={behind}) "), "")]
        )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = chat_template(syntax, tools)
    return wrapped


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
        seed: seed of the weights.
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
