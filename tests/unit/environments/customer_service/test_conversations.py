"""Episodes of the made shop, and of a small domain in tau-bench's format."""

import asyncio
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from espalier.config import Profile
from espalier.environments import PlainQuestion, family_of
from espalier.environments.episode import written_calls
from espalier.environments.funnel import Funnel
from espalier.environments.teaching import play_script
from espalier.evaluation import pass_hat_k
from espalier.records import DataError, Draft, FinalAnswer, ToolCall, ToolCalls
from espalier.records.trajectory import FinishReason, Trajectory
from espalier_environments.customer_service.wording import in_words
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
    return family_of(
        Profile.model_validate(
            {"environment": {**settings, **environment}, "episode": {"max_turns": 8}}
        )
    )


def write_domain(folder, task=TAU, **files):
    """A folder in tau-bench's format."""
    (folder / "data").mkdir(parents=True)
    for table, records in RETAIL.items():
        (folder / "data" / f"{table}.json").write_text(json.dumps(records))
    (folder / "wiki.md").write_text("# Policy\n\nBe kind.\n")
    for split in ("train", "dev", "test"):
        (folder / f"tasks_{split}.json").write_text(json.dumps([task]))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content)
    return folder / "tasks_test.json"


def attempt(path, *actions):
    """The scored attempt of these actions at the domain's task."""
    family = service()
    (task,) = family.read_benchmark(path)
    with family.benchmark_environments(path, NOWHERE) as environments:
        played = asyncio.run(play_script(environments, task, (one for one in actions)))
    return family.official_scores(task, played)["reward"], played


CANCEL = ToolCalls((ToolCall(name=ACTION["name"], arguments=ACTION["kwargs"]),))


def test_state_and_message_together_are_rewarded(tmp_path):
    path = write_domain(tmp_path / "retail")
    assert attempt(path, CANCEL, FinalAnswer("It cost 1,020.1 dollars."))[0] == 1
    assert attempt(path, CANCEL, FinalAnswer("It is done."))[0] == 0
    assert attempt(path, FinalAnswer("It cost 1,020.1 dollars."))[0] == 0


def test_a_transfer_ends_the_conversation_and_is_scored(tmp_path):
    path = write_domain(tmp_path / "retail")
    transfer = ToolCalls.one("transfer_to_human_agents", {"summary": "all done"})
    score, played = attempt(path, FinalAnswer("1020.1, is that so?"), CANCEL, transfer)
    assert (score, played.finish_reason) == (1, FinishReason.ANSWERED)


def test_a_conversation_that_is_cut_off_has_no_reward(tmp_path):
    path = write_domain(tmp_path / "retail")
    asking = [FinalAnswer("1020.1, is that so?")] * 8
    score, played = attempt(path, CANCEL, *asking)
    assert (score, played.finish_reason) == (0, FinishReason.MAX_TURNS)


def test_the_prompt_has_the_policy_and_not_the_gold_actions(tmp_path):
    (task,) = service().read_benchmark(write_domain(tmp_path / "retail"))
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
        service().read_benchmark(write_domain(tmp_path / "retail", task))


def test_a_domain_is_copied_and_dealt_by_its_files(tmp_path):
    folder = write_domain(tmp_path / "retail").parent
    family = service(database=str(folder))
    assert "environment.database/wiki.md" in family.settings.external_files()
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    family.ingest(Draft(artifact), tracker=None)
    questions = family.questions(artifact, Funnel(), tracker=None)
    assert {split: len(found) for split, found in questions.items()} == {
        "train": 1, "dev": 1, "heldout": 1,
    }  # fmt: skip
    (folder / "tasks_dev.json").unlink()
    (artifact / "domain" / "tasks_dev.json").unlink()
    with pytest.raises(DataError, match=r"tasks_dev\.json"):
        family.questions(artifact, Funnel(), tracker=None)


def test_the_other_domain_is_refused(tmp_path):
    folder = write_domain(tmp_path / "retail").parent
    with pytest.raises(DataError, match="retail"):
        service(database=str(folder), domain="airline").ingest(Draft(tmp_path), tracker=None)
    with pytest.raises(ValidationError, match=r"environment\.database"):
        service(domain="airline")


def test_demonstrations_of_every_kind_of_request_are_right():
    family = service()
    seen = set()
    with family.teacher(NOWHERE, Funnel()) as demonstrate:
        for task in family.tasks("train", 60):
            shown = demonstrate(PlainQuestion(task), "")
            assert isinstance(shown, Trajectory), (task.question, shown)
            seen.add(task.extra["kind"])
    assert seen == KINDS


def test_a_user_of_the_shop_is_in_one_split():
    family = service()
    users = [
        {task.extra["entities"][0] for task in family.tasks(split, 10_000)}
        for split in ("train", "dev", "heldout")
    ]
    assert all(users)
    assert sum(map(len, users)) == len(set.union(*users))


def test_equal_seeds_make_equal_shops():
    first, again = service().tasks("train", 50), service().tasks("train", 50)
    other = service(shop={"seed": 1}).tasks("train", 50)
    assert first == again
    assert first != other


def test_an_order_that_cannot_be_cancelled_stays_as_it_is():
    family = service(shop={"kinds": ["refusal"]})
    task = family.tasks("train", 1)[0]
    told = ToolCall(name="respond", arguments={"content": "it was delivered"})
    assert family.verify(task, written_calls([told])) == 1
    order = task.question.split("#")[1].split()[0]
    changed = ToolCall(
        name="return_delivered_order_items",
        arguments={"order_id": f"#{order}", "item_ids": [], "payment_method_id": "gift_card_1"},
    )
    assert family.verify(task, written_calls([told, changed])) == 1, "it was refused"
    assert family.verify(task, "it was delivered") == 0, "no actions"


def test_results_in_words_have_no_punctuation():
    assert in_words('{"a": {"b": [{"c": 1}, true], "d": ""}, "e": []}') == "a b c 1 yes"
    assert in_words("ada_1") == "ada_1"


def test_four_attempts_are_quoted_as_pass_hat_k():
    rewards = [[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    found = [sum(pass_hat_k(4, sum(of), k) for of in rewards) / 3 for k in (1, 2, 4)]
    assert found == pytest.approx([7 / 12, 0.5, 1 / 3])
