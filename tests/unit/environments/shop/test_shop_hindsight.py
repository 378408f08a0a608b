"""A purchase becomes the goal that it meets, unless it is of another split or teaches nothing."""

from collections import Counter
from functools import cache

import pytest
from pydantic import ValidationError

from espalier.config import Profile
from espalier.environments import RelabelsFailures, family_of
from espalier.environments.hindsight import OF_ANOTHER_SPLIT, relabelled
from espalier.environments.teaching import ScriptTeacher
from espalier_environments.shop.catalogue import Catalogue
from espalier_environments.shop.made_catalogue import make_products, split_of
from espalier_environments.shop.webshop_files import load_webshop
from tests.unit.environments.shop.shops import (
    ATTRIBUTES,
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


def bought(family, environments, goal, product, *clicks, before=(), words=""):
    """An attempt at `goal` that searches the title of a product and buys it."""
    search = f"?{product.record.title}{words}"
    return play(environments, goal, *before, search, product.asin, *clicks, "buy")


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


def test_no_goal_is_made_of_any_product_of_judged_splits(family, environments, hindsight, goal):
    reasons = Counter()
    for product in (*products_of(family, "dev"), *products_of(family, "heldout")):
        if product in catalogue_of(family).search(product.record.title)[:3]:  # of the first page
            attempt = bought(family, environments, goal, product)
            reasons[hindsight.achieved(goal, attempt).reason] += 1
    assert set(reasons) == {OF_ANOTHER_SPLIT}
    assert reasons.total() > 100


def test_every_attempt_that_is_not_used_has_a_reason(family, environments, hindsight, goal):
    product = other_product(family, goal, "train")
    wrong = bought(family, environments, goal, product)
    unheard = bought(family, environments, goal, product, words=" unheard")
    undone = play(environments, goal, *("?mug",) * family.profile.episode.max_turns)
    teacher = ScriptTeacher(environments)
    right = teacher.demonstrate(goal, lambda: family.demonstrate(goal))
    attempts = [(goal, one) for one in (wrong, wrong, unheard, right, undone)]
    found = relabelled(attempts, hindsight, teacher, set())
    assert found.unused == {
        "demonstrated_already": 1, "searched_for_something_else": 1, "solved": 1,
        "ended_by_max_turns": 1,
    }  # fmt: skip
    assert relabelled(attempts, hindsight, teacher, set()) == found
    known = relabelled([(goal, wrong)], hindsight, teacher, found.tasks.keys())
    assert known.unused == {"demonstrated_already": 1}


def test_public_product_is_asked_for_by_what_was_read(tmp_path):
    """The small shop has a goal of each product: one of them is held out by its id."""
    many = [{**PRODUCTS[0], "asin": f"B0A{number:07d}"} for number in range(12)]
    attributes = {one["asin"]: ATTRIBUTES["B0AAAAAAA1"] for one in many}
    folder = write_shop(tmp_path / "catalogue", many, attributes)
    family = shop_family(catalogue=str(folder))
    hindsight = family.hindsight(tmp_path, tmp_path)
    shop = load_webshop(folder, max_results=family.settings.max_results)
    listed = [one.asin for one in shop.catalogue.search("mens shirts")]
    goal = public_tasks(family, folder)["train"][0]
    with family.environments(tmp_path) as over:
        for split in ("train", "heldout"):
            for asin in {one.asin for one in shop.goals_of(split, family.profile.splits)}:
                pages = ["next"] * (listed.index(asin) // 3)
                actions = ("?mens shirts", *pages, asin, "features", "back", "buy")
                found = hindsight.achieved(goal, play(over("train"), goal, *actions))
                if split == "train":
                    assert "that is machine wash and long sleeve" in found.task.question
                else:
                    assert found.reason == OF_ANOTHER_SPLIT


def test_family_without_hindsight_says_so():
    profile = {"environment": {"name": "procedural"}}
    assert not isinstance(family_of(Profile.model_validate(profile)), RelabelsFailures)
    with pytest.raises(ValidationError, match='"procedural" cannot say'):
        Profile.model_validate(profile | {"warm_start": {"hindsight": {}}})
