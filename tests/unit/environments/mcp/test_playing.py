"""Tasks with the tools of MCP servers over HTTP, and servers that misbehave."""

import asyncio
import json
import time

import pytest
from pydantic import ValidationError

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.contract import EnvironmentLostError
from espalier.environments.teaching import play_script
from espalier.records import DataError, FinalAnswer, ToolCalls
from espalier.records.trajectory import FinishReason
from tests.factories.scripts import played
from tests.fakes.mcp_served import served_notes

ROWS = [
    {
        "question": f"Note that parcel {n} weighs {n} kg.",
        "checks": [{"tool": "list", "arguments": {}, "result": f"parcel {n}: {n} kg\n(image)"}],
        "actions": [{"tool": "add", "arguments": {"text": f"parcel {n}: {n} kg"}}],
    }
    for n in range(60)
] + [{"question": "What is noted?", "answer": "none"}]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture(scope="module", params=[True, False], ids=["events", "json"])
def notes(request):
    with served_notes(streams=request.param) as (url, sessions):
        yield url, sessions


def family(url, rows, *, server=None, **environment):
    section = {
        "name": "mcp", "tasks": rows, "servers": {"notes": {"url": url, **(server or {})}},
        "call_timeout_s": 2.0, **environment,
    }  # fmt: skip
    return family_of(Profile.model_validate({"environment": section, "episode": {"max_turns": 6}}))


def call(how):
    return ToolCalls.one("misbehave", {"how": how})


def test_tools_are_those_of_every_page_of_the_list(notes, rows):
    found = family(notes[0], rows)
    assert [spec.name for spec in found.specs] == ["add", "list", "misbehave"]
    assert found.specs[0].description == "To add."
    assert found.specs[0].text_argument == "text"


def test_demonstrations_pass_their_checks_in_sessions_of_their_own(notes, rows):
    url, sessions = notes
    sessions.clear()
    found = family(url, rows)
    tasks = [task for task in found.tasks("train", 8) if task.extra["actions"]]
    with found.environments(None) as over:

        async def all_of_them():
            scripts = (play_script(over("train"), one, found.demonstrate(one)) for one in tasks)
            return await asyncio.gather(*scripts)

        attempts = asyncio.run(all_of_them())
    assert [one.reward["outcome"] for one in attempts] == [1.0] * len(tasks)
    assert not sessions, "each episode ends its session"


def test_an_episode_that_leaves_the_work_undone_earns_nothing(notes, rows):
    found = family(notes[0], rows)
    task = next(task for task in found.tasks("train", 8) if task.extra["actions"])
    assert played(found, task, FinalAnswer("done")).reward["outcome"] == 0.0
    calls = [ToolCalls.one("list", {})] * 6
    cut = played(found, task, *calls)
    assert (cut.finish_reason, cut.reward["outcome"]) == (FinishReason.MAX_TURNS, 0.0)


def test_an_answer_is_compared_with_the_gold_one(notes, rows):
    found = family(notes[0], rows)
    every = [task for split in ("train", "dev", "heldout") for task in found.tasks(split, 99)]
    task = next(task for task in every if task.verifier.kind == "exact_match")
    right = played(found, task, ToolCalls.one("list", {}), FinalAnswer("None"))
    assert (right.reward["outcome"], right.tool_results[0].content) == (1.0, "none\n(image)")
    assert played(found, task, FinalAnswer("all")).reward["outcome"] == 0.0


def test_what_a_call_causes_is_an_observation(notes, rows):
    found = family(notes[0], rows)
    task = found.tasks("train", 1)[0]
    read = played(
        found, task,
        ToolCalls.one("add", {"text": 5}), call("refuse"), call("long"),
        ToolCalls.one("add", {"text": float("inf")}), FinalAnswer("done"),
    )  # fmt: skip
    assert [(one.content[:36], one.succeeded) for one in read.tool_results] == [
        ("error: text is missing", False),
        ("error: not so", False),
        ("error: the result has more than 2621", False),
        ("error: not JSON: Out of range float ", False),
    ]


def test_a_server_that_hangs_costs_a_call_its_deadline(notes, rows):
    found = family(notes[0], rows, call_timeout_s=1.0)
    task = found.tasks("train", 1)[0]
    began = time.monotonic()
    read = played(found, task, call("late"), ToolCalls.one("list", {}), FinalAnswer("x"))
    assert [one.content for one in read.tool_results] == [
        "error: no answer in 1 s",
        "none\n(image)",
    ]
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("how", ["result_is_text", "content_is_text", "no_result", "error_is_text"])
def test_messages_of_another_kind_lose_the_episode(notes, rows, how):
    found = family(notes[0], rows)
    with pytest.raises(EnvironmentLostError, match="MCP"):
        played(found, found.tasks("train", 1)[0], call(how))


def test_a_server_may_say_other_things_before_its_answer(rows):
    with served_notes(streams=True) as (url, _):
        found = family(url, rows)
        read = played(found, found.tasks("train", 1)[0], call("chatter"), FinalAnswer("x"))
    assert read.tool_results[0].content == "all is well"


def test_a_key_is_sent_and_a_missing_one_named(rows, monkeypatch):
    with served_notes(streams=False, key="open") as (url, _):
        asked = family(url, rows, server={"key_variable": "NOTES_KEY"})
        with pytest.raises(DataError, match="NOTES_KEY"):
            _ = asked.specs
        monkeypatch.setenv("NOTES_KEY", "shut")
        with pytest.raises(DataError, match="401"):
            _ = asked.specs
        monkeypatch.setenv("NOTES_KEY", "open")
        assert len(asked.specs) == 3
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9/mcp"):
        _ = family("http://127.0.0.1:9/mcp", rows).specs


def test_tools_may_be_chosen_and_prefixed(notes, rows):
    url, _ = notes
    chosen = family(url, rows, server={"tools": ["list"], "prefix": "my_"})
    assert [spec.name for spec in chosen.specs] == ["my_list"]
    with pytest.raises(DataError, match=r"fly.*add, list"):
        _ = family(url, rows, server={"tools": ["fly"]}).specs
    twice = {"notes": {"url": url}, "more": {"url": url}}
    with pytest.raises(DataError, match=r"servers\.more\.prefix"):
        _ = family(url, rows, servers=twice).specs


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({}, "command or a url"),
        ({"command": ["x"], "url": "http://h/mcp"}, "command or a url"),
        ({"url": "ftp://h"}, "ftp"),
        ({"url": "http://me:secret@h/mcp"}, "user"),
        ({"url": "http://h/mcp", "variables": {"A": "b"}}, "variables"),
        ({"command": ["x"], "key_variable": "A"}, "key_variable"),
    ],
)
def test_a_faulty_section_is_refused_as_it_is_read(server, message):
    with pytest.raises(ValueError, match=message):
        Profile.model_validate({"environment": {"name": "mcp", "servers": {"notes": server}}})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "x"}', "answer"),
        ('{"question": "", "answer": "x"}', "question"),
        ('{"question": "x", "answer": "y", "check": []}', "check"),
        ('{"question": "x", "answer": "y"}\n{"question": "x", "answer": "z"}', "line 2"),
    ],
)
def test_a_line_that_is_no_task_is_named(tmp_path, line, message):
    path = tmp_path / "tasks.jsonl"
    path.write_text(line)
    with pytest.raises(DataError, match=message):
        family("http://127.0.0.1:9", path).tasks("train", 1)


def test_splits_share_no_question(rows):
    found = family("http://127.0.0.1:9", rows)
    questions = [{t.question for t in found.tasks(s, 99)} for s in ("train", "dev", "heldout")]
    assert sum(map(len, questions)) == len(set.union(*questions)) == len(ROWS)


@pytest.mark.parametrize("key", ["call_timeout_s", "start_timeout_s"])
def test_a_sandbox_waits_for_a_server_under_a_minute(key):
    def read(server):
        section = {"name": "mcp", key: 56.0, "servers": {"notes": server}}
        Profile.model_validate({"environment": section})

    read({"url": "http://127.0.0.1:9"})
    with pytest.raises(ValidationError, match=f"{key}=56.* 55"):
        read({"command": ["notes"]})
