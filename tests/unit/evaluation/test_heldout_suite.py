import pytest

from espalier.config import EpisodeConfig, EvaluationConfig, Profile, RolloutConfig, SearchConfig
from espalier.evaluation import make_suite
from tests.factories.evaluation import a_task

TASKS = [a_task("a"), a_task("b")]


def digest(tasks=TASKS, knowledge="k", **sections):
    return make_suite(Profile(**sections), tasks, knowledge).digest


@pytest.mark.parametrize(
    "other",
    [
        digest(tasks=TASKS[::-1]),
        digest(tasks=[a_task("a"), a_task("b", gold="Paris")]),
        digest(knowledge="other"),
        digest(search=SearchConfig(top_k=2)),
        digest(episode=EpisodeConfig(max_turns=3)),
        digest(evaluation=EvaluationConfig(samples_per_task=8)),
    ],
)
def test_whatever_changes_an_answer_changes_the_digest(other):
    assert other != digest()


def test_how_results_are_reported_does_not_change_the_digest():
    reporting = EvaluationConfig(bootstrap_resamples=100, confidence=0.9, kept_trajectories=1)
    assert digest(evaluation=reporting, seed=5) == digest()


def test_how_losses_are_handled_does_not_change_the_digest():
    patient = RolloutConfig(max_replays=9, tool_timeout_s=1.0)
    assert digest(evaluation=EvaluationConfig(max_lost_share=0.5), rollout=patient) == digest()


def test_suite_names_its_tasks_and_its_digest():
    suite = make_suite(Profile(evaluation=EvaluationConfig(sampled_questions=1)), TASKS, "k")
    described = suite.described()
    assert described["task_ids"] == ["a", "b"]
    assert described["digest"] == suite.digest
    assert [task.task_id for task in suite.sampled_tasks] == ["a"]
