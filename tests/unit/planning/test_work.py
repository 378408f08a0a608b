import pytest

from espalier.config import Profile
from espalier.planning.figures import Figures, assumed
from espalier.planning.work import passes, work_of


def figures(profile, **measured):
    return Figures(**{**assumed(profile), **measured})


def profile(**sections):
    return Profile.model_validate(sections)


LENGTHS = {
    "demonstration_tokens": 50.0,
    "episode_tokens": 60.0,
    "action_tokens": 20.0,
    "rollouts_per_place": 1.5,
    "common_share": 0.8,
}
AMONG = 1 - 2 * (1 - 0.5**8) / 8
"""Of 8 trajectories about 4 are in a minibatch: 3 of 4 times it has forwarded what is common."""


def test_training_counts_sampled_and_learned_tokens():
    asked = profile(
        training={
            "steps": 10, "tasks_per_step": 4, "group_size": 8, "minibatches": 2, "epochs": 2,
            "evaluate_every": 4, "dev_questions": 30,
        }
    )  # fmt: skip
    work = work_of(asked, figures(asked, **LENGTHS))["train"]
    assert work.rollout_tokens == 320 * 1.5 * 20
    assert work.trained_tokens == 320 * 2 * 60
    # before the first step, after 4, 8 and the last
    assert work.judged_tokens == 4 * 30 * 20
    assert work.micro_batch_tokens == pytest.approx((1 - 0.8 * AMONG) * 16 * 60)
    assert work.rows == 32


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"preset": "dapo"}, 1),
        ({"preset": "grpo"}, 4 / 3),  # the KL's reference
        ({"preset": "grpo", "proximal": "recomputed"}, 5 / 3),
        ({"preset": "ppo"}, 8 / 3),  # reference; the critic scores, and learns
    ],
)
def test_a_scoring_pass_is_a_third_of_an_update(algorithm, expected):
    asked = profile(training={"steps": 200, "algorithm": algorithm})
    assert passes(asked.training.algorithm) == pytest.approx(expected)


def test_limits_and_switches_of_the_profile_are_kept():
    asked = profile(
        curriculum={"enabled": False}, training={"steps": 0}, hardware={"micro_batch_tokens": 512}
    )
    work = work_of(asked, figures(asked))
    for stage in ("filter_curriculum", "train", "continue_pretraining"):
        assert work[stage].trained_tokens == work[stage].judged_tokens == 0
    assert work["prepare_policy"].micro_batch_tokens == 512
    again = profile(warm_start={"hindsight": {"tasks": 100, "attempts": 3, "steps": 50}})
    lengths = figures(profile(), **LENGTHS)
    before, after = (work_of(one, lengths)["warm_start"] for one in (profile(), again))
    assert after.rollout_tokens == 300 * 20
    assert after.trained_tokens - before.trained_tokens == 50 * 16 * 50
