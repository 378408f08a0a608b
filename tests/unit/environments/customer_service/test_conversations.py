"""Episodes of the made shop, and of a small domain in tau-bench's format."""

import asyncio
import json
from pathlib import Path

import pytest

from espalier.config import Profile
from espalier.environments import PlainQuestion, family_of
from espalier.environments.episode import written_calls
from espalier.environments.funnel import Funnel
from espalier.environments.teaching import play_script
from espalier.records import DataError, Draft, FinalAnswer, ToolCall, ToolCalls
from espalier.records.trajectory import FinishReason, Trajectory
from tests.unit.environments.customer_service.tables import RETAIL

NOWHERE = Path("no-knowledge")
KINDS = {"cancel", "return", "payment", "address", "exchange", "price", "refusal"}
ACTION = {
    "name": "cancel_pending_order",
    "kwargs": {"order_id": "#W1", "reason": "no longer needed"},
}
TAU = {
    "user_id": "ada_1",
    "instruction": "You are Ada Berg. Cancel #W1, which you do not need, and ask what it cost.",
    "actions": [ACTION],
    "outputs": ["1020.1"],
}


def service(**environment):
    settings = {"name": "customer_service", "user": {"kind": "scripted", "reminders": 0}}
    profile = {"environment": settings | environment, "episode": {"max_turns": 8}}
    return family_of(Profile.model_validate(profile))


def write_domain(tmp_path, task=TAU):
    """A folder in tau-bench's format."""
    folder = tmp_path / "retail"
    (folder / "data").mkdir(parents=True)
    for table, records in RETAIL.items():
        (folder / "data" / f"{table}.json").write_text(json.dumps(records))
    (folder / "wiki.md").write_text("# Policy\n\nBe kind.\n")
    for split in ("train", "dev", "test"):
        (folder / f"tasks_{split}.json").write_text(json.dumps([task]))
    return folder / "tasks_test.json"


CANCEL = ToolCalls((ToolCall(name=ACTION["name"], arguments=ACTION["kwargs"]),))
SAID = FinalAnswer("It cost 1,020.1 dollars.")
ASKED = FinalAnswer("1020.1, is that so?")
TRANSFER = ToolCalls.one("transfer_to_human_agents", {"summary": "all done"})


@pytest.mark.parametrize(
    ("actions", "score", "reason"),
    [
        ([CANCEL, SAID], 1, FinishReason.ANSWERED),
        ([CANCEL, FinalAnswer("It is done.")], 0, FinishReason.ANSWERED),
        ([SAID], 0, FinishReason.ANSWERED),
        ([ASKED, CANCEL, TRANSFER], 1, FinishReason.ANSWERED),
        ([CANCEL, *[ASKED] * 8], 0, FinishReason.MAX_TURNS),
    ],
)
def test_state_and_message_together_are_rewarded(tmp_path, actions, score, reason):
    path = write_domain(tmp_path)
    family = service()
    (task,) = family.read_benchmark(path)
    with family.benchmark_environments(path, NOWHERE) as environments:
        played = asyncio.run(play_script(environments, task, (one for one in actions)))
    assert family.official_scores(task, played)["reward"] == score
    assert played.finish_reason is reason


def test_the_prompt_has_the_policy_and_not_the_gold_actions(tmp_path):
    (task,) = service().read_benchmark(write_domain(tmp_path))
    assert [message.role for message in task.prompt] == ["system", "user"]
    assert task.prompt[0].content == "# Policy\n\nBe kind."
    assert "cancel_pending_order" not in task.question


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({**TAU, "user_id": "bob"}, "row 1: .*'bob'"),
        ({**TAU, "actions": [{"name": "sell", "kwargs": {}}]}, "row 1: .*sell"),
        ({**TAU, "outputs": [1]}, "row 1: outputs.0"),
    ],
)
def test_a_faulty_task_is_named(tmp_path, task, said):
    with pytest.raises(DataError, match=said):
        service().read_benchmark(write_domain(tmp_path, task))


def test_a_domain_is_copied_and_dealt_by_its_files(tmp_path):
    folder = write_domain(tmp_path).parent
    family = service(database=str(folder))
    assert "environment.database/wiki.md" in family.settings.external_files()
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    family.ingest(Draft(artifact), tracker=None)
    questions = family.questions(artifact, Funnel(), tracker=None)
    assert [len(questions[split]) for split in ("train", "dev", "heldout")] == [1, 1, 1]
    (artifact / "domain" / "tasks_dev.json").unlink()
    with pytest.raises(DataError, match=r"tasks_dev\.json"):
        family.questions(artifact, Funnel(), tracker=None)
    with pytest.raises(DataError, match="retail"):
        service(database=str(folder), domain="airline").ingest(Draft(tmp_path), tracker=None)


def test_demonstrations_of_every_kind_of_request_are_right():
    family = service()
    tasks = family.tasks("train", 60)
    assert {task.extra["kind"] for task in tasks} == KINDS
    with family.teacher(NOWHERE, Funnel()) as demonstrate:
        for task in tasks:
            assert isinstance(demonstrate(PlainQuestion(task), ""), Trajectory), task.question


def test_a_user_is_in_one_split_and_seeds_repeat():
    asked = [service().tasks(split, 10_000) for split in ("train", "dev", "heldout")]
    users = [{task.extra["entities"][0] for task in tasks} for tasks in asked]
    assert all(users)
    assert sum(map(len, users)) == len(set.union(*users))
    assert service().tasks("train", 10_000) == asked[0]
    assert service(shop={"seed": 1}).tasks("train", 10_000) != asked[0]


def test_an_order_that_cannot_be_cancelled_stays_as_it_is():
    family = service(shop={"kinds": ["refusal"]})
    task = family.tasks("train", 1)[0]
    told = ToolCall(name="respond", arguments={"content": "it was delivered"})
    order = task.question.split("#")[1].split()[0]
    look = ToolCall(name="get_order_details", arguments={"order_id": f"#{order}"})
    assert family.verify(task, written_calls([look, told])) == 1
    assert family.verify(task, written_calls([told])) == 0, "no tool has shown it"
    assert family.verify(task, written_calls([look])) == 0, "the user was not told"
    changed = ToolCall(
        name="return_delivered_order_items",
        arguments={"order_id": f"#{order}", "item_ids": [], "payment_method_id": "gift_card_1"},
    )
    assert family.verify(task, written_calls([look, told, changed])) == 1, "it was refused"
    assert family.verify(task, "it was delivered") == 0, "no actions"
