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


def test_a_tree_forwards_common_beginnings_once():
    training = {"tasks_per_step": 4, "group_size": 8, "minibatches": 2}
    shared, whole = (
        work_of(one, figures(one, **LENGTHS))["train"]
        for one in (
            profile(training=training),
            profile(training={**training, "layout": "packed"}),
        )
    )
    share = 1 - 0.8 * AMONG
    assert shared.micro_batch_tokens == pytest.approx(share * whole.micro_batch_tokens)
    assert shared.trained_positions == pytest.approx(share * whole.trained_positions)
    assert shared.trained_tokens == whole.trained_tokens == whole.trained_positions


def test_groups_left_out_are_sampled_alone():
    filters = [{"name": "zero_variance"}]
    asked = profile(
        curriculum={"enabled": False},
        training={"group_size": 8, "minibatches": 1, "algorithm": {"filters": filters}},
    )
    assert 0 < figures(asked).learned_share < 1
    whole, half = (
        work_of(asked, figures(asked, **LENGTHS, learned_share=share))["train"]
        for share in (1.0, 0.5)
    )
    assert half.trained_tokens == whole.trained_tokens / 2
    assert half.rollout_tokens == whole.rollout_tokens
    screened = profile(training={"group_size": 8, "algorithm": {"filters": filters}})
    assert figures(screened).learned_share == 1


def test_a_tree_has_at_most_four_tokens_for_each_position():
    asked = profile(
        training={"tasks_per_step": 64, "group_size": 64, "minibatches": 1},
        hardware={"micro_batch_tokens": 512},
    )
    work = work_of(asked, figures(asked, **{**LENGTHS, "common_share": 1.0}))["train"]
    assert work.tokens_per_position == pytest.approx(64)
    assert work.micro_batch_tokens == pytest.approx(4 * 512 / 64)


def test_a_micro_batch_is_no_longer_than_the_profile_allows():
    asked = profile(hardware={"micro_batch_tokens": 512})
    work = work_of(asked, figures(asked, **LENGTHS))
    assert work["train"].micro_batch_tokens == 512
    assert work["prepare_policy"].micro_batch_tokens == 512


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


def test_what_is_switched_off_is_no_work():
    asked = profile(curriculum={"enabled": False}, training={"steps": 0})
    work = work_of(asked, figures(asked))
    for stage in ("filter_curriculum", "train", "continue_pretraining"):
        assert work[stage].trained_tokens == work[stage].judged_tokens == 0


def test_hindsight_adds_attempts_and_steps():
    plain = profile()
    again = profile(warm_start={"hindsight": {"tasks": 100, "attempts": 3, "steps": 50}})
    lengths = figures(plain, **LENGTHS)
    before, after = (work_of(one, lengths)["warm_start"] for one in (plain, again))
    assert after.rollout_tokens == 300 * 20
    assert after.trained_tokens - before.trained_tokens == 50 * 16 * 50


def test_three_policies_answer_greedily_by_samples_and_from_memory():
    def judged_tokens(environment, **evaluation):
        asked = profile(
            environment={"name": environment},
            synthesis={"heldout_tasks": 100},
            evaluation={"sampled_questions": 500, "samples_per_task": 4, **evaluation},
        )
        return work_of(asked, figures(asked, **LENGTHS))["evaluate"].judged_tokens

    assert judged_tokens("search_qa") == 3 * ((100 + 400) * 20 + 100 * 10)
    assert judged_tokens("search_qa", closed_book_questions=30) == 3 * ((100 + 400) * 20 + 30 * 10)
    assert judged_tokens("python_math") == 3 * (100 + 400) * 20, "nothing is looked up"
