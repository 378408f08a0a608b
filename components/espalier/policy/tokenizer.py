"""The embedded policy's tokenizer: uncased byte-level BPE over words, trained on train text."""

from __future__ import annotations

from collections.abc import Iterable

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

from espalier.policy.grammar import Grammar

PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"

_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}"
    "{%- if loop.first or loop.previtem.role != 'tool' -%}<|assistant|>{%- endif -%}"
    "{%- generation -%}{{ message.content }}{%- endgeneration -%}"
    "{%- elif message.role == 'tool' -%}OBSERVED"
    "{%- else -%}<|user|> {{ message.content }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt and messages[-1].role != 'tool' -%}<|assistant|>{%- endif -%}"
)
"""Everything after `<|assistant|>` is one continuation, without role marks between turns."""


def chat_template(grammar: Grammar) -> str:
    """The template that renders an episode of `grammar` as a policy reads it."""
    return _CHAT_TEMPLATE.replace("OBSERVED", grammar.observed("{{ message.content }}"))


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, grammar: Grammar
) -> PreTrainedTokenizerFast:
    """Train the tokenizer on `texts`; frequent words become single tokens, rare names pieces.

    Case and accents are folded away, so the decoded text is not the text that was read: answers
    are compared, and queries searched, under the same folding. Training is deterministic.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = _word_split(grammar)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trainer.vocab_size = vocab_size - len(grammar.tags)
    tokenizer.train_from_iterator(texts, trainer)
    # lstrip: "lyon </search>" must not leave a lone blank token before the closing tag
    tokenizer.add_tokens([AddedToken(tag, lstrip=True, normalized=False) for tag in grammar.tags])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = chat_template(grammar)
    return wrapped


def _word_split(grammar: Grammar) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.ByteLevel(add_prefix_space=True)
    if not grammar.digits_apart:
        return words
    return pre_tokenizers.Sequence([words, pre_tokenizers.Digits(individual_digits=True)])
