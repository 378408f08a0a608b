import pytest

from espalier.rollout.engines.engine import Completion, Sampling
from espalier.serving.choice import ChoiceReader, SamplingOrder
from tests.factories.tiny import tiny_tokenizer

SAMPLING = Sampling(temperature=1.0, seed=0)
WORDS = tiny_tokenizer().encode("country currency answer lookup", add_special_tokens=False)
TEXTS = [tiny_tokenizer().decode([token_id]) for token_id in WORDS]


def order(**changes):
    return SamplingOrder(**{"prompt_ids": (5,), "sampling": SAMPLING, "max_tokens": 20, **changes})


def read(reader, token_ids, *, stopped=False):
    return reader.read(Completion(tuple(token_ids), (-1.0,) * len(token_ids), stopped))


def test_tokens_behind_a_stop_text_are_left_out():
    reader = ChoiceReader(order(stops=(TEXTS[1].strip(),)), tiny_tokenizer())
    piece = read(reader, WORDS)
    assert piece.token_ids == tuple(WORDS[:2])
    assert piece.logprobs == (-1.0, -1.0)
    assert piece.finish_reason == "stop"
    assert TEXTS[1].strip() not in piece.text


def test_as_many_tokens_as_were_asked_for_end_the_answer():
    reader = ChoiceReader(order(max_tokens=len(WORDS)), tiny_tokenizer())
    assert read(reader, WORDS[:2]).finish_reason is None
    assert read(reader, WORDS[2:]).finish_reason == "length"


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_an_answer_is_the_same_in_pieces_of_any_size(size):
    whole = read(ChoiceReader(order(stops=("zz",), max_tokens=len(WORDS)), tiny_tokenizer()), WORDS)
    reader = ChoiceReader(order(stops=("zz",), max_tokens=len(WORDS)), tiny_tokenizer())
    pieces = [read(reader, WORDS[at : at + size]) for at in range(0, len(WORDS), size)]
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [piece.finish_reason for piece in pieces][-1] == "length"


def test_text_that_was_held_back_comes_at_the_end():
    beginning = TEXTS[3].strip()
    reader = ChoiceReader(order(stops=(beginning + "never",), max_tokens=4), tiny_tokenizer())
    assert read(reader, WORDS[:4]).text.endswith(beginning)
