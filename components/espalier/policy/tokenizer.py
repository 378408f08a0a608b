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

PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"
TAGS = (
    "<think>",
    "</think>",
    "<search>",
    "</search>",
    "<information>",
    "</information>",
    "<answer>",
    "</answer>",
)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}"
    "{%- if loop.first or loop.previtem.role != 'tool' -%}<|assistant|>{%- endif -%}"
    "{%- generation -%}{{ message.content }}{%- endgeneration -%}"
    "{%- elif message.role == 'tool' -%}<information> {{ message.content }} </information>"
    "{%- else -%}<|user|> {{ message.content }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt and messages[-1].role != 'tool' -%}<|assistant|>{%- endif -%}"
)
"""Everything after `<|assistant|>` is one continuation, without role marks between turns."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer on `texts`; frequent words become single tokens, rare names pieces.

    Case and accents are folded away, so the decoded text is not the text that was read: answers
    are compared, and queries searched, under the same folding. Training is deterministic.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trainer.vocab_size = vocab_size - len(TAGS)
    tokenizer.train_from_iterator(texts, trainer)
    # lstrip: "lyon </search>" must not leave a lone blank token before the closing tag
    tokenizer.add_tokens([AddedToken(tag, lstrip=True, normalized=False) for tag in TAGS])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped
