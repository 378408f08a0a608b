"""A purchase becomes the goal that it meets, unless it is of another split or teaches nothing."""

from collections import Counter
from functools import cache

import pytest
from pydantic import ValidationError

from espalier.config import Profile
from espalier.environments import RelabelsFailures, family_of
from espalier.environments.hindsight import OF_ANOTHER_SPLIT, relabelled
from espalier.environments.teaching import ScriptTeacher
from espalier.records import ToolCalls
from espalier_environments.shop.catalogue import Catalogue
from espalier_environments.shop.made_catalogue import make_products, split_of
from espalier_environments.shop.webshop_files import load_webshop
from tests.unit.environments.shop.shops import (
    NOWHERE,
    PRODUCTS,
    play,
    public_tasks,
    shop_family,
    write_shop,
)


@pytest.fixture(scope="module")
def family():
    return shop_family()


@pytest.fixture(scope="module")
def environments(family):
    with family.environments(NOWHERE) as over:
        yield over("train")


@pytest.fixture(scope="module")
def hindsight(family):
    return family.hindsight(NOWHERE, NOWHERE)


@pytest.fixture(scope="module")
def goal(family):
    """A training goal with one option, of a product that its search shows first."""
    return next(
        task
        for task in family.tasks("train", 600)
        if task.extra["kind"] == "1 options" and "size" in task.question
    )


@cache
def catalogue_of(family):
    return Catalogue(make_products(family.settings.made), max_results=family.settings.max_results)


def products_of(family, split):
    return [
        one
        for one in catalogue_of(family).products
        if split_of(one, family.profile.splits) == split
    ]


def query_of(product):
    return f"?{product.record.title}"


def bought(family, environments, goal, product, *clicks, before=()):
    """An attempt at `goal` that searches the title of a product and buys it."""
    return play(environments, goal, *before, query_of(product), product.asin, *clicks, "buy")


def other_product(family, goal, split):
    """The first product of a split that its title finds and the goal does not mean."""
    for product in products_of(family, split):
        listed = catalogue_of(family).search(product.record.title)[:3]
        if product in listed and product.asin not in goal.verifier.gold[0]:
            return product
    raise AssertionError


def test_wrong_purchase_becomes_the_goal_that_it_meets(family, environments, hindsight, goal):
    product = other_product(family, goal, "train")
    color = product.options["color"][1]
    attempt = bought(family, environments, goal, product, color)
    assert not attempt.is_right
    found = relabelled([(goal, attempt)], hindsight, ScriptTeacher(environments), set())
    [demonstration] = found.demonstrations
    solved = found.tasks[demonstration.task_id]
    assert demonstration.is_right
    assert demonstration.reward["outcome"] == 1
    assert solved.metadata.split == "train"
    assert solved.extra["entities"] == [product.asin]
    assert product.record.title in solved.question
    assert f"color {color}" in solved.question
    assert demonstration.messages[: len(solved.prompt)] == solved.prompt
    assert demonstration.tool_results[:-1] == attempt.tool_results[:-1]
    assert not found.unused


def test_hidden_attribute_is_asked_for_where_its_page_was_read(
    family, environments, hindsight, goal
):
    product = other_product(family, goal, "train")
    hidden = product.record.attributes[2]
    blind = hindsight.achieved(goal, bought(family, environments, goal, product)).task
    read = hindsight.achieved(
        goal, bought(family, environments, goal, product, "features", "back")
    ).task
    assert hidden not in blind.question
    assert hidden in read.question


def test_visit_counts_from_its_last_search_without_failed_calls(
    family, environments, hindsight, goal
):
    product = other_product(family, goal, "train")
    attempt = bought(family, environments, goal, product, "no such thing", before=("?mug", "next"))
    actions = hindsight.achieved(goal, attempt).actions
    assert [one.calls[0].name for one in actions] == ["search", "click", "buy"]


@pytest.mark.parametrize("split", ["dev", "heldout"])
def test_product_of_a_judged_split_is_refused(family, environments, hindsight, goal, split):
    attempt = bought(family, environments, goal, other_product(family, goal, split))
    assert hindsight.achieved(goal, attempt).reason == OF_ANOTHER_SPLIT


def test_no_goal_is_made_of_any_product_of_judged_splits(family, environments, hindsight, goal):
    reasons = Counter()
    for split in ("dev", "heldout"):
        for product in products_of(family, split):
            if (
                product in catalogue_of(family).search(product.record.title)[:3]
            ):  # of the first page
                attempt = bought(family, environments, goal, product)
                reasons[hindsight.achieved(goal, attempt).reason] += 1
    assert set(reasons) == {OF_ANOTHER_SPLIT}
    assert reasons.total() > 100


def test_search_for_words_of_no_goal_is_refused(family, environments, hindsight, goal):
    product = other_product(family, goal, "train")
    words = f"{query_of(product)} unheard"
    attempt = play(environments, goal, words, product.asin, "buy")
    assert hindsight.achieved(goal, attempt).reason == "searched_for_something_else"


def test_every_attempt_that_is_not_used_has_a_reason(family, environments, hindsight, goal):
    product = other_product(family, goal, "train")
    wrong = bought(family, environments, goal, product)
    right = play(environments, goal, *_gold(family, goal))
    undone = play(environments, goal, *("?mug",) * family.profile.episode.max_turns)
    attempts = [wrong, wrong, right, undone]
    teacher = ScriptTeacher(environments)
    found = relabelled([(goal, one) for one in attempts], hindsight, teacher, set())
    assert found.unused == {"demonstrated_already": 1, "solved": 1, "ended_by_max_turns": 1}
    again = relabelled([(goal, one) for one in attempts], hindsight, teacher, set())
    assert again == found
    known = relabelled([(goal, wrong)], hindsight, teacher, found.tasks.keys())
    assert known.unused == {"demonstrated_already": 1}


def _gold(family, goal):
    script = family.demonstrate(goal)
    with family.environments(NOWHERE) as over:
        shown = ScriptTeacher(over("train")).demonstrate(goal, lambda: script)
    return [ToolCalls(one.tool_calls) for one in shown.messages if one.tool_calls]


def test_public_product_is_asked_for_by_what_was_read(tmp_path):
    """The small shop has a goal of each product: one of them is held out by its id."""
    many = [{**PRODUCTS[0], "asin": f"B0A{number:07d}"} for number in range(12)]
    attributes = {
        one["asin"]: {
            "attributes": ["machine wash", "long sleeve"],
            "instruction": "Find me machine wash mens shirts",
            "instruction_attributes": ["machine wash"],
        }
        for one in many
    }
    family = shop_family(catalogue=str(write_shop(tmp_path / "catalogue", many, attributes)))
    hindsight = family.hindsight(tmp_path, tmp_path)
    with family.environments(tmp_path) as over:
        environments = over("train")
        shop = load_webshop(tmp_path / "catalogue", max_results=family.settings.max_results)
        by_split = {
            split: {goal.asin for goal in shop.goals_of(split, family.profile.splits)}
            for split in ("train", "heldout")
        }
        goal = public_tasks(family, tmp_path / "catalogue")["train"][0]
        for asin in sorted(by_split["train"]):
            attempt = play(environments, goal, "?mens shirts", *_pages_to(asin, shop), "buy")
            solved = hindsight.achieved(goal, attempt)
            assert "that is machine wash and long sleeve" in solved.task.question
        heldout = sorted(by_split["heldout"])[0]
        attempt = play(environments, goal, "?mens shirts", *_pages_to(heldout, shop), "buy")
        assert hindsight.achieved(goal, attempt).reason == OF_ANOTHER_SPLIT


def _pages_to(asin, shop):
    place = [one.asin for one in shop.catalogue.search("mens shirts")].index(asin)
    return [*(["next"] * (place // 3)), asin, "features", "back"]


def test_family_without_hindsight_says_so():
    profile = {"environment": {"name": "procedural"}}
    assert not isinstance(family_of(Profile.model_validate(profile)), RelabelsFailures)
    with pytest.raises(ValidationError, match='"procedural" cannot say'):
        Profile.model_validate(profile | {"warm_start": {"hindsight": {}}})
