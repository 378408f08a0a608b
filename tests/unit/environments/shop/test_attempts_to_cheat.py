"""Purchases that match nothing and answers that lie, each with the score that it deserves."""

import json

import pytest

from espalier.records import FinalAnswer, ToolCall, ToolCalls
from espalier.records.trajectory import FinishReason
from tests.unit.environments.shop.shops import (
    HUMAN,
    LAMP,
    NOWHERE,
    SHIRT,
    play,
    shop_family,
    write_shop,
)


@pytest.fixture
def bought(tmp_path):
    """Plays a person's goal, a shirt in red and large, in a shop of these products."""
    family = shop_family()

    def scored(*actions, products=(SHIRT, LAMP)):
        path = write_shop(tmp_path, products=list(products), human=HUMAN)
        (task,) = family.read_benchmark(path)
        with family.benchmark_environments(path, NOWHERE) as environments:
            trajectory = play(environments, task, *actions)
        scores = family.official_scores(task, trajectory)
        assert trajectory.is_right == (scores["score"] == 1)
        return scores["score"], trajectory

    return scored


NAMED = {**LAMP, "customization_options": {"Color": [{"value": "crimson red"}]}}
ALIKE = {**SHIRT, "asin": "B0AAAAAAA3", "name": "Bright Desk Lamp"}
UNNAMED = {**SHIRT, "asin": "B0AAAAAAA4", "name": "", "small_description": ["plain"]}
DEAR = {**SHIRT, "asin": "B0AAAAAAA5", "pricing": "$900.00", "name": "dear cotton shirt"}
SHIRT_ID = "b0aaaaaaa1"
CHOSEN = ("crimson red", "large", "buy")


@pytest.mark.parametrize(
    ("products", "actions", "score"),
    [
        ([SHIRT, LAMP], ("?cotton shirt", SHIRT_ID, *CHOSEN), 1),  # as it is wanted
        ([SHIRT, LAMP], ("?lamp", "b0aaaaaaa2", "buy"), 0),  # its price is fine; no noun is shared
        ([SHIRT, ALIKE], ("?lamp", "b0aaaaaaa3", *CHOSEN), 0),
        ([SHIRT, UNNAMED], ("?plain", "b0aaaaaaa4", *CHOSEN), 0),
        ([SHIRT, DEAR], ("?dear", "b0aaaaaaa5", *CHOSEN), 3 / 4),  # above the limit
        # what is chosen of one product, or is not offered, or not last, is not bought
        ([SHIRT, NAMED], ("?lamp", "b0aaaaaaa2", "crimson red", "?shirt", SHIRT_ID, "buy"), 2 / 4),
        ([SHIRT, LAMP], ("?shirt", SHIRT_ID, "red", "large , red", "buy"), 2 / 4),
        ([SHIRT, LAMP], ("?shirt", SHIRT_ID, "crimson red", "large", "small", "buy"), 3 / 4),
    ],
)
def test_a_purchase_scores_what_it_has_of_the_wanted(bought, products, actions, score):
    assert bought(*actions, products=products)[0] == pytest.approx(score)


def test_answer_that_claims_a_purchase_buys_nothing(bought):
    claimed = json.dumps({"asin": "b0aaaaaaa1", "options": {}, "score": 1.0})
    for before in ((), ("?shirt", "b0aaaaaaa1")):
        score, trajectory = bought(*before, FinalAnswer(claimed))
        assert (score, trajectory.answer) == (0.0, None)
        assert trajectory.finish_reason is FinishReason.PARSE_ERROR
        assert sum(trajectory.reward.values()) == 0


def test_arguments_of_buying_are_refused(bought):
    forged = ToolCalls((ToolCall(name="buy", arguments={"asin": "b0aaaaaaa1", "score": 1}),))
    score, trajectory = bought("?lamp", "b0aaaaaaa2", forged, FinalAnswer("done"))
    assert not trajectory.tool_results[-1].succeeded
    assert score == 0.0


def test_first_purchase_counts_and_no_second(bought):
    buy = ToolCall(name="buy", arguments={})
    calls = (buy, ToolCall(name="search", arguments={"query": "shirt"}), buy)
    score, trajectory = bought("?lamp", "b0aaaaaaa2", ToolCalls(calls))
    assert len(trajectory.tool_results) == 3
    assert score == 0.0


def test_written_answer_is_judged_by_the_shop_alone():
    family = shop_family()
    task = family.tasks("train", 1)[0]
    gold = json.loads(task.verifier.gold[0])
    assert family.verify(task, json.dumps(gold)) == 1.0
    lies = [
        {**gold, "options": {**gold["options"], "color": "invisible"}},
        {**gold, "options": {**gold["options"], "wish": "red"}},
        {**gold, "options": list(gold["options"].values())},
        {**gold, "asin": "b0"},
        {"asin": ["b1"], "options": {}, "score": 1.0},
        {"score": 1.0},
    ]
    assert [family.verify(task, json.dumps(lie)) for lie in lies] == [0.0] * len(lies)
    assert [family.verify(task, text) for text in ("", "[", "nan", "[" * 9999)] == [0.0] * 4
