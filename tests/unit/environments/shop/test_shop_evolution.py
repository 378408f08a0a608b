"""Goals that evolve from failed ones."""

import pytest

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.proposals import ProposalRequest
from espalier_environments.shop.goals import goal_of, gold_purchase
from espalier_environments.shop.made_catalogue import make_products, split_of
from tests.unit.environments.shop.shops import (
    ATTRIBUTES,
    NOWHERE,
    PRODUCTS,
    public_tasks,
    write_shop,
)


def evolving(self_play=None, splits=None, **environment):
    sections = {
        "environment": {"name": "shop", "page_size": 3, **environment},
        "self_play": {"name": "webrl", **(self_play or {})},
        "splits": splits or {},
    }
    return family_of(Profile.model_validate(sections))


@pytest.fixture(scope="module")
def family():
    return evolving()


@pytest.fixture(scope="module")
def known(family):
    return family.tasks("train", 300)


def proposed(family, failed, known, num_tasks=40, seed="a", knowledge=NOWHERE):
    order = ProposalRequest(num_tasks=num_tasks, failed=failed, known=known, seed=seed)
    return family.proposer(knowledge, NOWHERE).propose(order)


def wishes(task):
    goal = goal_of(task)
    return len(goal.attributes), len(goal.options)


def test_failed_goals_are_asked_of_other_training_products(family, known):
    failed = [one for one in known if one.extra["kind"] == "2 options and a hidden attribute"][:4]
    found = proposed(family, failed, known).tasks
    assert len(found) == 40
    assert not {one.task_id for one in found} & {one.task_id for one in known}
    assert {one.metadata.split for one in found} == {"train"}
    catalogue = {one.asin: one for one in make_products(family.settings.made)}
    bought = [catalogue[gold_purchase(one)[0]] for one in found]
    assert {split_of(one, family.profile.splits) for one in bought} == {"train"}
    meant = {gold_purchase(one)[0] for one in failed}
    others = [task for task in found if gold_purchase(task)[0] not in meant]
    assert len(others) > 20
    assert {wishes(one) for one in others} == {(3, 2)}


def test_equal_seeds_propose_equal_goals_that_can_be_met(family, known):
    first, second, other = (proposed(family, known[:30], known, seed=seed) for seed in "aab")
    assert first == second != other
    assert all(family.verify(task, task.verifier.gold[0]) == 1 for task in first.tasks)
    assert not proposed(family, [], known).tasks, "nothing failed"


def test_a_users_catalogue_has_new_goals_for_products_of_training(tmp_path):
    folder = write_shop(tmp_path / "catalogue", PRODUCTS, ATTRIBUTES)
    splits = {"heldout_share": 0.6, "dev_share": 0.05}  # the shirt is of training, the lamp of dev
    family = evolving(splits=splits, catalogue=folder)
    asked = public_tasks(family, folder)
    failed = [*asked["train"], *asked["dev"]]
    assert {gold_purchase(task)[0] for task in failed} == {"b0aaaaaaa1", "b0aaaaaaa2"}
    found = proposed(family, failed, failed, knowledge=tmp_path)
    assert {gold_purchase(task)[0] for task in found.tasks} == {"b0aaaaaaa1"}
    assert found.refused["no_variation"] > 0
    assert all(family.verify(task, task.verifier.gold[0]) == 1 for task in found.tasks)


@pytest.mark.parametrize("play", [{"proposer": "teacher"}, {"name": "r_zero"}])
def test_another_way_of_self_play_is_refused(play):
    with pytest.raises(ValueError, match=r"rule|r_zero"):
        evolving(play)
