"""The embedded policy's tokenizer: uncased byte-level BPE over words, trained on train text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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
from transformers import PreTrainedTokenizerFast

from espalier.dialects import Syntax
from espalier.records.tool import ToolSpec

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
"""Everything after `<|assistant|>` is one continuation, without role marks between turns."""
_TURN_TEMPLATE = "{#- dialect: NAME -#}" + _INLINE_TEMPLATE.replace(
    "{{ message.content }}{%- endgeneration -%}",
    "{{ message.content }}<|end|>{%- endgeneration -%}",
    1,
)
"""The same, where `<|end|>` closes each message of the policy."""


def chat_template(syntax: Syntax, tools: Sequence[ToolSpec]) -> str:
    """The template that renders an episode as an embedded policy reads it."""
    template = _INLINE_TEMPLATE if syntax.inline_results else _TURN_TEMPLATE
    result = syntax.write_result("CONTENT", tools).replace("CONTENT", "{{ message.content }}")
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
        texts: of training documents and questions.
        vocab_size: of the whole vocabulary, the dialect's markers included.
        syntax: of the dialect that the policy is to write.
        tools: that it may call.
        splits_digits: reads a number digit by digit, as a policy has to where it copies numbers
            that it never saw.

    Case and accents are folded away, so the decoded text is not the text that was read: answers
    are compared, and queries searched, under the same folding. Training is deterministic.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = _word_split(splits_digits=splits_digits)
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
    # lstrip: "lyon </search>" must not leave a lone blank token before the closing tag; rstrip:
    # nor the line breaks of dialects that put tags on lines of their own
    rstrip = not syntax.inline_results
    tokenizer.add_tokens(
        [AddedToken(text, lstrip=True, rstrip=rstrip, normalized=False) for text in markers]
    )
    if frames:
        # the blank that every word begins with is none of the argument's
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


def _word_split(*, splits_digits: bool) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.ByteLevel(add_prefix_space=True)
    if not splits_digits:
        return words
    return pre_tokenizers.Sequence([words, pre_tokenizers.Digits(individual_digits=True)])
