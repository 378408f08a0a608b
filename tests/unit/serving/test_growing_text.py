from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from espalier.serving.choice import GrowingText, StopTexts
from tests.factories.tiny import tiny_tokenizer

IDS = st.lists(st.integers(0, 399), max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=6)


def in_pieces(whole, cuts):
    places = [0, *sorted(cut for cut in cuts if cut <= len(whole)), len(whole)]
    return [whole[start:end] for start, end in pairwise(places)]


@given(IDS, CUTS)
def test_the_text_is_that_of_all_tokens_however_they_arrive(token_ids, cuts):
    growing = GrowingText(tiny_tokenizer(), skip_special_tokens=False)
    pieces = [growing.read(part) for part in in_pieces(token_ids, cuts)]
    whole = tiny_tokenizer().decode(token_ids, skip_special_tokens=False)
    assert "".join(pieces) + growing.rest() == whole


def test_half_a_character_waits_for_its_rest():
    token_ids = tiny_tokenizer().encode("☃", add_special_tokens=False)
    growing = GrowingText(tiny_tokenizer(), skip_special_tokens=False)
    pieces = [growing.read([token_id]) for token_id in token_ids]
    assert len(pieces) > 1
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert "".join(pieces).strip() == "☃"


@given(st.text("ab<", max_size=30), st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3))
def test_what_is_passed_on_ends_where_the_first_stop_begins(text, stops):
    reader = StopTexts(stops)
    passed = ""
    for character in text:
        passed += reader.read(character)
        if reader.is_met:
            break
    else:
        passed += reader.rest()
    # the stop that is complete first ends the text, at the earliest place where one is
    ends = [end for end in range(len(text) + 1) if any(s in text[:end] for s in stops)]
    if not ends:
        assert (passed, reader.is_met) == (text, False)
    else:
        seen = text[: ends[0]]
        assert reader.is_met
        assert passed == seen[: min(seen.find(stop) for stop in stops if stop in seen)]


@given(st.text("ab<", max_size=30), CUTS)
def test_nothing_is_lost_where_no_stop_is_met(text, cuts):
    reader = StopTexts(["<<<<a", "ba<b<"])
    passed = [reader.read(part) for part in in_pieces(text, cuts)]
    if not reader.is_met:
        assert "".join(passed) + reader.rest() == text


def test_a_stop_text_may_be_kept():
    reader = StopTexts([], kept=["</a>"])
    assert [reader.read(part) for part in ("x</", "a", ">y")] == ["x", "", "</a>"]
