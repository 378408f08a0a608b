import random
from dataclasses import replace

import pytest

from espalier.config import Profile
from espalier.planning.sharing import (
    Sharing,
    forwards_trees,
    positions_per_token,
    preamble_tokens,
    sharing_behind_prompts,
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


def groups_with_prompts(size, *, num_groups=4, preamble=0):
    """Prompts of 20 tokens behind the preamble, and 10 more that differ from the first on."""
    rng = random.Random(0)
    for number in range(num_groups):
        prompt = (*range(900, 900 + preamble), number, *rng.choices(range(800), k=19))
        for place in range(size):
            yield made_of(str(number), (*prompt, 100 + place, *rng.choices(range(50), k=9)))


def nodes(rows):
    sequences = [
        TrainingSequence(token_ids=one.token_ids, loss_mask=one.action_mask, window_starts=(0,))
        for one in rows
    ]
    return prefix_tree_of(sequences).num_tokens


@pytest.mark.parametrize("preamble", [0, 10])
def test_positions_are_the_nodes_of_the_training_tree(preamble):
    rows = list(groups_with_prompts(8, preamble=preamble))
    length = preamble + 30
    sharing = Sharing(preamble / length, 20 / 30)
    asked = profile(training={"group_size": 8, "minibatches": 1})
    tokens = 8 * 4 * length
    assert positions_per_token(asked, sharing) == pytest.approx((nodes(rows) - preamble) / tokens)


def test_minibatches_part_what_groups_have_in_common():
    rng = random.Random(0)
    rows = list(groups_with_prompts(2, num_groups=1000))
    asked = profile(curriculum={"enabled": False}, training={"group_size": 2, "minibatches": 2})
    rng.shuffle(rows)
    halves = nodes(rows[:1000]) + nodes(rows[1000:])
    expected = positions_per_token(asked, Sharing(0.0, 20 / 30))
    assert halves / (2000 * 30) == pytest.approx(expected, rel=0.02)


def test_prompts_and_preambles_are_what_trajectories_share():
    one = trajectory(1, "Lyon", "Paris")
    prompt = one.turns[0].action_start
    found = sharing_behind_prompts([one], 2.0 * prompt)
    assert found == pytest.approx((0.0, 0.5 + 0.7 * 0.5))
    assert sharing_behind_prompts([], 10.0) is None
    assert sharing_behind_prompts([made_of("a", ())], 0.0) is None
    one, other = (replace(one, token_ids=(7, 8, n, 2), group_id=str(n)) for n in (1, 3))
    assert [preamble_tokens(rows) for rows in ([one, other], [one], [])] == [2, 0, 0]


def test_only_one_process_with_the_embedded_policy_shares_prompts():
    for asked, expected in (
        (profile(), True),
        (profile(training={"layout": "packed"}), False),
        (profile(training={"processes": 2}), False),
        (profile(policy={"model": "/models/any"}), False),
    ):
        assert forwards_trees(asked) is expected
        assert (positions_per_token(asked, Sharing(0.0, 0.8)) < 1) is expected
