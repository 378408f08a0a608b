"""Purchases that match nothing and answers that lie, each with the score that it deserves."""

import json

import pytest

from espalier.records import DataError, FinalAnswer, ToolCall, ToolCalls
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

WANTED = ("?cotton shirt", "b0aaaaaaa1", "crimson red", "large", "buy")


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


def test_wanted_purchase_scores_one(bought):
    assert bought(*WANTED)[0] == 1.0


def test_purchase_of_another_kind_scores_nothing(bought):
    """The price is fine, but no noun is shared."""
    assert bought("?lamp", "b0aaaaaaa2", "buy")[0] == 0.0


def test_other_kind_with_all_attributes_scores_nothing(bought):
    copied = {**SHIRT, "asin": "B0AAAAAAA3", "name": "Bright Desk Lamp"}
    score, _ = bought(
        "?lamp", "b0aaaaaaa3", "crimson red", "large", "buy", products=(SHIRT, copied)
    )
    assert score == 0.0


def test_options_of_other_products_are_not_taken_along(bought):
    named = {**LAMP, "customization_options": {"Color": [{"value": "crimson red"}]}}
    score, trajectory = bought(
        "?lamp", "b0aaaaaaa2", "crimson red", "?shirt", "b0aaaaaaa1", "buy", products=(SHIRT, named)
    )
    assert json.loads(trajectory.answer)["options"] == {}
    assert score == 2 / 4


def test_option_that_is_not_offered_cannot_be_chosen(bought):
    score, trajectory = bought("?shirt", "b0aaaaaaa1", "red", "large , red", "buy")
    assert [result.succeeded for result in trajectory.tool_results[2:4]] == [False, False]
    assert score == 2 / 4


def test_all_values_of_an_option_are_not_bought_together(bought):
    score, trajectory = bought(
        "?shirt", "b0aaaaaaa1", "crimson red", "small", "large", "small", "buy"
    )
    assert json.loads(trajectory.answer)["options"] == {"color": "crimson red", "size": "small"}
    assert score == 3 / 4


def test_empty_title_shares_no_noun(bought):
    unnamed = {**SHIRT, "asin": "B0AAAAAAA4", "name": "", "small_description": ["plain"]}
    actions = ("?plain", "b0aaaaaaa4", "crimson red", "large", "buy")
    assert bought(*actions, products=(SHIRT, unnamed))[0] == 0.0


def test_product_above_the_limit_loses_its_price_term(bought):
    dear = {**SHIRT, "asin": "B0AAAAAAA5", "pricing": "$900.00", "name": "dear cotton shirt"}
    actions = ("?dear", "b0aaaaaaa5", "crimson red", "large", "buy")
    assert bought(*actions, products=(SHIRT, dear))[0] == pytest.approx(3 / 4)


@pytest.mark.parametrize("price", ["free", "$nan", "$-inf", "NaN"])
def test_price_that_is_no_number_is_refused_with_its_file(bought, price):
    with pytest.raises(DataError, match="pricing"):
        bought(*WANTED, products=({**SHIRT, "pricing": price}, LAMP))


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
    score, trajectory = bought(
        "?lamp",
        "b0aaaaaaa2",
        ToolCalls(
            (
                ToolCall(name="buy", arguments={}),
                ToolCall(name="search", arguments={"query": "shirt"}),
                ToolCall(name="buy", arguments={}),
            )
        ),
    )
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
