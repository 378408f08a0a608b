"""MCP servers as programs in real sandboxes: one for each episode, whatever it does."""

import asyncio
import json
import shutil

import pytest

from espalier.environments.teaching import play_script
from espalier.records import DataError, FinalAnswer, ToolCalls
from espalier.records.trajectory import FinishReason
from tests.factories.scripts import acting
from tests.fakes import mcp_notes
from tests.unit.environments.mcp.test_playing import ROWS, family

pytestmark = pytest.mark.usefixtures("local_sandboxes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("server")
    shutil.copy(mcp_notes.__file__, path / "server.py")
    (path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def sandboxed(folder, command=("python3", "server.py"), **environment):
    server = {"command": command, "files": folder, "variables": {"LANG": "C.UTF-8"}}
    settings = {"sandbox": {"packages": [], "size": 2}, "servers": {"notes": server}, **environment}
    return family("", folder / "tasks.jsonl", **settings)


def call(how):
    return ToolCalls.one("misbehave", {"how": how})


def test_each_episode_has_a_server_of_its_own(folder):
    found = sandboxed(folder)
    assert [spec.name for spec in found.specs] == ["add", "list", "misbehave"]
    tasks = [task for task in found.tasks("train", 5) if task.extra["actions"]]
    with found.environments(None) as over:

        async def all_of_them():
            scripts = (play_script(over("train"), one, found.demonstrate(one)) for one in tasks)
            return await asyncio.gather(*scripts)

        attempts = asyncio.run(all_of_them())
        assert [one.reward["outcome"] for one in attempts] == [1.0] * len(tasks)

        hang = acting(call("sleep"), ToolCalls.one("list", {}), FinalAnswer("x"))
        stuck = asyncio.run(play_script(over("train"), tasks[0], hang))
        assert [one.content for one in stuck.tool_results] == ["error: no answer in 2 s"] * 2

        calls = [call(how) for how in ("chatter", "long", "refuse", "wide")]
        chatty = acting(*calls, FinalAnswer("x"))
        read = asyncio.run(play_script(over("train"), tasks[0], chatty))
        assert [one.content[:26] for one in read.tool_results] == [
            "all is well", "error: the result has more", "error: not so", "\u00e9" * 26,
        ]  # fmt: skip

        ended = asyncio.run(play_script(over("train"), tasks[0], acting(call("exit"))))
        assert ended.finish_reason is FinishReason.PROGRAM_BROKE_SANDBOX
        assert "status 3): out of notes" in ended.tool_results[-1].content
        assert ended.reward["outcome"] == 0.0, "a policy must not lose what it cannot answer"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("no-such-program",), "No such file"),
        (("python3", "-c", "import sys; sys.exit('not today')"), "not today"),
        (("python3", "-c", "print('hello'); input(); input()"), "ended|no answer"),
        (("python3", "-c", "import urllib.request as u; u.urlopen('http://10.0.0.1')"), "unreach"),
    ],
)
def test_a_program_that_is_no_server_is_one_error(folder, command, message):
    with pytest.raises(DataError, match=rf"environment\.servers: .*({message})"):
        _ = sandboxed(folder, command, start_timeout_s=5.0).specs


def test_a_folder_that_is_not_there_is_named(tmp_path, folder):
    with pytest.raises(DataError, match="no folder with the files of a server"):
        _ = sandboxed(tmp_path / "none", tasks=folder / "tasks.jsonl").specs
