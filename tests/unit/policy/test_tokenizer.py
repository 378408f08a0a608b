import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.policy.embedded import ASSISTANT, END, PAD, USER, train_tokenizer
from tests.factories.tiny import TAGS, TEXTS, TOOLS, tiny_tokenizer


def _ids(text):
    return tiny_tokenizer().encode(text, add_special_tokens=False)


MARKS = (*TAGS.markers(TOOLS), PAD, END, USER, ASSISTANT)


@pytest.mark.parametrize("word", ["country", "capital", "lyon", *MARKS])
def test_a_frequent_word_or_tag_is_one_token(word):
    assert len(_ids(word)) == 1
    assert tiny_tokenizer().decode(_ids(word)).strip() == word


def test_an_action_round_trips_except_blanks_before_tags():
    action = "<think> country , currency </think> <search> lyon country </search>"
    assert tiny_tokenizer().decode(_ids(action)) == (
        "<think> country , currency</think><search> lyon country</search>"
    )
    assert _ids("LYÓN Country") == _ids("lyon country"), "case and accents are folded"
    pieces = tiny_tokenizer().convert_ids_to_tokens(_ids("country currency"))
    assert pieces == ["Ġcountry", "Ġcurrency"], "nothing is spelt across words"


@pytest.mark.parametrize(
    "text", ["zugspitze", "☃ 😀", "東京", "\x00\x01", "\u202egnp", "العربية", ""]
)
def test_unseen_words_and_characters_come_back(text):
    assert tiny_tokenizer().decode(_ids(text)).strip(" ") == text


@given(st.text(st.characters(codec="utf-8"), max_size=60))
@settings(max_examples=150, deadline=None)
def test_every_text_can_be_tokenised(text):
    ids = _ids(text)
    assert all(0 <= token_id < len(tiny_tokenizer()) for token_id in ids)
    # what was folded once is folded for good
    again = tiny_tokenizer().decode(ids)
    assert tiny_tokenizer().decode(_ids(again)).split() == again.split()


def test_training_gives_the_same_tokenizer_of_the_requested_size():
    again = train_tokenizer(TEXTS * 20, 400, TAGS, TOOLS)
    assert again.backend_tokenizer.to_str() == tiny_tokenizer().backend_tokenizer.to_str()
    words = [f"{a}{b}{c}" for a in "bcdfg" for b in "aeiou" for c in "klmnp"]
    assert len(train_tokenizer(words * 3, 330, TAGS, TOOLS)) == 330
