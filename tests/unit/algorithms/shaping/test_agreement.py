import pytest

from espalier.algorithms.shaping import (
    EpisodeFacts,
    Majority,
    NegativeEntropy,
    Repetition,
    TermContext,
    repeated_share,
)
from tests.golden_cases import golden_family

CONTEXT = TermContext(max_tokens=100)


def answered(*answers):
    return [EpisodeFacts(outcome=0.0, is_right=False, answer=answer) for answer in answers]


@pytest.mark.parametrize(
    ("answers", "rewarded"),
    [
        (("Paris", "paris ", "Lyon", None), [0.1, 0.1, 0, 0]),
        (("Paris", "Lyon", None, None), [0, 0, 0, 0]),
        (("Paris", "Paris", "Lyon", "Lyon"), [0, 0, 0, 0]),
        ((None, "", None), [0, 0, 0]),
        (("Paris",), [0]),
    ],
)
def test_only_a_majority_of_answers_is_paid(answers, rewarded):
    assert Majority().rewards(answered(*answers)) == rewarded


def test_unsupervised_terms_say_that_they_are_auxiliary():
    assert Majority.is_auxiliary
    assert NegativeEntropy.is_auxiliary
    assert not Repetition.is_auxiliary


@pytest.mark.parametrize(
    ("logprobs", "rewarded"),
    [((0.0, 0.0), 0.0), ((-1.0, -1.0), -0.05), ((-9.0,), -0.1), ((), -0.1)],
)
def test_uncertainty_costs_up_to_the_weight(logprobs, rewarded):
    episode = EpisodeFacts(outcome=0.0, is_right=False, action_logprobs=logprobs)
    assert NegativeEntropy().reward(episode, CONTEXT) == pytest.approx(rewarded)


@pytest.mark.parametrize("case", golden_family("trl_repetition_penalty", topic="rewards"))
def test_repetition_agrees_with_trl(case):
    ngram, worst = case["params"]["ngram_size"], case["params"]["max_penalty"]
    found = [worst * repeated_share(ids, ngram) for ids in case["inputs"]["completion_ids"]]
    assert found == pytest.approx(case["expected"]["rewards"])
