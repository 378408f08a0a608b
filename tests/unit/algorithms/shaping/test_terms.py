"""What each term pays and costs, by hand and beside TRL's and verl's numbers."""

import math

import pytest

from espalier.algorithms import shaping
from tests.golden_cases import golden_family

CONTEXT = shaping.TermContext(max_tokens=100)
RETOOL = shaping.TermContext(max_tokens=100, outcome_low=-1.0, outcome_high=1.0)


def call(query, *, name="search", succeeded=True, exists=True):
    return shaping.CallFacts(name, f'{{"query": "{query}"}}', succeeded and exists, exists)


def played(*turns, right=True, outcome=None, **facts):
    outcome = float(right) if outcome is None else outcome
    return shaping.EpisodeFacts(outcome=outcome, is_right=right, turns=turns, **facts)


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
    assert shaping.Majority().rewards([played(answer=answer) for answer in answers]) == rewarded


@pytest.mark.parametrize(
    ("logprobs", "rewarded"),
    [((0.0, 0.0), 0.0), ((-1.0, -1.0), -0.05), ((-9.0,), -0.1), ((), -0.1)],
)
def test_uncertainty_costs_up_to_the_weight(logprobs, rewarded):
    episode = played(action_logprobs=logprobs)
    assert shaping.NegativeEntropy().reward(episode, CONTEXT) == pytest.approx(rewarded)


@pytest.mark.parametrize("case", golden_family("trl_repetition_penalty", topic="rewards"))
def test_repetition_agrees_with_trl(case):
    ngram, worst = case["params"]["ngram_size"], case["params"]["max_penalty"]
    found = [worst * shaping.repeated_share(ids, ngram) for ids in case["inputs"]["completion_ids"]]
    assert found == pytest.approx(case["expected"]["rewards"])


@pytest.mark.parametrize(
    ("term", "calls", "rewarded"),
    [
        # only the first right call is paid
        (shaping.CallShaping(), [call("a"), call("b"), None], [0.1, 0.0, 0.0]),
        (
            shaping.CallShaping(cap=1.0),
            [call("a"), call("a"), call("a", name="lookup", exists=False)],
            [0.1, -0.05, -0.3],
        ),
        (shaping.CallShaping(), [call("a", name="nothing", exists=False)] * 9, [-0.3] + [0.0] * 8),
        (
            shaping.CallShaping(right_tools=("search",)),
            [call("a", name="python"), call("a")],
            [0.0, 0.1],
        ),
        (shaping.TurnPenalty(per_turn=0.04, cap=0.1), [None] * 4, [-0.04, -0.04, -0.02, 0.0]),
    ],
)
def test_each_turn_is_paid_for_its_calls_within_a_cap(term, calls, rewarded):
    turns = [() if one is None else (one,) for one in calls]
    assert term.turn_rewards(played(*turns)) == pytest.approx(rewarded)


def test_efficiency_is_paid_for_right_answers_alone():
    calls = ((call("a"),), (call("a"),), (call("b", succeeded=False),), (call("c"),))
    term = shaping.ToolEfficiency()
    assert term.reward(played(*calls), CONTEXT) == pytest.approx(0.05)
    assert term.reward(played(*calls, right=False), CONTEXT) == 0
    assert term.reward(played(()), CONTEXT) == pytest.approx(0.1)


def test_calls_over_the_cap_and_unreadable_messages_cost_once():
    term = shaping.CallsCap(most=2)
    rewarded = [term.reward(played((call("a"),) * count), CONTEXT) for count in (0, 2, 3, 9)]
    assert rewarded == [0, 0, -0.2, -0.2]
    assert shaping.FormatPenalty().reward(played((call("a"),)), CONTEXT) == 0
    assert shaping.FormatPenalty().reward(played((call("a"),), is_malformed=True), CONTEXT) == -0.1


@pytest.mark.parametrize(
    ("turns", "facts", "score"),
    [
        (((),), {}, 0.0),
        (((),), {"thoughts": (True,)}, 0.3),
        (((call("a"),), ()), {"thoughts": (True, True), "last_text": r"\boxed{7}"}, 0.6),
        (((call("a", exists=False),),), {"thoughts": (True,)}, 0.1),
        (((),), {"is_malformed": True}, 0.0),
        (((),), {"last_text": r"\boxed{"}, 0.0),
        (((),), {"last_text": r"\boxed{}"}, 0.0),
        (((),), {"last_text": r"\boxed{ } and \boxed{7"}, 0.0),
        (((),), {"last_text": r"\boxed{} then \boxed{\frac{1}{2}}."}, 0.2),
        (((call("a"),),) * 12, {"thoughts": (True,)}, 1.0),
    ],
)
def test_form_adds_up_and_is_clamped(turns, facts, score):
    assert shaping.Form(weight=1.0).reward(played(*turns, **facts), CONTEXT) == pytest.approx(score)


OVERLONG = {
    "verl_dapo_overlong": (
        "response_lengths",
        "max_resp_len",
        "overlong_buffer_len",
        "overlong_reward",
    ),
    "trl_soft_overlong": (
        "completion_lengths",
        "max_completion_len",
        "soft_punish_cache",
        "rewards",
    ),
}
"""The names of lengths, limit, buffer and rewards."""


@pytest.mark.parametrize(("family", "names"), OVERLONG.items())
def test_overlong_penalty_agrees_with_verl_and_trl(family, names):
    [case] = golden_family(family, topic="rewards")
    lengths, limit, buffer, rewards = names
    limits = {"max_length": case["params"][limit], "buffer": case["params"][buffer]}
    floor = family == "trl_soft_overlong"
    found = [
        shaping.overlong_penalty(length, penalty=1.0, floor=floor, **limits)
        for length in case["inputs"][lengths]
    ]
    assert found == pytest.approx(case["expected"][rewards])


def test_overlong_is_dapos_where_outcomes_are_plus_minus_one():
    rewarded = [
        shaping.Overlong().reward(played(total_tokens=n), RETOOL) for n in (1, 80, 85, 90, 100)
    ]
    assert rewarded == pytest.approx([0.0, 0.0, -0.25, -0.5, -1.0])
    assert shaping.Overlong().span(RETOOL) == (-1.0, 0.0)
    truncated = played(total_tokens=40, is_truncated=True)
    assert shaping.Overlong().reward(truncated, CONTEXT) == pytest.approx(-0.5), "the whole penalty"


def test_linear_length_costs_a_twentieth_a_step_over_target():
    term = shaping.LinearLength(target=3, per_unit=0.05, cap=0.12)
    rewarded = [term.reward(played(*[()] * turns), CONTEXT) for turns in (1, 3, 4, 5, 6, 50)]
    assert rewarded == pytest.approx([0, 0, -0.05, -0.10, -0.12, -0.12])


def test_sigmoid_length_with_share_one_is_the_product():
    term = shaping.SigmoidLength(target=50, softness=10, share=1.0)
    for length in (0, 40, 50, 63, 10**6):
        product = 1 / (1 + math.exp(min(700, (length - 50) / 10)))
        reward = term.reward(played((), total_tokens=length), CONTEXT)
        assert 1 + reward == pytest.approx(product, abs=1e-12)
    wrong = played((), total_tokens=90, right=False, outcome=-1.0)
    assert term.reward(wrong, RETOOL) == 0, "a wrong answer is not improved"


@pytest.mark.parametrize("case", golden_family("trl_cosine_length", topic="rewards"))
def test_cosine_length_is_trls_beside_an_outcome(case):
    right = case["inputs"]["correct"]
    term, outcome = (
        shaping.CosineLength(max_length=case["params"]["max_len"]),
        1.0 if right else -1.0,
    )
    totals = [
        outcome + term.reward(played((), total_tokens=length, right=right, outcome=outcome), RETOOL)
        for length in case["inputs"]["completion_lengths"]
    ]
    assert totals == pytest.approx(case["expected"]["rewards"])
