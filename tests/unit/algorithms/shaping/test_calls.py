import pytest

from espalier.algorithms.shaping import (
    CallFacts,
    CallsCap,
    CallShaping,
    EpisodeFacts,
    Form,
    FormatPenalty,
    TermContext,
    ToolEfficiency,
    TurnPenalty,
)

CONTEXT = TermContext(max_tokens=100)


def call(query, *, name="search", succeeded=True, exists=True):
    return CallFacts(name, f'{{"query": "{query}"}}', succeeded and exists, exists)


def played(*turns, right=True, **facts):
    return EpisodeFacts(outcome=float(right), is_right=right, turns=turns, **facts)


def test_only_the_first_right_call_is_paid():
    rewarded = CallShaping().turn_rewards(played((call("a"),), (call("b"),), ()))
    assert rewarded == pytest.approx([0.1, 0.0, 0.0])


def test_each_repeated_call_and_unknown_tool_costs_on_its_turn():
    turns = ((call("a"),), (call("a"),), (call("a", name="lookup", exists=False),))
    assert CallShaping(cap=1.0).turn_rewards(played(*turns)) == pytest.approx([0.1, -0.05, -0.3])


def test_shaping_stays_inside_its_cap_after_every_call():
    loop = tuple((call("a", name="nothing", exists=False),) for _ in range(9))
    rewarded = CallShaping().turn_rewards(played(*loop))
    assert sum(rewarded) == pytest.approx(-0.3)
    assert rewarded[1:] == pytest.approx([0.0] * 8)


def test_another_tool_than_the_right_one_is_not_paid():
    term = CallShaping(right_tools=("search",))
    assert term.turn_rewards(played((call("a", name="python"),), (call("a"),))) == [0.0, 0.1]


def test_efficiency_is_paid_for_right_answers_alone():
    calls = ((call("a"),), (call("a"),), (call("b", succeeded=False),), (call("c"),))
    term = ToolEfficiency()
    assert term.reward(played(*calls), CONTEXT) == pytest.approx(0.05)
    assert term.reward(played(*calls, right=False), CONTEXT) == 0
    assert term.reward(played(()), CONTEXT) == pytest.approx(0.1)


def test_calls_over_the_cap_cost_once():
    term = CallsCap(most=2)
    rewarded = [term.reward(played((call("a"),) * count), CONTEXT) for count in (0, 2, 3, 9)]
    assert rewarded == [0, 0, -0.2, -0.2]


def test_a_turn_costs_its_price_up_to_the_cap():
    term = TurnPenalty(per_turn=0.04, cap=0.1)
    assert term.turn_rewards(played(*[()] * 4)) == pytest.approx([-0.04, -0.04, -0.02, 0.0])


@pytest.mark.parametrize(
    ("facts", "score"),
    [
        ({"turns": ((),)}, 0.0),
        ({"turns": ((),), "thoughts": (True,)}, 0.3),
        ({"turns": ((call("a"),), ()), "thoughts": (True, True), "last_text": r"\boxed{7}"}, 0.6),
        ({"turns": ((call("a", exists=False),),), "thoughts": (True,)}, 0.1),
        ({"turns": ((),), "is_malformed": True}, 0.0),
        ({"turns": ((call("a"),),) * 12, "thoughts": (True,)}, 1.0),
    ],
)
def test_form_adds_up_and_is_clamped(facts, score):
    episode = EpisodeFacts(outcome=0.0, is_right=False, **facts)
    assert Form(weight=1.0).reward(episode, CONTEXT) == pytest.approx(score)


def test_a_message_that_cannot_be_read_costs_once():
    term = FormatPenalty()
    assert term.reward(played((call("a"),)), CONTEXT) == 0
    assert term.reward(played((call("a"),), is_malformed=True), CONTEXT) == -0.1
