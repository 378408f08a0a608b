"""The made catalogue, its goals and its teacher."""

from itertools import combinations

import pytest
from pydantic import ValidationError

from espalier.config import Profile
from espalier.environments import check_golds
from espalier.environments.teaching import ScriptTeacher
from espalier.records import FinalAnswer
from espalier.records.trajectory import FinishReason, Trajectory
from espalier.rewards.webshop import first_color, title_nouns, token_set_ratio
from espalier_environments.shop.made_catalogue import (
    COLORS,
    DEPARTMENTS,
    make_products,
    split_of,
)
from tests.unit.environments.shop.shops import NOWHERE, play, shop_family

SPLITS = ("train", "dev", "heldout")


@pytest.fixture(scope="module")
def family():
    return shop_family()


@pytest.fixture(scope="module")
def catalogue(family):
    return {product.asin: product for product in make_products(family.settings.made)}


@pytest.fixture(scope="module")
def tasks(family):
    return {split: family.tasks(split, 600) for split in SPLITS}


@pytest.fixture(scope="module")
def environments(family):
    with family.environments(NOWHERE) as over:
        yield over("train")


def test_catalogue_has_products_with_options_by_seed(family, tasks):
    made = family.settings.made
    products = make_products(made)
    assert products == make_products(made)
    assert products != make_products(made.model_copy(update={"seed": 1}))
    assert len({one.asin for one in products}) == 800
    assert all(len(one.options) == 2 and 10 <= one.price < 100 for one in products)
    assert shop_family().tasks("heldout", 600) == tasks["heldout"]
    assert len({task.task_id for task in tasks["heldout"]}) == 600


def test_no_word_of_the_made_shop_matches_another():
    departments = DEPARTMENTS.values()
    attributes = sorted({word for one in departments for word in one.attributes.split()})
    values = sorted({word for one in departments for word in one.values.split()})
    nouns = [word for one in departments for word in one.nouns.split()]
    for words in (attributes, [*values, *COLORS.split()]):
        for one, other in combinations(words, 2):
            assert token_set_ratio(first_color(one), first_color(other)) <= 85, (one, other)
            assert one not in other
            assert other not in one
    # a title's nouns are what is sold, and nothing that it is like
    assert title_nouns(" ".join(attributes)) == frozenset()
    assert title_nouns(" ".join(nouns)) == frozenset(nouns)


def test_goals_of_a_split_are_of_its_products_alone(family, catalogue, tasks):
    bought, titles, asked = [], [], []
    for split, found in tasks.items():
        assert len(found) == 600
        products = [catalogue[task.extra["entities"][0]] for task in found]
        assert {split_of(product, family.profile.splits) for product in products} == {split}
        bought.append({product.asin for product in products})
        titles.append({frozenset(product.record.title.split()) for product in products})
        asked.append({task.question for task in found})
    for found in (bought, titles, asked):
        assert sum(map(len, found)) == len(set.union(*found))


def test_gold_purchase_scores_one_and_that_of_another_less(family, tasks, environments):
    check = check_golds(family, tasks["heldout"][:150], environments)
    assert (check.accepted, check.refused, check.faults) == (150, 150, ())


def test_teacher_solves_training_tasks(family, tasks, environments):
    teacher = ScriptTeacher(environments)
    shown = [
        teacher.demonstrate(task, lambda task=task: family.demonstrate(task))
        for task in tasks["train"][:150]
    ]
    right = [one for one in shown if isinstance(one, Trajectory)]
    assert len(right) >= 145
    clicked = {result.call.arguments.get("target") for one in right for result in one.tool_results}
    assert "back" in clicked, "a demonstration shows how to go back"


def test_purchase_in_part_is_paid_its_score_beside_the_outcome(
    family, catalogue, tasks, environments
):
    task = next(task for task in tasks["train"] if task.extra["kind"] == "2 options")
    asin = task.extra["entities"][0]
    wanted = task.arguments["goal"]["options"]
    search = f"?{catalogue[asin].record.title} {' '.join(wanted)}"
    half = play(environments, task, search, asin, wanted[0], "buy")
    # two attributes, the price and one of two options
    assert half.reward == {"outcome": 0.0, "format": 0.1, "score": 0.4 * (4 / 5)}
    assert not half.is_right
    assert family.official_scores(task, half) == {"score": 4 / 5, "success_rate": 0.0}
    said = play(environments, task, FinalAnswer(task.verifier.gold[0]))  # and buys nothing
    assert said.finish_reason is FinishReason.PARSE_ERROR
    assert said.reward == {"outcome": 0.0, "format": 0.0, "score": 0.0}


@pytest.mark.parametrize(
    ("terms", "most", "refused"), [([], 0.9, 0.95), (["call_shaping"], 0.5, 0.6)]
)
def test_profile_pays_no_more_for_a_part_than_for_all(terms, most, refused):
    def profile(score_reward):
        environment = {"name": "shop", "score_reward": score_reward}
        return {"environment": environment, "reward": {"terms": [{"name": name} for name in terms]}}

    Profile.model_validate(profile(most))
    with pytest.raises(ValidationError, match=f"score_reward {refused}"):
        Profile.model_validate(profile(refused))
