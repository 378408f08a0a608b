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


def test_right_answers_on_a_real_server_are_rewarded(parcels):
    tasks = parcels.tasks("train", COUNT)

    def wrong():
        yield ToolCalls.one("act", {"do": "fly", "what": "moon"})
        yield ToolCalls.one("act", {"do": "answer", "what": "-1"})

    with parcels.environments(None) as over:

        async def play_all():
            scripts = [(one, parcels.demonstrate(one)) for one in tasks] + [(tasks[0], wrong())]
            return await asyncio.gather(*(play_script(over("train"), *one) for one in scripts))

        *right, lost = asyncio.run(play_all())
    assert [one.reward["outcome"] for one in right] == [1.0] * COUNT
    assert lost.reward["outcome"] == 0.0
    assert not lost.tool_results[0].succeeded, "its schema has no such action"


def test_prompts_of_a_real_server_are_in_one_split_alone(parcels):
    prompts = [
        {task.prompt for task in parcels.tasks(split, 10_000)}
        for split in ("train", "dev", "heldout")
    ]
    assert [len(one) for one in prompts[1:]] == [260, 500]
    assert len(set.union(*prompts)) == sum(map(len, prompts))


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
