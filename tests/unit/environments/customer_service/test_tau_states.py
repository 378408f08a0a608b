"""tau-bench's public tasks: final states as its own tools leave them."""

from pathlib import Path

import pytest

from espalier.config import Profile
from espalier.environments import check_golds, family_of
from espalier.records import ToolCall
from espalier_environments.customer_service.database import load_database
from espalier_environments.customer_service.domains import final_digest
from espalier_environments.customer_service.scoring import gold_actions, is_solved_by
from tests.golden_cases import golden_cases

ROOT = Path(__file__).resolve().parents[4]
TAU = ROOT.parent / "shared" / "data" / "tau_bench"
GOLDEN = {case["name"]: case["expected"] for case in golden_cases("tau_bench")}
SAME_STATE = {
    "heldout-59aac0a5b827": "it and the task after it change nothing",
    "heldout-283c08577121": "it and the task after it change nothing",
    "heldout-dee2c3a14c97": "it and the task after it change nothing",
    "heldout-ffb7ca8fbc64": "it and the task after it change nothing",
}
"""Tasks that the gold actions of the task after them solve, and why."""
OVERWRITTEN = {"heldout-6fe7b7752b12": "its user wants an address, and then the former one again"}
"""Tasks with an action that a later one undoes, and why."""
READING = ("get_", "find_", "list_", "search_", "calculate", "think", "transfer_")
pytestmark = pytest.mark.skipif(not TAU.is_dir(), reason=f"{TAU} is not here")


class Public:
    """A public set, with its database."""

    def __init__(self, name):
        self.domain, split = name.split("/")
        self.path = TAU / self.domain / f"tasks_{split}.json"
        self.family = family_of(
            Profile.model_validate(
                {"environment": {"name": "customer_service"}, "episode": {"max_turns": 30}}
            )
        )
        self.tasks = self.family.read_benchmark(self.path)
        self.database = load_database(TAU / self.domain / "data", self.domain)

    def is_solved_by(self, task, actions):
        return is_solved_by(task, actions, domain=self.domain, database=self.database)


@pytest.fixture(scope="module", params=sorted(GOLDEN))
def public(request):
    return Public(request.param)


def test_final_states_equal_those_of_upstreams_tools(public):
    found = [
        final_digest(public.domain, public.database, gold_actions(task), task)[:16]
        for task in public.tasks
    ]
    assert found == GOLDEN[f"{public.domain}/{public.path.stem[6:]}"]


def test_gold_conversations_are_right_and_those_of_others_wrong(public):
    with public.family.benchmark_environments(public.path, Path("unused")) as environments:
        found = check_golds(public.family, public.tasks, environments)
    assert found.accepted == len(public.tasks)
    assert [fault for fault in found.faults if fault.task_id not in SAME_STATE] == []


def test_a_dropped_or_altered_action_fails(public):
    for task, place, action in writing_actions(public):
        actions = gold_actions(task)
        for instead in ([], [changed(action)]):
            others = [*actions[:place], *instead, *actions[place + 1 :], told(task)]
            assert not public.is_solved_by(task, others), (task.task_id, action)


def test_a_message_that_was_not_sent_fails(public):
    for task in public.tasks:
        if task.arguments["outputs"]:
            assert not public.is_solved_by(task, gold_actions(task))


def told(task):
    """The message with what the user has to be told."""
    return ToolCall(name="respond", arguments={"content": " ".join(task.arguments["outputs"])})


def writing_actions(public):
    """Tasks that their gold actions solve, with the place of each action that writes."""
    for task in public.tasks:
        actions = gold_actions(task)
        assert public.is_solved_by(task, [*actions, told(task)])
        for place, action in enumerate(actions):
            if task.task_id not in OVERWRITTEN and not action.name.startswith(READING):
                before = final_digest(public.domain, public.database, actions[:place], task)
                after = final_digest(public.domain, public.database, actions[: place + 1], task)
                if before != after:  # the others are refused, upstream as well
                    yield task, place, action


def changed(action):
    """The action on another record, or with another text."""
    name, value = next(iter(action.arguments.items()))
    return ToolCall(name=action.name, arguments={**action.arguments, name: f"{value}0"})
