"""WebShop's own files, and files that are nearly so."""

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
    shop_family,
    write_shop,
)

PUBLIC = Path(__file__).resolve().parents[4].parent / "shared/data/webshop/items_ins_v2_1000.json"
COVERED = {"heldout-db2625f8bf3f": "its two attributes are among the next product's four"}
"""Public goals that the product of the next one meets, and why."""


def refusal(folder, **files):
    with pytest.raises(DataError) as refused:
        load(folder, **files)
    return str(refused.value)


def load(folder, **files):
    return load_webshop(write_shop(folder, **files), max_results=50)


def test_products_and_goals_are_read_as_upstream_reads_them(tmp_path):
    shop = load(tmp_path)
    shirt, lamp = shop.catalogue.products
    assert (shirt.asin, lamp.asin) == ("b0aaaaaaa1", "b0aaaaaaa2")
    assert shirt.options == {"color": ("crimson red", "black | white"), "size": ("small", "large")}
    assert (shirt.price, shirt.price_tag) == (19.99, "19.99")
    assert 10.5 <= lamp.price <= 20
    assert lamp.price_tag == "10.5 to 20"
    assert (lamp.record.query, lamp.record.bullet_points) == ("desk lamps", ("easy clean",))
    asked = sorted(goal.instruction for goal in shop.goals if goal.asin == shirt.asin)
    assert (len(asked), len(shop.goals)) == (4, 5), "of every combination of options"
    assert asked[0].startswith(
        "Find me machine wash mens shirts with color: black | white, and size: large, and price "
        "lower than "
    )


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
    assert (check.accepted, check.faults) == (len(tasks), ())


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
    colors = ("red", "blue", "green", "black")
    many = [
        {**LAMP, "asin": f"B{n:09d}", "name": f"lamp number{n} of {colors[n % 4]} glass"}
        for n in range(60)
    ]
    attributes = {
        one["asin"]: {**ATTRIBUTES["B0AAAAAAA2"], "instruction": f"find me {one['name']}"}
        for one in many
    }
    write_shop(tmp_path / "given", products=many, attributes=attributes)
    family = shop_family(catalogue=str(tmp_path / "given"))
    knowledge = tmp_path / "knowledge"
    knowledge.mkdir()
    family.ingest(Draft(knowledge), None)
    for path in (tmp_path / "given").iterdir():
        path.unlink()
    questions = family.questions(knowledge, Funnel(), None)
    ids = [{q.task.extra["entities"][0] for q in questions[s]} for s in ("train", "heldout")]
    assert not ids[0] & ids[1]
    with family.teacher(knowledge, Funnel()) as demonstrate:
        shown = [demonstrate(question, "") for question in questions["train"][:5]]
    assert all(one.is_right for one in shown)


@pytest.mark.parametrize(
    "price", ["free", "nan", "$nan", "$-inf", "19.99", "$", "$1.2.3", "$" + "9" * 400]
)
def test_price_that_names_no_dollars_is_an_error(tmp_path, price):
    assert "row 1: pricing" in refusal(tmp_path, products=[{**SHIRT, "pricing": price}])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pricing": 19.99}, "row 1: pricing"),
        ({"asin": "B 0"}, "row 1: asin"),
        ({"name": "\ud800x"}, "surrogate"),
        ({"customization_options": {"Color": "red"}}, "customization_options.Color"),
        ({"customization_options": {"Color": ["red"]}}, "customization_options.Color"),
        ({"customization_options": {"Color": [{"value": "\ud800x"}]}}, "surrogate"),
    ],
)
def test_malformed_product_is_one_clear_error(tmp_path, changed, said):
    assert said in refusal(tmp_path, products=[{**SHIRT, **changed}])


def test_missing_and_ambiguous_files_are_named(tmp_path):
    assert "items_ins_v2" in refusal(tmp_path / "none", attributes=None)
    assert "items_shuffle" in refusal(tmp_path / "bare", products=None, human=HUMAN)
    twice = write_shop(tmp_path / "twice")
    (twice / "items_shuffle_3.json").write_text("[]")
    for path, said in ((twice, "items_shuffle_3"), (twice / "items_shuffle_3.json", "goals")):
        with pytest.raises(DataError, match=said):
            load_webshop(path, max_results=50)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"B1": {"attributes": 3}}', "null", "[" * 9000])
def test_attributes_that_are_none_are_an_error(tmp_path, text):
    assert "items_ins_v2_2.json" in refusal(tmp_path, attributes=text)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"attributes": {"B0AAAAAAA1": {"attributes": ["a"]}}}, "holds no goal"),
        ({"human": {"B0AAAAAAA1": []}}, "holds no goal"),
        ({"human": {"B0AAAAAAA1": "[]"}}, "a list of instructions"),
        ({"human": {"B0AAAAAAA1": [{**HUMAN["B0AAAAAAA1"][0], "instruction": "\ud800"}]}},
         "surrogate"),
    ],
)  # fmt: skip
def test_shop_without_a_goal_is_an_error(tmp_path, files, said):
    assert said in refusal(tmp_path, **files)
