"""A given model's tokenizer, which knows none of our tags: one token a byte."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def byte_tokenizer(chat_template, controls=()):
    """`controls` are texts that it reads as one token each."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens([AddedToken(text, special=True) for text in controls])
    return PreTrainedTokenizerFast(tokenizer_object=plain, chat_template=chat_template)
