import pytest

from espalier.dialects.dialect import Dialect
from espalier.records import PolicyError
from espalier.rollout.roller import kind_choice
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.tiny import TOOLS, tiny_dialect, tiny_tokenizer


def test_the_tag_after_the_thought_is_what_is_drawn():
    tokenizer = tiny_tokenizer()
    choice = kind_choice(tiny_dialect(), 0.1)
    assert tokenizer.convert_ids_to_tokens(choice.after_id) == "</think>"
    assert tokenizer.convert_ids_to_tokens(list(choice.kind_ids)) == ["<search>", "<answer>"]


def test_no_exploration_asks_nothing_of_the_tokenizer():
    assert kind_choice(Dialect(byte_tokenizer("{{ messages }}"), TOOLS), 0.0) is None


def test_tags_of_several_tokens_cannot_be_drawn():
    dialect = Dialect(byte_tokenizer("{{ messages }}"), TOOLS)
    with pytest.raises(PolicyError, match="</think>, <search>, <answer>"):
        kind_choice(dialect, 0.1)
