"""OpenEnv servers that are started in real sandboxes: one for each episode, whatever it does."""

import asyncio
import shutil

import pytest

from espalier.environments.contract import EnvironmentLostError
from espalier.environments.teaching import play_script
from espalier.records import ToolCalls
from espalier.records.trajectory import FinishReason
from tests.factories.scripts import acting
from tests.fakes import openenv_bare
from tests.unit.environments.openenv.test_playing import family

pytestmark = pytest.mark.usefixtures("local_sandboxes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("server")
    shutil.copy(openenv_bare.__file__, path / "server.py")
    return path


def sandboxed(folder, command=("python3", "server.py", "8123"), **environment):
    program = {"command": command, "port": 8123, "files": folder, "start_timeout_s": 20.0}
    settings = {"server": program, "sandbox": {"packages": [], "size": 2}, "actions": "schema"}
    return family(None, **settings, **environment)


def act(do, by=0):
    return ToolCalls.one("act", {"do": do, "by": by})


def play(over, task, *actions):
    return play_script(over("train"), task, acting(*actions))


def test_each_episode_has_a_server_in_a_sandbox(folder):
    found = sandboxed(folder, timeout_s=3.0)
    assert [spec.name for spec in found.specs] == ["act"]
    tasks = found.tasks("train", 6)
    assert len(tasks) == 6
    assert tasks[4].question.startswith("start with 4;")
    with found.environments(None) as over:

        async def all_of_them():
            right = (
                play(over, task, act("add", 2), act("pieces"), act("answer", seed + 2))
                for seed, task in enumerate(tasks)
            )
            return await asyncio.gather(*right, play(over, tasks[0], act("answer", 9)))

        *right, wrong = asyncio.run(all_of_them())
        assert [one.reward["outcome"] for one in right] == [1.0] * 6, "nothing is left of another"
        assert [one.tool_results[1].content for one in right] == [str(2 + n) for n in range(6)]
        assert wrong.reward["outcome"] == 0.0

        long = asyncio.run(play(over, tasks[1], act("long"), act("answer", 1)))
        assert len(long.tool_results[0].content) <= 4000
        assert long.reward["outcome"] == 1.0

        for do in ("exit", "close", "sleep", "spoil"):
            ended = asyncio.run(play(over, tasks[0], act(do), act("answer", 0)))
            assert ended.finish_reason is FinishReason.PROGRAM_BROKE_SANDBOX, do
            assert ended.reward["outcome"] == 0.0
        with pytest.raises(EnvironmentLostError, match="something else than OpenEnv's messages"):
            asyncio.run(play(over, tasks[0], act("nonsense")))
        again = asyncio.run(play(over, tasks[3], act("answer", 3)))
        assert again.reward["outcome"] == 1.0, "the sandboxes are whole"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("python3", "missing.py"), "does not listen on port 8123"),
        (("nothing_like_it",), "nothing_like_it"),
    ],
)
def test_a_server_that_does_not_start_is_one_error(folder, command, told):
    with pytest.raises(EnvironmentLostError, match=told):
        _ = sandboxed(folder, command=command).specs
