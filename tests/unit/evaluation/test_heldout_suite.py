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


@pytest.mark.parametrize(
    "sections",
    [
        {"evaluation": EvaluationConfig(bootstrap_resamples=100, confidence=0.9), "seed": 5},
        {"evaluation": EvaluationConfig(kept_trajectories=1, max_lost_share=0.5)},
        {"rollout": RolloutConfig(max_replays=9, tool_timeout_s=1.0)},
    ],
)
def test_what_changes_no_answer_keeps_the_digest(sections):
    assert digest(**sections) == digest()
