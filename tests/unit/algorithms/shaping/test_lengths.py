import math

import pytest

from espalier.algorithms.shaping import (
    CosineLength,
    EpisodeFacts,
    LinearLength,
    Overlong,
    SigmoidLength,
    TermContext,
    cosine_progress,
    overlong_penalty,
)
from tests.golden_cases import golden_family

CONTEXT = TermContext(max_tokens=100)
RETOOL = TermContext(max_tokens=100, outcome_low=-1.0, outcome_high=1.0)


def episode(total_tokens=0, *, turns=1, right=True, outcome=None, **facts):
    return EpisodeFacts(
        outcome=float(right) if outcome is None else outcome,
        is_right=right,
        turns=((),) * turns,
        total_tokens=total_tokens,
        **facts,
    )


@pytest.mark.parametrize("family", ["verl_dapo_overlong", "trl_soft_overlong"])
def test_overlong_penalty_agrees_with_verl_and_trl(family):
    [case] = golden_family(family, topic="rewards")
    params = case["params"]
    if family == "verl_dapo_overlong":
        lengths, wanted = case["inputs"]["response_lengths"], case["expected"]["overlong_reward"]
        limit, buffer, floor = params["max_resp_len"], params["overlong_buffer_len"], False
    else:
        lengths, wanted = case["inputs"]["completion_lengths"], case["expected"]["rewards"]
        limit, buffer, floor = params["max_completion_len"], params["soft_punish_cache"], True
    found = [
        overlong_penalty(length, max_length=limit, buffer=buffer, penalty=1.0, floor=floor)
        for length in lengths
    ]
    assert found == pytest.approx(wanted)


def test_overlong_is_dapos_where_outcomes_are_plus_minus_one():
    term = Overlong()
    rewarded = [term.reward(episode(length), RETOOL) for length in (1, 80, 85, 90, 100)]
    assert rewarded == pytest.approx([0.0, 0.0, -0.25, -0.5, -1.0])
    assert term.span(RETOOL) == (-1.0, 0.0)


def test_a_truncated_episode_pays_the_whole_overlong_penalty():
    assert Overlong().reward(episode(40, is_truncated=True), CONTEXT) == pytest.approx(-0.5)


def test_linear_length_costs_a_twentieth_a_step_over_target():
    term = LinearLength(target=3, per_unit=0.05, cap=0.12)
    rewarded = [term.reward(episode(turns=turns), CONTEXT) for turns in (1, 3, 4, 5, 6, 50)]
    assert rewarded == pytest.approx([0, 0, -0.05, -0.10, -0.12, -0.12])


def test_sigmoid_length_with_share_one_is_the_product():
    term = SigmoidLength(target=50, softness=10, share=1.0)
    for length in (0, 40, 50, 63, 10**6):
        product = 1 / (1 + math.exp(min(700, (length - 50) / 10)))
        assert 1 + term.reward(episode(length), CONTEXT) == pytest.approx(product, abs=1e-12)


def test_sigmoid_length_never_improves_a_wrong_answer():
    wrong = episode(90, right=False, outcome=-1.0)
    assert SigmoidLength(target=50).reward(wrong, RETOOL) == 0


@pytest.mark.parametrize("case", golden_family("trl_cosine_length", topic="rewards"))
def test_cosine_length_is_trls_beside_an_outcome(case):
    right, limit = case["inputs"]["correct"], case["params"]["max_len"]
    term, outcome = CosineLength(max_length=limit), 1.0 if right else -1.0
    totals = [
        outcome + term.reward(episode(length, right=right, outcome=outcome), RETOOL)
        for length in case["inputs"]["completion_lengths"]
    ]
    assert totals == pytest.approx(case["expected"]["rewards"])


def test_cosine_progress_goes_from_zero_to_one():
    assert [cosine_progress(n, 10) for n in (0, 5, 10, 99)] == pytest.approx([0, 0.5, 1, 1])
