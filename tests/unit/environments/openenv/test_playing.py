"""Tasks on an OpenEnv server: read by seed, played over its protocol, and its faults named."""

import asyncio
import json
import threading
from contextlib import contextmanager

import pytest
from websockets.asyncio.server import serve

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.contract import EnvironmentLostError
from espalier.records import DataError, FinalAnswer, ToolCalls
from espalier.records.trajectory import FinishReason
from espalier_interop.openenv.remote_tools import listed_tools, read_prompt, schema_tool
from tests.factories.scripts import played
from tests.fakes.openenv_served import served_shop

SIZES = {"train_tasks": 6, "dev_tasks": 3, "heldout_tasks": 5, "trajectories": 2}


def family(url, **environment):
    profile = {
        "environment": {
            "name": "openenv", "rewards": (0, 1.1), **({"url": url} if url else {}), **environment,
        },
        "synthesis": SIZES,
        "curriculum": {"candidates": 4},
        "training": {"dev_questions": 3},
        "warm_start": {"dev_questions": 3},
        "evaluation": {"sampled_questions": 1},
        "episode": {"max_turns": 4},
    }  # fmt: skip
    return family_of(Profile.model_validate(profile))


@pytest.fixture(scope="module")
def shop():
    with served_shop() as (url, _):
        yield url


def test_seeds_are_tasks_and_no_prompt_has_two_splits(shop):
    found = family(shop)
    tasks = {split: found.tasks(split, 100) for split in ("train", "dev", "heldout")}
    assert {split: len(of) for split, of in tasks.items()} == {"train": 6, "dev": 3, "heldout": 5}
    prompts = [task.prompt for of in tasks.values() for task in of]
    assert len(set(prompts)) == len(prompts)
    assert tasks["train"][0].question == "What does thing1 cost in crowns?"
    assert tasks["train"] == family(shop).tasks("train", 100)


def test_an_episode_is_rewarded_as_the_server_says(shop):
    found = family(shop)
    task = found.tasks("train", 3)[2]
    look = ToolCalls.one("price", {"item": "thing3"})
    right = played(found, task, look, ToolCalls.one("fly", {}), FinalAnswer("21"))
    assert right.reward == {"outcome": pytest.approx(1.1), "format": 0.1}
    assert right.tool_results[0].content == "3"
    assert played(found, task, FinalAnswer("22")).reward["outcome"] == pytest.approx(0.1)
    cut = played(found, task, *[look] * 4)
    assert (cut.finish_reason, cut.reward["outcome"]) == (FinishReason.MAX_TURNS, 0.0)


def test_demonstrations_are_read_by_seed(shop, tmp_path):
    path = tmp_path / "shown.jsonl"
    actions = [{"tool": "price", "arguments": {"item": "thing1"}}, {"answer": "7"}]
    path.write_text(json.dumps({"seed": 0, "actions": actions}) + "\n")
    found = family(shop, demonstrations=path)
    script = list(found.demonstrate(found.tasks("train", 1)[0]))
    assert script == [ToolCalls.one("price", {"item": "thing1"}), FinalAnswer("7")]
    found = family(shop)
    with pytest.raises(DataError, match=r"environment\.demonstrations"):
        list(found.demonstrate(found.tasks("train", 1)[0]))


@pytest.mark.parametrize("line", ["{", '{"seed": 0}', '{"seed": 0, "actions": [{"tol": "x"}]}'])
def test_a_line_that_is_no_demonstration_is_named(shop, tmp_path, line):
    path = tmp_path / "shown.jsonl"
    path.write_text(line + "\n")
    found = family(shop, demonstrations=path)
    with pytest.raises(DataError, match=r"shown\.jsonl, line 1"):
        list(found.demonstrate(found.tasks("train", 1)[0]))


def test_a_server_that_is_away_is_named():
    with pytest.raises(EnvironmentLostError, match="127"):
        family("http://127.0.0.1:9", timeout_s=1).tasks("train", 1)


# --------------------------------------------------------------------- servers of another kind


@contextmanager
def scripted(reply):
    """A server that answers each message by `reply(message, socket)`."""
    started, ended = threading.Event(), threading.Event()
    ports = []

    async def handle(socket):
        async for raw in socket:
            answer = reply(json.loads(raw))
            if answer is None:
                await socket.close()
                return
            await socket.send(answer if isinstance(answer, str | bytes) else json.dumps(answer))

    async def run():
        async with serve(handle, "127.0.0.1", 0) as server:
            ports.append(server.sockets[0].getsockname()[1])
            started.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield f"ws://127.0.0.1:{ports[0]}"
    finally:
        ended.set()
        thread.join(10)


def observation(*, done=False, reward=None, **content):
    return {
        "type": "observation", "data": {"observation": content, "reward": reward, "done": done},
    }  # fmt: skip


TOOLS = [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}}]


def world(step):
    """A server with one tool, whose calls `step` answers."""

    def reply(message):
        if message["type"] == "reset":
            return observation(prompt=f"find {message['data']['seed']}")
        if message["data"].get("type") == "list_tools":
            return observation(tools=TOOLS)
        return step(message["data"])

    return reply


def test_a_call_may_end_the_episode():
    with scripted(world(lambda _: observation(done=True, reward=1.0, result=""))) as url:
        found = family(url)
        ended = played(found, found.tasks("train", 1)[0], ToolCalls.one("look", {}))
    assert ended.finish_reason is FinishReason.ANSWERED
    assert found.ends_by_call, "or validation refuses such a demonstration"
    assert ended.reward["outcome"] == 1.0


@pytest.mark.parametrize(("reward", "said"), [(None, "reward"), (7, "range")])
def test_a_reward_missing_or_out_of_range_is_an_error(reward, said):
    with scripted(world(lambda _: observation(done=True, reward=reward, result="x"))) as url:
        found = family(url)
        with pytest.raises(DataError, match=said):
            played(found, found.tasks("train", 1)[0], ToolCalls.one("look", {}))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "{",
        "[]",
        '{"type": "observation", "data": {"observation": {}, "reward": NaN}}',
        {"type": "observation", "data": {"observation": 3}},
        {"type": "state", "data": {}},
        {"type": "error", "data": {"code": "SESSION_ERROR", "message": "gone"}},
    ],
)
def test_a_server_that_breaks_the_protocol_loses_the_episode(answer):
    with scripted(world(lambda _: answer)) as url:
        found = family(url, timeout_s=2)
        with pytest.raises(EnvironmentLostError, match="127"):
            played(found, found.tasks("train", 1)[0], ToolCalls.one("look", {}))


def test_a_step_without_an_answer_loses_the_episode_in_time():
    hung = threading.Event()
    with scripted(world(lambda _: hung.wait(3) and None)) as url:
        found = family(url, timeout_s=0.3)
        tasks = found.tasks("train", 1)
        with pytest.raises(EnvironmentLostError, match=r"0\.3 s"):
            played(found, tasks[0], ToolCalls.one("look", {}))
        hung.set()


def test_a_full_server_is_asked_again():
    asked = []

    def reply(message):
        if message["type"] == "reset":
            asked.append(1)
            if len(asked) % 2:
                return {"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "full"}}
        return world(lambda _: observation(done=True, reward=1, result="x"))(message)

    with scripted(reply) as url:
        assert len(family(url, sessions=1).tasks("train", 6)) == 6


def test_an_action_that_is_refused_is_an_observation():
    refused = {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "too dark"}}
    with scripted(world(lambda _: refused)) as url:
        found = family(url)
        calls = [ToolCalls.one("look", {"at": float("inf")}), *[ToolCalls.one("look", {})] * 3]
        cut = played(found, found.tasks("train", 1)[0], *calls)
    said = [result.content for result in cut.tool_results]
    assert said[0].startswith("error: not JSON")
    assert said[1:] == ["error: too dark"] * 3


# --------------------------------------------------------------------- what servers describe


@pytest.mark.parametrize(
    ("listed", "fault"),
    [
        (None, "no tools"),
        ([], "0 tools"),
        ([3], "here"),
        ([{"name": "a b"}], "'a b'"),
        ([{"name": "reset"}], "'reset'"),
    ],
)
def test_a_list_that_offers_no_tools_is_refused(listed, fault):
    with pytest.raises(DataError, match=fault):
        listed_tools("here", listed)


def test_actions_and_prompts_are_read_as_they_are_described():
    properties = {"message": {"type": "string"}, "metadata": {"type": "object"}}
    (act,) = schema_tool("here", {"action": {"properties": properties, "required": ["message"]}})
    assert (act.name, list(act.parameters["properties"])) == ("act", ["message"])
    (one,) = read_prompt({"info": {"question": "why?"}}, "info.question", "here")
    assert one.content == "why?"
    with pytest.raises(DataError, match="object"):
        schema_tool("here", {"action": []})
    for read, field, said in (
        ({"board": 1}, "question", "board"), ({"prompt": [{"role": "king"}]}, "", "messages"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=said):
            read_prompt(read, field, "here")
