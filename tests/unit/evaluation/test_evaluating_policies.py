from dataclasses import replace

import pytest

from espalier.config import EvaluationConfig, Profile
from espalier.environments import EnvironmentLostError
from espalier.evaluation.policies import FinishedEvaluations, choose_examples, evaluate_on_suite
from espalier.evaluation.results import summarize
from espalier.evaluation.suite import make_suite
from espalier.records.episodes import EPISODES
from espalier.records.streams import read_stream
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


def test_the_first_questions_are_also_answered_from_memory():
    config = EvaluationConfig(samples_per_task=2, sampled_questions=2, closed_book_questions=2)
    suite = make_suite(Profile(evaluation=config), [a_task(task_id) for task_id in "abc"], "k")
    roller = ScriptedRoller(GREEDY, SAMPLED, from_memory={"a": "lyon", "c": "Lyon"})
    rows = evaluate_on_suite(roller, suite, seed=0).rows
    assert [(row.closed_book_em, row.closed_book_answer) for row in rows] == [
        (True, "lyon"), (False, None), (None, None),
    ]  # fmt: skip


def test_without_a_lookup_or_questions_nothing_is_asked_from_memory():
    class Silent(ScriptedRoller):
        def closed_book(self, questions):
            raise AssertionError("nothing is looked up")

    def asked(profile, task):
        (row,) = evaluate_on_suite(
            Silent({"a": "Lyon"}, {"a": ["Lyon"] * 4}), make_suite(profile, [task], "k"), seed=0
        ).rows
        return row.grounded, row.closed_book_em

    task, none_asked = a_task("a"), EvaluationConfig(closed_book_questions=0)
    assert asked(Profile(evaluation=none_asked), task) == (False, None), "the search returned 'r'"
    math = Profile.model_validate({"environment": {"name": "python_math"}})
    other = task.model_copy(update={"environment": "python_math"})
    assert asked(math, other) == (None, None)


class Losing(ScriptedRoller):
    """Loses the first `count` episodes of each rollout, also those that would be right."""

    def __init__(self, greedy, sampled, *, count=1, reason=FinishReason.TIMEOUT):
        super().__init__(greedy, sampled)
        self._count, self._reason = count, reason

    def roll_out(self, tasks, *, on_lost, **how):
        played = super().roll_out(tasks, on_lost=on_lost, **how)
        lost = [replace(t, finish_reason=self._reason, reward={}) for t in played[: self._count]]
        for one in lost:
            on_lost(one)
        return [*lost, *played[self._count :]]


def evaluated(roller, num_tasks=2, **settings):
    config = EvaluationConfig(samples_per_task=4, sampled_questions=2, **settings)
    tasks = [a_task(task_id) for task_id in "abcdefgh"[:num_tasks]]
    return evaluate_on_suite(roller, make_suite(Profile(evaluation=config), tasks, "k"), seed=0)


ALL_RIGHT = (dict.fromkeys("abcdefgh", "Lyon"), {task_id: ["Lyon"] * 4 for task_id in "ab"})


def test_too_many_lost_episodes_stop_the_evaluation():
    with pytest.raises(EnvironmentLostError, match=r"2 of 10 .*\(2 timeout\)"):
        evaluated(Losing(*ALL_RIGHT))


def test_an_evaluation_stops_before_sampling_what_cannot_count():
    class Watched(Losing):
        rollouts = 0

        def roll_out(self, tasks, **how):
            self.rollouts += 1
            return super().roll_out(tasks, **how)

    roller = Watched(*ALL_RIGHT, count=2)
    with pytest.raises(EnvironmentLostError, match=r"2 of 10"):
        evaluated(roller)
    assert roller.rollouts == 1


def test_a_lost_question_counts_as_wrong_and_is_counted():
    judged = evaluated(Losing(*ALL_RIGHT), max_lost_share=0.25)
    first, second = judged.rows
    assert (first.em, first.f1, first.samples, first.samples_right) == (False, 0.0, 4, 3)
    assert (first.lost_episodes, second.lost_episodes) == (2, 0)
    assert (second.em, second.f1, second.samples_right) == (True, 1.0, 4)
    found = summarize(judged.rows, EvaluationConfig(bootstrap_resamples=100), seed=0)
    assert (found["em"], found["n"]) == (0.5, 2)
    assert (found["lost_episodes"], found["broke_sandbox_episodes"]) == (2, 0)


def test_no_policy_gains_by_losing_its_hard_questions():
    answers = dict.fromkeys("abcdefgh", "Lyon") | {"a": "Paris"}
    sampled = {"a": ["Paris"] * 4, "b": ["Lyon"] * 4}
    honest = evaluated(ScriptedRoller(answers, sampled), num_tasks=8)
    dodging = evaluated(Losing(answers, sampled), num_tasks=8, max_lost_share=0.25)
    assert [row.em for row in dodging.rows] == [row.em for row in honest.rows]
    assert [row.samples_right for row in dodging.rows] == [r.samples_right for r in honest.rows]


def test_broken_sandboxes_stop_no_evaluation_and_are_counted():
    class Breaking(ScriptedRoller):
        def roll_out(self, tasks, **how):
            played = super().roll_out(tasks, **how)
            wrong = {"outcome": 0.0, "format": 0.0}
            broke = {"finish_reason": FinishReason.PROGRAM_BROKE_SANDBOX, "answer": None}
            return [replace(t, reward=wrong, **broke) for t in played]

    judged = evaluated(Breaking(*ALL_RIGHT))
    assert [row.broke_sandbox_episodes for row in judged.rows] == [5, 5]
    assert [row.finish_reason for row in judged.rows] == ["program_broke_sandbox"] * 2
    assert not any(row.em or row.samples_right or row.lost_episodes for row in judged.rows)


def test_kept_episodes_are_greedy_ones_right_and_wrong(judged):
    assert [trajectory.answer for trajectory in judged.kept] == ["Lyon", "Paris"]


def test_every_attempt_is_in_the_stream_also_after_a_kill(tmp_path):
    config = EvaluationConfig(samples_per_task=2, sampled_questions=2, kept_trajectories=1)
    suite = make_suite(Profile(evaluation=config), [a_task(task_id) for task_id in "abc"], "k")
    for _ in range(2):  # the second time, over what a killed evaluation has left
        evaluate_on_suite(ScriptedRoller(GREEDY, SAMPLED), suite, seed=0, attempts=tmp_path)
    found = [
        (one["task_id"], one["sample"], one["answer"]) for one in read_stream(tmp_path, EPISODES)
    ]
    assert found == [
        ("a", 0, "Lyon"), ("b", 0, "Paris"), ("c", 0, None),
        ("a", 1, "Lyon"), ("a", 2, "Paris"), ("b", 1, "Lyon"), ("b", 2, "Lyon"),
    ]  # fmt: skip


def test_attempts_are_in_the_stream_while_others_play(tmp_path):
    seen = []

    class Watched(ScriptedRoller):
        def roll_out(self, tasks, **how):
            found = super().roll_out(tasks, **how)
            seen.append(len(list(read_stream(tmp_path, EPISODES))))
            return found

    config = EvaluationConfig(samples_per_task=2, sampled_questions=2, kept_trajectories=1)
    suite = make_suite(Profile(evaluation=config), [a_task(task_id) for task_id in "abc"], "k")
    evaluate_on_suite(Watched(GREEDY, SAMPLED), suite, seed=0, attempts=tmp_path)
    assert seen == [3, 7]


def test_a_finished_policy_is_not_rolled_out_again(judged, tmp_path):
    first = FinishedEvaluations(tmp_path / "work").get("key", lambda: judged)
    assert first == judged

    def again():
        raise AssertionError("the policy was finished")

    finished = FinishedEvaluations(tmp_path / "work")
    assert finished.get("key", again) == judged
    other = judged._replace(kept=[])
    assert finished.get("other", lambda: other) == other


def test_a_half_saved_evaluation_is_made_again(judged, tmp_path):
    (tmp_path / "work" / ".key.draft").mkdir(parents=True)
    (tmp_path / "work" / ".key.draft" / "cost.json").write_text("{")
    assert FinishedEvaluations(tmp_path / "work").get("key", lambda: judged) == judged


@pytest.mark.parametrize(
    ("num_right", "num_wrong", "count", "kept_right"),
    [
        (10, 10, 4, 2),
        (10, 1, 4, 3),
        (1, 10, 4, 1),
        (0, 10, 4, 0),
        (10, 0, 4, 4),
        (9, 9, 5, 3),
        (1, 2, 20, 1),
    ],
)
def test_the_longer_half_fills_up_for_the_shorter(num_right, num_wrong, count, kept_right):
    is_right = [True] * num_right + [False] * num_wrong
    trajectories = [a_trajectory(str(place), None) for place in range(len(is_right))]
    kept = choose_examples(trajectories, is_right, count)
    assert len(kept) == min(count, len(is_right))
    assert sum(is_right[int(trajectory.task_id)] for trajectory in kept) == kept_right


def test_kept_episodes_are_spread_over_the_suite():
    trajectories = [a_trajectory(str(place), None) for place in range(100)]
    kept = choose_examples(trajectories, [True] * 100, 4)
    assert [trajectory.task_id for trajectory in kept] == ["0", "25", "50", "75"]
