"""Readers of public formats: what a row becomes, and the error that names a faulty one."""

import asyncio
import copy
import json

import pytest

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.teaching import play_script
from espalier.records import DataError, FinalAnswer, ToolCall, ToolCalls
from espalier.records.trajectory import FinishReason
from espalier_environments.function_calling.bfcl_rows import parsed_call
from espalier_environments.function_calling.functions import offered
from tests.unit.environments.function_calling.rows import CALLS, FILES, RATE

SIMPLE = "BFCL_v4_simple_python.json"
TALK = "BFCL_v4_multi_turn_base.json"


@pytest.fixture
def family():
    return family_of(Profile.model_validate({"environment": {"name": "function_calling"}}))


@pytest.fixture
def folder(tmp_path):
    for name, row in FILES.items():
        write(tmp_path, name, row)
    return tmp_path


def write(folder, name, row):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(row))
    return path


def test_a_function_is_offered_under_a_plain_name(family, folder):
    twice = offered([RATE, {**RATE, "name": "bank rate"}])
    assert [spec.name for spec in twice.specs] == ["bank_rate", "bank_rate_2"]
    first = twice.specs[0].parameters
    assert first["type"] == "object"
    assert first["properties"]["of"]["properties"] == {"bank": {"type": "string"}}
    assert twice.written([ToolCall(name="bank_rate_2")])[0].name == "bank rate"
    tasks = {task.extra["kind"]: task for task in family.read_benchmark(folder)}
    assert tasks.keys() == {"irrelevance", "multi_turn_base", "simple_python"}
    task = tasks["simple_python"]
    assert [message.role for message in task.prompt] == ["system", "user"]
    assert family.verify(task, json.dumps(CALLS[0])) == 1
    assert family.verify(task, json.dumps([{"name": "bank_rate", "arguments": {}}])) == 0


@pytest.mark.parametrize("name", ["level-1-api_processed.json", "rlla_sft.json"])
def test_functions_are_read_from_a_system_text(family, folder, name):
    (task,) = family.read_benchmark(folder / name)
    rate, pay = family.specs_of(task)
    assert (rate.name, rate.description) == ("Get_Rate", "The rate.\n2. of a currency")
    assert rate.parameters["properties"] == {"code": {"description": "Its code.", "type": "string"}}
    assert (pay.name, pay.description) == ("Pay", "Pay somebody.")
    assert pay.parameters["properties"]["to"]["type"] == "array"
    assert family.verify(task, json.dumps(CALLS[1])) == 1
    twice = json.dumps(CALLS[1] * 2)
    assert family.verify(task, twice) == (1 if "level" in name else 0)


def test_a_conversation_goes_on_turn_by_turn(family, folder):
    (task,) = family.read_benchmark(folder / TALK)
    create = ToolCalls.one("create_ticket", {"title": "Lamp", "priority": 2})
    done = FinalAnswer("done")

    def attempt(*actions):
        with family.benchmark_environments(folder, folder) as environments:
            return asyncio.run(play_script(environments, task, (action for action in actions)))

    right = attempt(create, done, done)
    assert (right.is_right, right.finish_reason) == (True, FinishReason.ANSWERED)
    assert [m.content for m in right.messages if m.role == "user"] == ["One.", "Two."]
    assert '"id": 5' in right.tool_results[0].content
    again = attempt(create, done, done)  # services are fresh in each episode
    assert again.tool_results[0].content == right.tool_results[0].content
    assert not attempt(done, create, done).is_right, "a turn late"
    assert not attempt(create, create, done, done).is_right
    refused = attempt(ToolCalls.one("create_ticket", {"priority": "x"}), done, done)
    assert (refused.tool_results[0].succeeded, refused.is_right) == (False, False)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (SIMPLE, {"id": "z"}, "id z"),
        (SIMPLE, {"function": [{**RATE, "parameters": {}}]}, "function.0.parameters"),
        (f"possible_answer/{SIMPLE}", {"ground_truth": [{"x": {}}]}, "x is"),
        (TALK, {"involved_classes": ["Bank"]}, "Bank"),
        (TALK, {"initial_config": {"TicketAPI": {"ticket_queue": 1}}}, "ticket_queue"),
        (f"possible_answer/{TALK}", {"ground_truth": []}, "0 turns"),
        ("level-1-api_processed.json", {"system": "none"}, "functions"),
        ("rlla_sft.json", {"output": "<tool_call>\nx\n</tool_call>"}, "malformed call"),
    ],
)
def test_a_faulty_row_is_named(family, folder, name, change, said):
    write(folder, name, {**copy.deepcopy(FILES[name]), **change})
    with pytest.raises(DataError, match=said) as raised:
        family.read_benchmark(folder / name.removeprefix("possible_answer/"))
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["cd(", "cd", "cd(folder=open('x'))", "a.cd('x')", "cd('a', 'b')", "ls(**{})", "(" * 500],
)
def test_a_gold_call_is_read_and_never_evaluated(text):
    with pytest.raises(ValueError, match=r"call|tool|argument"):
        parsed_call(text, ["GorillaFileSystem"])
    call = parsed_call("mv('a.txt', destination='b')", ["GorillaFileSystem"])
    assert call.arguments == {"source": "a.txt", "destination": "b"}
