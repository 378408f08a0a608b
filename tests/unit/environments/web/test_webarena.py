"""Tasks in WebArena's format, asked of the made site."""

import json

import pytest

from espalier.environments import check_golds
from espalier.records import DataError, FinalAnswer
from espalier_environments.web.catalogue import made_site
from tests.unit.environments.web.playing import NOWHERE, call, played, web


def row(number, intent, start="__GITLAB__", **checks):
    """A task with the keys that upstream's config_files/test.raw.json has."""
    empty = {"reference_answers": None, "reference_url": "", "program_html": [], "string_note": ""}
    return {
        "sites": ["gitlab"], "task_id": number, "require_login": True, "geolocation": None,
        "storage_state": "./.auth/gitlab_state.json", "start_url": start, "intent": intent,
        "intent_template": intent, "instantiation_dict": {}, "intent_template_id": number,
        "require_reset": False,
        "eval": {**empty, "reference_answer_raw_annotation": "", **checks},
    }  # fmt: skip


def rows():
    """A task of each evaluator, and one of two."""
    family = web()
    records = made_site(family.settings.site, 0, "heldout", family.profile.splits)
    issue, product = records["issues"][0], records["products"][1]
    return [
        row(1, f"Who reported {issue['name']}?", eval_types=["string_match"],
            reference_answers={"exact_match": issue["reporter"].title()}),
        row(2, f"What is the price and the stock of the {product['name']}?", "__SHOPPING__",
            eval_types=["string_match"],
            reference_answers={"must_include": [str(product["price"]), str(product["stock"])]}),
        row(3, "Show me the open issues", eval_types=["url_match"],
            reference_url="__GITLAB__?status=open"),
        row(4, f"Open the {product['name']} and tell me its price", "__HOMEPAGE__",
            eval_types=["string_match", "url_match"], reference_url="__SHOPPING__/2",
            reference_answers={"must_include": [str(product["price"])]}),
        row(5, "Is there a map?", "__REDDIT__", eval_types=["string_match"],
            reference_answers={"fuzzy_match": "N/A"}),
    ]  # fmt: skip


def write(tmp_path, content):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(content))
    return path


def test_tasks_of_each_evaluator_are_played(tmp_path):
    family, path = web(), write(tmp_path, rows())
    tasks = family.read_benchmark(path)
    assert [task.arguments["start"] for task in tasks] == [
        "/issues", "/shop", "/issues", "/", "/forum",
    ]  # fmt: skip
    assert {task.metadata.split for task in tasks} == {"heldout"}
    with family.benchmark_environments(path, NOWHERE) as environments:
        found = check_golds(family, tasks, environments)
    assert (found.accepted, found.refused, found.faults) == (5, 5, ())


CITY = {
    "url": "__HOMEPAGE__/account",
    "locator": "document.querySelector('#city').outerText",
    "required_contents": {"exact_match": "Oslo"},
}


def test_a_program_looks_at_the_page_that_it_names(tmp_path):
    family = web()
    checks = {"eval_types": ["program_html"], "program_html": [CITY]}
    path = write(tmp_path, [row(1, "Move to Oslo", "__HOMEPAGE__", **checks)])
    (task,) = family.read_benchmark(path)
    look = [call("goto", path="/account/edit")]
    shown = played(family, task, [*look, FinalAnswer("x")]).tool_results[0].content.splitlines()
    field = next(line.split()[0] for line in shown if " textbox city" in line)
    save = next(line.split()[0] for line in shown if line.endswith("button save"))

    def success(*actions):
        attempt = played(family, task, [*actions, FinalAnswer("Oslo")])
        return family.official_scores(task, attempt)["success"]

    for city, score in (("oslo", 1), ("oslo <b>", 0)):
        assert success(*look, call("type", id=field, text=city), call("click", id=save)) == score
    assert success() == 0


def program(**changed):
    return {"eval_types": ["program_html"], "program_html": [{**CITY, **changed}]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"start_url": "__MAP__"}, "row 1: __MAP__"),
        ({"start_url": "http://example.com"}, "example.com"),
        ({"eval": {"eval_types": ["magic"]}}, "eval_types"),
        ({"eval": {"eval_types": ["string_match"]}}, "reference_answers"),
        ({"eval": {"eval_types": ["url_match"], "reference_url": "/", "url_note": "EXACT"}},
         "EXACT"),
        ({"eval": {"eval_types": ["string_match"], "reference_answers": {"must_include": "x"}}},
         "exact_match"),
        ({"eval": program(locator="func:steal(__page__)")}, "func:steal"),
        ({"eval": program(locator="document.title")}, "document.title"),
        ({"eval": program(url="func:last()")}, "func:last"),
        ({"eval": program(required_contents={"contains": "x"})}, "required_contents"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_refused_by_name(tmp_path, change, said):
    with pytest.raises(DataError, match=said):
        web().read_benchmark(write(tmp_path, [{**rows()[0], **change}]))
