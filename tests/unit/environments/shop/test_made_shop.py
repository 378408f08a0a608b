"""The made catalogue, its goals and its teacher."""

import random
from itertools import combinations

import pytest
from pydantic import ValidationError

from espalier.config import Profile
from espalier.environments import check_golds
from espalier.environments.teaching import ScriptTeacher
from espalier.records import FinalAnswer
from espalier.records.trajectory import FinishReason, Trajectory
from espalier.rewards.webshop import first_color, title_nouns, token_set_ratio
from espalier_environments.shop.config import MadeCatalogueConfig
from espalier_environments.shop.made_catalogue import (
    COLORS,
    DEPARTMENTS,
    MADE_ASIN,
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


def test_catalogue_has_products_with_options_by_seed(family):
    made = family.settings.made
    products = make_products(made)
    assert products == make_products(made)
    assert products != make_products(made.model_copy(update={"seed": 1}))
    assert len({one.asin for one in products}) == 800
    assert all(len(one.options) == 2 and 10 <= one.price < 100 for one in products)


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
    splits = family.profile.splits
    assert {split: len(found) for split, found in tasks.items()} == dict.fromkeys(SPLITS, 600)
    bought, titles, asked = {}, {}, {}
    for split, found in tasks.items():
        products = [catalogue[task.extra["entities"][0]] for task in found]
        assert {split_of(product, splits) for product in products} == {split}
        bought[split] = {product.asin for product in products}
        titles[split] = {frozenset(product.record.title.split()) for product in products}
        asked[split] = {task.question for task in found}
    for found in (bought, titles, asked):
        for one, other in combinations(SPLITS, 2):
            assert found[one] & found[other] == set()


def test_tasks_are_equal_under_one_seed(family, tasks):
    assert shop_family().tasks("heldout", 600) == tasks["heldout"]
    assert len({task.task_id for task in tasks["heldout"]}) == 600


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
    assert any(
        result.call.arguments.get("target") == "back"
        for one in right
        for result in one.tool_results
    ), "a demonstration shows how to go back"


def test_answer_that_names_the_gold_purchase_is_right(family, tasks):
    task = tasks["train"][0]
    assert family.verify(task, task.verifier.gold[0]) == 1.0
    assert family.verify(task, tasks["train"][1].verifier.gold[0]) == 0.0
    assert family.verify(task, None) == 0.0


def test_purchase_in_part_is_paid_its_score_beside_the_outcome(
    family, catalogue, tasks, environments
):
    task = next(task for task in tasks["train"] if task.extra["kind"] == "2 options")
    asin = task.extra["entities"][0]
    title = catalogue[asin].record.title
    wanted = task.arguments["goal"]["options"]
    half = play(environments, task, f"?{title} {' '.join(wanted)}", asin, wanted[0], "buy")
    # two attributes, the price and one of two options
    assert half.reward == {"outcome": 0.0, "format": 0.1, "score": 0.4 * (4 / 5)}
    assert not half.is_right
    assert family.official_scores(task, half) == {"score": 4 / 5, "success_rate": 0.0}


def test_message_without_a_purchase_is_no_answer(family, tasks, environments):
    task = tasks["train"][0]
    said = play(environments, task, FinalAnswer(task.verifier.gold[0]))
    assert said.finish_reason is FinishReason.PARSE_ERROR
    assert said.reward == {"outcome": 0.0, "format": 0.0, "score": 0.0}
    assert family.official_scores(task, said) == {"score": 0.0, "success_rate": 0.0}


@pytest.mark.parametrize(("products", "length"), [(1000, 3), (1001, 4)])
def test_made_ids_are_distinct_and_short(products, length):
    made = make_products(MadeCatalogueConfig(products=products))
    asins = {product.asin for product in made}
    assert len(asins) == products
    assert {len(asin) for asin in asins} == {length}
    assert all(MADE_ASIN.fullmatch(asin) for asin in asins)


def test_reading_keeps_a_value_behind_its_option(family):
    reading = family.reading_material(NOWHERE, [])
    prompts = [reading.write(random.Random(n)).prompt for n in range(40)]
    said = [prompt for prompt in prompts if " color " in prompt]
    assert said
    for prompt in said:
        assert prompt.partition(" color ")[2].split()[0] in COLORS.split()


def test_reading_opens_products_in_the_order_of_the_prompt(family):
    reading = family.reading_material(NOWHERE, [])
    logs = [reading.write(random.Random(n)) for n in range(20)]
    openings = [log for log in logs if _without_id(log.pieces[2]) in log.prompt.split(" , ")]
    assert 3 < len(openings) < 17
    for log in openings:
        page = log.pieces[1]
        clicks = log.pieces[2:-1:2]
        assert [_without_id(click) for click in clicks] == log.prompt.split(" , ")
        for click in clicks:
            assert click.thought.endswith(f" {click.calls[0].arguments['target']}")
            assert f"{click.thought} " in page


def _without_id(click):
    return click.thought.rpartition(" ")[0]


def test_reading_shows_no_id_of_the_catalogue_twice_the_same(family, catalogue):
    reading = family.reading_material(NOWHERE, [])
    first = reading.write(random.Random(1))
    assert first == reading.write(random.Random(1))
    ids = {word for n in range(20) for word in str(reading.write(random.Random(n))).split()}
    known = catalogue.keys()
    drawn = {word for word in ids if MADE_ASIN.fullmatch(word)}
    assert len(drawn) > 40
    # drawn from 1000, of which 800 are products' ids
    assert drawn - known


def test_profile_pays_no_more_for_a_part_than_for_all():
    def profile(score_reward, *terms):
        environment = {"name": "shop", "score_reward": score_reward}
        return {"environment": environment, "reward": {"terms": [{"name": name} for name in terms]}}

    Profile.model_validate(profile(0.9))
    with pytest.raises(ValidationError, match=r"score_reward 0\.95"):
        Profile.model_validate(profile(0.95))
    Profile.model_validate(profile(0.5, "call_shaping"))
    with pytest.raises(ValidationError, match=r"score_reward 0\.6"):
        Profile.model_validate(profile(0.6, "call_shaping"))
