import random

import pytest

from espalier.config import Profile
from espalier.environments import MakesCanaries, family_of
from espalier.records.trajectory import FinishReason
from espalier.rewards.math_equivalence import final_answer
from espalier.training.attempt_figures import attempt_figures
from espalier.training.health.canaries import canaries_of, right_share
from tests.factories.records import make_task, make_trajectory

TASKS = [make_task(f"dev-{number}", gold=("Lyon",)) for number in range(5)]


def family(name):
    return family_of(Profile.model_validate({"environment": {"name": name}}))


def test_canaries_ask_what_dev_questions_ask():
    canaries = canaries_of(family("search_qa"), TASKS, 3, seed=0)
    assert [one.task_id for one in canaries] == ["canary-dev-0", "canary-dev-1", "canary-dev-2"]
    assert [one.prompt for one in canaries] == [one.prompt for one in TASKS[:3]]
    golds = {one.verifier.gold for one in canaries}
    assert len(golds) == 3
    assert ("Lyon",) not in golds
    assert canaries == canaries_of(family("search_qa"), TASKS, 3, seed=0)
    assert canaries != canaries_of(family("search_qa"), TASKS, 3, seed=1)


def test_a_family_without_such_answers_has_no_canaries():
    assert canaries_of(family("procedural"), TASKS, 3, seed=0) == []


@pytest.mark.parametrize("name", ["search_qa", "python_math"])
def test_an_unfindable_answer_is_of_the_form_of_right_ones(name):
    made = family(name)
    assert isinstance(made, MakesCanaries)
    answer = made.unfindable_answer(random.Random(0))
    kind = "exact_match" if name == "search_qa" else "math_equivalence"
    task = make_task("t", gold=(answer,), kind=kind)
    said = answer if name == "search_qa" else final_answer(f"\\boxed{{{answer}}}")
    assert made.verify(task, said) == 1.0
    assert made.verify(task, "73") == 0.0


def test_a_lost_canary_says_nothing():
    lost = make_trajectory("a", outcome=0.0, finish_reason=FinishReason.TIMEOUT)
    assert right_share([]) is None
    assert right_share([lost]) is None
    assert right_share([lost, make_trajectory("b"), make_trajectory("c", outcome=0.0)]) == 0.5


def test_figures_of_right_attempts_need_right_attempts():
    wrong = [make_trajectory("a", outcome=0.0, answer="x")] * 2
    assert "grounded_right_share" not in attempt_figures(wrong, offers_tools=True)
    assert attempt_figures(wrong, offers_tools=True)["grounded_share"] == 0.0
