import asyncio
from collections import Counter

import pytest

from espalier.config import SplitsConfig
from espalier.environments import PlainQuestion, check_golds
from espalier.environments.funnel import Funnel
from espalier.environments.teaching import play_script
from espalier.records import DataError, FinalAnswer, ProfileError
from espalier_environments.procedural.drawing import UNTOLD, Drawing, shares
from espalier_environments.procedural.family import answer_in
from espalier_environments.procedural.generators import Item
from espalier_environments.procedural.worked import PLAIN, worked
from tests.unit.environments.procedural import NEEDS_GENERATORS, SUMS, family


class FewQuestions:
    """A stand-in for the generating process, with `count` distinct questions a level."""

    def __init__(self, count):
        self.count = count

    def items(self, name, knobs, places):
        return [Item(f"{name} {knobs} {place % self.count}?", str(place)) for place in places]


def drawing(count, *generators):
    settings = family(*generators).settings
    return Drawing(settings, SplitsConfig(), FewQuestions(count))


def test_a_question_is_in_one_split_and_once():
    drawn = drawing(250, SUMS)
    asked = {split: drawn.tasks(split, 2000) for split in ("train", "dev", "heldout")}
    questions = [task.question for tasks in asked.values() for task in tasks]
    assert len(questions) == len(set(questions)) == 500
    assert {task.metadata.split for task in asked["dev"]} == {"dev"}
    assert drawing(250, SUMS).tasks("train", 2000) == asked["train"]
    with pytest.raises(DataError, match=r"chain_sum, level 1: .*dev"):
        drawing(1, SUMS).tasks("dev", 10)


def test_weights_and_levels_share_the_tasks_out():
    drawn = drawing(100_000, {**SUMS, "weight": 3}, {"name": "gcd"}).tasks("train", 400)
    counted = Counter((task.arguments["generator"], task.metadata.difficulty) for task in drawn)
    assert counted == {("chain_sum", 1): 150, ("chain_sum", 2): 150, ("gcd", 1): 100}
    assert shares([1, 1, 1], 10) == [4, 3, 3]


@pytest.mark.parametrize(
    ("generators", "message"),
    [
        ([{"name": "chain_sums"}], "mean chain_sum"),
        ([{"name": "propositional_logic"}], "left out: .* without reading"),
        ([{"name": "gcd", "levels": [{"seed": 1}]}], "seed"),
        ([{"name": "gcd", "levels": [{}], "curriculum": 2}], "levels or curriculum"),
        ([{"name": "gcd"}, {"name": "gcd"}], "generators"),
        ([{"name": "gcd", "weight": 0}], "weight"),
    ],
)
def test_a_faulty_mixture_is_refused(generators, message):
    with pytest.raises((ProfileError, ValueError), match=message):
        family(*generators)


def test_the_last_tagged_answer_counts_or_the_whole_text():
    assert answer_in(" 12\n") == "12"
    assert answer_in("<answer>1</answer> no, <answer> a\nb </answer>") == "a\nb"
    assert answer_in("<answer>") == "<answer>"
    assert answer_in("<answer>1</answer>" + "<answer>" * 12_000) == "1"


# worked by hand
# worked by hand
@pytest.mark.parametrize(
    ("generator", "question", "gold", "thought"),
    [
        ("chain_sum", "the problem: 4 - 1 - 7 =", "-4", "4 - 1 = 3 , 3 - 7 = -4"),
        ("chain_sum", "the problem: 4 - 1 - 7 =", "5", PLAIN),
        ("simple_equations", "Solve for b: 5*b + 6 = 26", "4", "26 - 6 = 20 , 20 / 5 = 4"),
        ("simple_equations", "Solve for b: 5 - 8*b = -51", "7", "-51 - 5 = -56 , -56 / -8 = 7"),
        ("simple_equations", "Solve for h: 8*h = 64", "8", "64 / 8 = 8"),
        ("number_filtering", "Keep all numbers larger than 5 in this list: ['4', '7']\nReturn",
         "['7']", "4 no , 7 yes"),
        ("leg_counting", "total if you have 3 woodlouses, 1 leech?", "42",
         "3 * 14 = 42 , total 42 , 1 * 0 = 0 , total 42"),
        ("leg_counting", "total if you have 3 dragons?", "12", PLAIN),
        ("sudoku", "Solve it", "1 2", PLAIN),
    ],
)  # fmt: skip
def test_worked_answers(generator, question, gold, thought):
    assert worked(generator, question, gold) == thought


@NEEDS_GENERATORS
def test_questions_are_demonstrated_and_judged(tmp_path):
    played = family(
        SUMS,
        {"name": "number_filtering", "levels": [{"max_decimals": 0}]},
        {"name": "simple_equations", "levels": [{"max_terms": 2}]},
        {"name": "leg_counting", "curriculum": 1},
    )
    tasks = played.tasks("train", 40)
    with played.teacher(tmp_path, Funnel()) as demonstrate:
        shown = [demonstrate(PlainQuestion(task), "") for task in tasks]
    assert {one.answer for one in shown} == {task.verifier.gold[0] for task in tasks}
    assert all(one.messages[-1].thought != PLAIN for one in shown)
    with played.environments(tmp_path) as environments_over:
        found = check_golds(played, tasks, environments_over("full"))
    assert (found.accepted, found.refused, found.faults) == (40, 40, ())


@NEEDS_GENERATORS
def test_what_reveals_no_answer_is_neither_shown_nor_read(tmp_path):
    played = family({"name": "rush_hour"}, SUMS)
    tasks = played.tasks("train", 6)
    untold = [task for task in tasks if task.arguments["generator"] == "rush_hour"]
    assert 0 < len(untold) < len(tasks)
    with played.teacher(tmp_path, Funnel()) as demonstrate:
        assert demonstrate(PlainQuestion(untold[0]), "").reason == "no_answer_revealed"
    assert not any(UNTOLD in text for text in played.reading_material(tmp_path, tasks).texts(None))
    with pytest.raises(DataError, match="reveals an answer"):
        played.reading_material(tmp_path, untold)
    with played.environments(tmp_path) as environments_over:
        found = check_golds(played, untold[:1], environments_over("full"))
    assert "rush_hour reveals no answer" in found.faults[0].fault


@NEEDS_GENERATORS
def test_a_partial_score_is_reported_and_not_rewarded(tmp_path):
    played = family({"name": "spiral_matrix"})
    (task,) = played.tasks("dev", 1)
    script = (one for one in [FinalAnswer(str(task.verifier.gold[0].split()))])
    with played.environments(tmp_path) as environments_over:
        attempt = asyncio.run(play_script(environments_over("full"), task, script))
    assert attempt.reward["outcome"] == 0
    assert played.official_scores(task, attempt) == {"accuracy": 0.0, "score": 0.1}
    assert played.verify(task, None) == 0
