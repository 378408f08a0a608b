from dataclasses import asdict, replace

import pytest

from espalier.config import EvaluationConfig, Profile
from espalier.environments import EnvironmentLostError
from espalier.evaluation.policies import FinishedEvaluations, choose_examples, evaluate_on_suite
from espalier.evaluation.suite import make_suite
from espalier.records.trajectory import FinishReason
from tests.factories.evaluation import ScriptedRoller, a_task, a_trajectory

GREEDY = {"a": "Lyon", "b": "Paris", "c": None}
SAMPLED = {"a": ["Lyon", "Paris"], "b": ["Lyon", "Lyon"]}


@pytest.fixture
def judged():
    config = EvaluationConfig(samples_per_task=2, sampled_questions=2, kept_trajectories=2)
    suite = make_suite(Profile(evaluation=config), [a_task(task_id) for task_id in "abc"], "k")
    return evaluate_on_suite(ScriptedRoller(GREEDY, SAMPLED), suite, seed=0)


def test_every_question_is_answered_greedily_the_first_also_sampled(judged):
    assert [row.task_id for row in judged.rows] == ["a", "b", "c"]
    assert [row.em for row in judged.rows] == [True, False, False]
    assert [(row.samples, row.samples_right) for row in judged.rows] == [(2, 1), (2, 2), (0, 0)]


def test_cost_says_what_the_roller_counted(judged):
    assert asdict(judged.cost) == {
        "action_tokens": 10,
        "total_tokens": 40,
        "seconds": 2.0,
        "token_drift": 1,
        "compared_turns": 6,
    }


def test_a_lost_environment_stops_the_evaluation():
    class Losing(ScriptedRoller):
        def roll_out(self, tasks, **how):
            first, *others = super().roll_out(tasks, **how)
            return [replace(first, finish_reason=FinishReason.TIMEOUT, reward={}), *others]

    suite = make_suite(Profile(), [a_task(task_id) for task_id in "ab"], "k")
    sampled = {task_id: ["Lyon"] * 4 for task_id in "ab"}
    with pytest.raises(EnvironmentLostError, match=r"2 of 10 .* \(2 timeout\)"):
        evaluate_on_suite(Losing(GREEDY, sampled), suite, seed=0)


def test_kept_episodes_are_greedy_ones_right_and_wrong(judged):
    assert [trajectory.answer for trajectory in judged.kept] == ["Lyon", "Paris"]


def test_a_finished_policy_is_not_rolled_out_again(judged, tmp_path):
    first = FinishedEvaluations(tmp_path / "work").get("key", lambda: judged)
    assert first == judged

    def again():
        raise AssertionError("the policy was finished")

    assert FinishedEvaluations(tmp_path / "work").get("key", again) == judged


def test_another_key_is_another_policy(judged, tmp_path):
    finished = FinishedEvaluations(tmp_path / "work")
    finished.get("key", lambda: judged)
    other = judged._replace(kept=[])
    assert finished.get("other", lambda: other) == other


def test_a_half_saved_evaluation_is_made_again(judged, tmp_path):
    (tmp_path / "work" / ".key.draft").mkdir(parents=True)
    (tmp_path / "work" / ".key.draft" / "cost.json").write_text("{")
    assert FinishedEvaluations(tmp_path / "work").get("key", lambda: judged) == judged


@pytest.mark.parametrize(
    ("num_right", "num_wrong", "count", "kept_right"),
    [(10, 10, 4, 2), (10, 1, 4, 3), (1, 10, 4, 1), (0, 10, 4, 0), (10, 0, 4, 4), (9, 9, 5, 3)],
)
def test_the_longer_half_fills_up_for_the_shorter(num_right, num_wrong, count, kept_right):
    is_right = [True] * num_right + [False] * num_wrong
    trajectories = [a_trajectory(str(place), None) for place in range(len(is_right))]
    kept = choose_examples(trajectories, is_right, count)
    assert len(kept) == count
    assert sum(is_right[int(trajectory.task_id)] for trajectory in kept) == kept_right


def test_fewer_episodes_than_wanted_are_all_kept():
    trajectories = [a_trajectory(str(place), None) for place in range(3)]
    assert choose_examples(trajectories, [True, False, False], 20) == trajectories


def test_kept_episodes_are_spread_over_the_suite():
    trajectories = [a_trajectory(str(place), None) for place in range(100)]
    kept = choose_examples(trajectories, [True] * 100, 4)
    assert [trajectory.task_id for trajectory in kept] == ["0", "25", "50", "75"]
