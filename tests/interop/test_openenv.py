"""OpenEnv's own package at the other end of the wire: its servers are played, its clients play."""

import asyncio
import json
import subprocess

import pytest

from espalier.config import load_profile
from espalier.environments import family_of
from espalier.environments.teaching import play_script
from espalier.records import ToolCalls
from tests.fakes.openenv_served import served_shop
from tests.interop.openenv.servers import HERE, parcel_server
from tests.interop.venvs import python_of

COUNT = 100


@pytest.fixture(scope="module")
def parcels():
    with parcel_server() as url:
        yield family_of(load_profile(HERE / "profile.toml", [f'environment.url="{url}"']))


def test_demonstrations_on_a_real_server_are_all_rewarded(parcels):
    tasks = parcels.tasks("train", COUNT)
    with parcels.environments(None) as over:

        async def play_all():
            played = (play_script(over("train"), one, parcels.demonstrate(one)) for one in tasks)
            return await asyncio.gather(*played)

        found = asyncio.run(play_all())
    assert len(found) == COUNT
    assert [one.reward["outcome"] for one in found] == [1.0] * COUNT


def test_a_wrong_answer_on_a_real_server_earns_nothing(parcels):
    def wrong():
        yield ToolCalls.one("act", {"do": "fly", "what": "moon"})
        yield ToolCalls.one("act", {"do": "answer", "what": "-1"})

    task = parcels.tasks("train", 1)[0]
    with parcels.environments(None) as over:
        found = asyncio.run(play_script(over("train"), task, wrong()))
    assert found.reward["outcome"] == 0.0
    assert not found.tool_results[0].succeeded, "its schema has no such action"


def test_prompts_of_a_real_server_are_in_one_split_alone(parcels):
    prompts = [
        {task.prompt for task in parcels.tasks(split, 10_000)}
        for split in ("train", "dev", "heldout")
    ]
    assert [len(one) for one in prompts[1:]] == [260, 500]
    assert not prompts[0] & prompts[1] | prompts[0] & prompts[2] | prompts[1] & prompts[2]


def test_real_clients_play_a_family_of_ours():
    with served_shop() as (url, _):
        command = [python_of("openenv"), HERE / "play_ours.py", url]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    met = json.loads(ended.stdout)
    asked = "What does thing5 cost in crowns?"
    assert met["socket"] == {
        "prompt": asked,
        "results": ["5", "error: moon is not sold here"],
        "reward": pytest.approx(1.1),
        "done": [False, False, True],
        "steps": 3,
    }
    assert met["mcp"]["tools"] == ["price", "convert", "answer"]
    assert met["mcp"]["prompt"] == asked
    assert met["mcp"]["price"]["result"] == "5"
