"""The embedded policy's tokenizer: uncased byte-level BPE over words, trained on train text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import (
    AddedToken,
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
"""Everything after `<|assistant|>` is one continuation, without role markers between turns."""
_TURN_TEMPLATE = "{#- dialect: NAME -#}" + _INLINE_TEMPLATE.replace(
    "{{ message.content }}{%- endgeneration -%}",
    "{{ message.content }}<|end|>{%- endgeneration -%}",
    1,
)
"""The same, with `<|end|>` after each message of the policy."""


def chat_template(syntax: Syntax, tools: Sequence[ToolSpec]) -> str:
    """The chat template of an embedded policy in a dialect."""
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
        splits_digits: makes each digit a token, for policies that must copy unseen numbers.

    Case and accents are removed, so decoded text differs from the original: answers are compared,
    and documents searched, under the same normalisation. Training is deterministic.
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
    markers = syntax.markers(tools)
    trainer.vocab_size = vocab_size - len(markers)
    tokenizer.train_from_iterator(texts, trainer)
    # lstrip: no blank token before the closing tag in "lyon </search>"; rstrip: nor line breaks
    # in dialects that put tags on separate lines
    rstrip = not syntax.inline_results
    tokenizer.add_tokens(
        [AddedToken(text, lstrip=True, rstrip=rstrip, normalized=False) for text in markers]
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
