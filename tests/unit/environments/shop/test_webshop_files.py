"""WebShop's own files, and files that are nearly so."""

import json
from pathlib import Path

import pytest

from espalier.environments import check_golds
from espalier.environments.funnel import Funnel
from espalier.records import DataError, Draft
from espalier_environments.shop.webshop_files import load_webshop
from tests.unit.environments.shop.shops import (
    ATTRIBUTES,
    HUMAN,
    LAMP,
    NOWHERE,
    SHIRT,
    play,
    shop_family,
    write_shop,
)

PUBLIC = Path(__file__).resolve().parents[4].parent / "shared/data/webshop/items_ins_v2_1000.json"
COVERED = {"heldout-db2625f8bf3f": "its two attributes are among the next product's four"}
"""Public goals that the product of the next one meets, and why."""


def load(folder, **files):
    return load_webshop(write_shop(folder, **files), max_results=50)


def refusal(folder, **files):
    with pytest.raises(DataError) as refused:
        load(folder, **files)
    return str(refused.value)


def test_products_are_read_as_upstream_reads_them(tmp_path):
    shop = load(tmp_path)
    assert [product.asin for product in shop.catalogue.products] == ["b0aaaaaaa1", "b0aaaaaaa2"]
    shirt, lamp = shop.catalogue.products
    assert shirt.options == {"color": ("crimson red", "black | white"), "size": ("small", "large")}
    assert (shirt.price, shirt.price_tag) == (19.99, "19.99")
    assert 10.5 <= lamp.price <= 20
    assert lamp.price_tag == "10.5 to 20"
    assert lamp.record.query == "desk lamps"
    assert lamp.record.bullet_points == ("easy clean",)


def test_goals_of_attributes_ask_for_every_combination_of_options(tmp_path):
    goals = load(tmp_path).goals
    shirts = sorted(goal.instruction for goal in goals if goal.asin == "b0aaaaaaa1")
    assert len(shirts) == 4
    assert shirts[0].startswith(
        "Find me machine wash mens shirts with color: black | white, and size: large, and price "
        "lower than "
    )
    assert len(goals) == 5


def test_goals_of_people_are_those_with_attributes_of_known_products(tmp_path):
    (goal,) = load(tmp_path, human=HUMAN).goals
    assert goal.instruction.startswith(
        "i need a red shirt that i can machine wash, size large, and"
    )
    assert goal.goal.options == ("red", "large")
    assert goal.chosen == {"color": "crimson red", "size": "large"}
    assert goal.goal.price_upper in (30.0, 40.0, 50.0, 60.0)


@pytest.mark.parametrize("human", [None, HUMAN])
def test_gold_purchases_of_a_small_shop_score_one(tmp_path, human):
    family, path = shop_family(), write_shop(tmp_path, human=human)
    tasks = family.read_benchmark(path)
    with family.benchmark_environments(path, NOWHERE) as environments:
        check = check_golds(family, tasks, environments)
        part = play(environments, tasks[0], "?shirt", "b0aaaaaaa1", "buy")
    assert check.accepted == len(tasks)
    assert check.faults == ()
    assert 0 < family.official_scores(tasks[0], part)["score"] < 1 or human is None


@pytest.mark.skipif(not PUBLIC.is_file(), reason=f"{PUBLIC} is not here")
def test_public_goals_are_met_by_their_own_attributes_alone():
    family = shop_family()
    tasks = family.read_benchmark(PUBLIC)
    with family.benchmark_environments(PUBLIC, NOWHERE) as environments:
        check = check_golds(family, tasks, environments)
    assert len(tasks) == check.accepted == 211
    assert {fault.task_id for fault in check.faults} == COVERED.keys()
    assert check.refused == 210


def test_catalogue_of_a_profile_is_played_from_the_artifact(tmp_path):
    write_shop(tmp_path / "given", products=_many(60), attributes=_attributes_of(_many(60)))
    family = shop_family(catalogue=str(tmp_path / "given"))
    knowledge = tmp_path / "knowledge"
    knowledge.mkdir()
    family.ingest(Draft(knowledge), None)
    for path in (tmp_path / "given").iterdir():
        path.unlink()
    questions = family.questions(knowledge, Funnel(), None)
    ids = {
        split: {q.task.extra["entities"][0] for q in found} for split, found in questions.items()
    }
    assert not ids["train"] & ids["heldout"]
    with family.teacher(knowledge, Funnel()) as demonstrate:
        shown = [demonstrate(question, "") for question in questions["train"][:5]]
    assert all(one.is_right for one in shown)
    assert family.verify(questions["train"][0].task, questions["train"][0].task.verifier.gold[0])


def _many(count):
    colors = ("red", "blue", "green", "black")
    return [
        {**LAMP, "asin": f"B{n:09d}", "name": f"lamp number{n} of {colors[n % 4]} glass"}
        for n in range(count)
    ]


def _attributes_of(products):
    return {
        one["asin"]: {**ATTRIBUTES["B0AAAAAAA2"], "instruction": f"find me {one['name']}"}
        for one in products
    }


@pytest.mark.parametrize(
    "price", ["free", "nan", "NaN dollars", "19.99", "$", "$1.2.3", "$" + "9" * 400]
)
def test_price_that_names_no_dollars_is_an_error(tmp_path, price):
    said = refusal(tmp_path, products=[{**SHIRT, "pricing": price}])
    assert "row 1: pricing" in said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pricing": 19.99}, "row 1: pricing: Input should be a valid string"),
        ({"asin": "B 0"}, "row 1: asin: an id of one word"),
        ({"name": None}, "row 1: name: Input should be a valid string"),
        ({"customization_options": ["red"]}, "customization_options: an object"),
        ({"customization_options": {"Color": "red"}}, "customization_options.Color: a list"),
        (
            {"customization_options": {"Color": ["red"]}},
            "customization_options.Color: objects with",
        ),
        ({"small_description": {"a": 1}}, "row 1: small_description"),
    ],
)
def test_malformed_product_is_one_clear_error(tmp_path, changed, said):
    assert said in refusal(tmp_path, products=[{**SHIRT, **changed}])


def test_half_of_a_character_is_an_error(tmp_path):
    half = "\ud800x"
    options = {"Color": [{"value": half}]}
    named = [{**SHIRT, "name": half}]
    asked = {"B0AAAAAAA1": [{"instruction": half, "instruction_attributes": ["a"]}]}
    for files in (
        {"products": [{**SHIRT, "customization_options": options}]},
        {"products": named},
        {"human": asked},
    ):
        assert "surrogate" in refusal(tmp_path, **files)


def test_missing_and_ambiguous_files_are_named(tmp_path):
    write_shop(tmp_path / "none", attributes=None)
    with pytest.raises(DataError, match="items_ins_v2"):
        load_webshop(tmp_path / "none", max_results=50)
    twice = write_shop(tmp_path / "twice")
    (twice / "items_shuffle_3.json").write_text("[]")
    with pytest.raises(DataError, match="items_shuffle_3"):
        load_webshop(twice, max_results=50)
    bare = write_shop(tmp_path / "bare", products=None, human=HUMAN)
    with pytest.raises(DataError, match="items_shuffle"):
        load_webshop(bare, max_results=50)
    with pytest.raises(DataError, match="goals"):
        load_webshop(twice / "items_shuffle_3.json", max_results=50)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"B1": {"attributes": 3}}', "null", "[" * 9000])
def test_attributes_that_are_none_are_an_error(tmp_path, text):
    assert "items_ins_v2_2.json" in refusal(tmp_path, attributes=text)


def test_shop_without_a_goal_is_an_error(tmp_path):
    assert "holds no goal" in refusal(tmp_path, attributes={"B0AAAAAAA1": {"attributes": ["a"]}})
    assert "holds no goal" in refusal(tmp_path, human={"B0AAAAAAA1": []})
    assert "a list of instructions" in refusal(tmp_path, human={"B0AAAAAAA1": json.dumps([])})
