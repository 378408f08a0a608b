"""Tasks that evolve from failed instructions."""

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.proposals import ProposalRequest
from tests.unit.environments.web.playing import NOWHERE, SMALL, outcome, plan

SECTION = {"name": "web", "sites": 2, "site": SMALL}


def evolving():
    return family_of(
        Profile.model_validate({"environment": SECTION, "self_play": {"name": "webrl"}})
    )


def proposed(family, failed, num_tasks=30, seed="a"):
    known = family.tasks("train", 1000)
    order = ProposalRequest(num_tasks=num_tasks, failed=failed, known=known, seed=seed)
    return family.proposer(NOWHERE, NOWHERE).propose(order), known


def test_failed_instructions_are_varied_in_breadth():
    family = evolving()
    failed = [one for one in family.tasks("train", 1000) if one.extra["kind"] == "assign"][:5]
    found, known = proposed(family, failed)
    assert len(found.tasks) == 30
    assert not {one.task_id for one in found.tasks} & {one.task_id for one in known}
    assert {one.metadata.split for one in found.tasks} == {"train"}
    assert {one.extra["kind"] for one in found.tasks} == {"assign"}  # its own sites are known
    assert min(one.arguments["site"] for one in found.tasks) >= 2
    assert found.refused["known"] > 0


def test_evolved_tasks_are_solved_by_the_teacher():
    family = evolving()
    found, _ = proposed(family, family.tasks("train", 40), num_tasks=12)
    assert all(outcome(family, task, *plan(family, task)) == 1 for task in found.tasks)


def test_equal_seeds_propose_equal_tasks():
    family = evolving()
    failed = family.tasks("train", 5)
    first, second, other = (proposed(family, failed, seed=seed)[0] for seed in "aab")
    assert first == second != other
    assert not proposed(family, [])[0].tasks, "nothing failed"
