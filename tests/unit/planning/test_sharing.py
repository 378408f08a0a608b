import random
from dataclasses import replace

import pytest

from espalier.config import Profile
from espalier.planning.sharing import (
    common_share_behind_prompts,
    common_share_of_groups,
    common_share_of_run,
    forwards_trees,
    positions_per_token,
)
from espalier.training.packing import TrainingSequence
from espalier.training.prefix_tree import prefix_tree_of
from tests.factories.sample_run import trajectory


def profile(**sections):
    return Profile.model_validate(sections)


def made_of(group, token_ids):
    mask, logprobs = (1,) * len(token_ids), (0.0,) * len(token_ids)
    made = replace(trajectory(1, "Lyon", "Paris"), group_id=group)
    return replace(made, token_ids=token_ids, action_mask=mask, behavior_logprobs=logprobs)


def groups_with_prompts(size, *, num_groups=4):
    """Prompts of 20 tokens, and 10 more that differ from the first on."""
    rng = random.Random(0)
    for number in range(num_groups):
        prompt = (number, *rng.choices(range(50), k=19))
        for place in range(size):
            yield made_of(str(number), (*prompt, 100 + place, *rng.choices(range(50), k=9)))


def test_positions_are_the_nodes_of_the_training_tree():
    rows = list(groups_with_prompts(8))
    tree = prefix_tree_of(
        [
            TrainingSequence(token_ids=one.token_ids, loss_mask=one.action_mask, window_starts=(0,))
            for one in rows
        ]
    )
    common = common_share_of_groups(rows)
    assert common == pytest.approx(20 / 30)
    asked = profile(training={"group_size": 8, "minibatches": 1})
    assert positions_per_token(asked, common) == pytest.approx(tree.num_tokens / (8 * 4 * 30))


def test_what_a_run_forwarded_says_what_was_common():
    asked = profile(training={"group_size": 8, "minibatches": 2})
    share = positions_per_token(asked, 0.6)
    found = common_share_of_run(asked, tokens=1000, positions=share * 1000)
    assert found == pytest.approx(0.6)
    packed = profile(training={"layout": "packed"})
    assert common_share_of_run(packed, tokens=1000, positions=1000) is None
    assert common_share_of_run(asked, tokens=0, positions=0) is None


def test_groups_that_lost_a_trajectory_do_not_count():
    rows = [*groups_with_prompts(8), made_of("lone", (1, 2, 3))]
    assert common_share_of_groups(rows) == pytest.approx(20 / 30)
    assert common_share_of_groups(rows[-1:]) is None
    assert common_share_of_groups([]) is None


def test_prompts_say_what_a_policy_that_acts_will_share():
    rows = [trajectory(1, "Lyon", "Paris")]
    prompt = rows[0].turns[0].action_start
    assert common_share_behind_prompts(rows, 2.0 * prompt) == pytest.approx(0.5 + 0.7 * 0.5)
    assert common_share_behind_prompts([], 10.0) is None
    assert common_share_behind_prompts([made_of("a", ())], 0.0) is None


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, True),
        ({"training": {"layout": "packed"}}, False),
        ({"training": {"processes": 2}}, False),
        ({"policy": {"model": "/models/any"}}, False),
    ],
)
def test_only_one_process_with_the_embedded_policy_shares_prompts(sections, expected):
    asked = profile(**sections)
    assert forwards_trees(asked) is expected
    assert (positions_per_token(asked, 0.8) < 1) is expected
