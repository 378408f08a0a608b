"""A server of the real mcp package: in a sandbox for each episode, and over HTTP."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.teaching import play_script
from espalier.records import FinalAnswer, ToolCalls
from tests.factories.scripts import played
from tests.interop.openenv.servers import running
from tests.interop.venvs import python_of

SERVER = Path(__file__).parent / "mcp_servers" / "stock_server.py"
ROWS = [
    {
        "question": f"Take {n} lamps. How many are left?",
        "answer": str(7 - n),
        "checks": [{"tool": "count", "arguments": {"item": "lamp"}, "result": str(7 - n)}],
        "actions": [
            {"tool": "take", "arguments": {"item": "lamp", "number": n}},
            {"tool": "count", "arguments": {"item": "lamp"}},
        ],
    }
    for n in range(1, 7)
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The server with its packages beside it, and the tasks."""
    folder = tmp_path_factory.mktemp("files") / "server"
    packages = next(python_of("mcp").parents[1].glob("lib/python*/site-packages"))
    shutil.copytree(packages, folder / "packages", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SERVER, folder)
    (folder.parent / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def stock(folder, **server):
    environment = {
        "name": "mcp", "tasks": folder.parent / "tasks.jsonl", "servers": {"stock": server},
        "sandbox": {"packages": [], "size": 2}, "disk_mb": 128,
    }  # fmt: skip
    return family_of(Profile.model_validate({"environment": environment}))


def check_what_is_read(found):
    assert [spec.name for spec in found.specs] == ["count", "take", "add_up", "report"]
    assert found.specs[1].parameters["required"] == ["item"]
    (task, *_) = found.read_benchmark(found.settings.tasks)
    read = played(
        found, task,
        ToolCalls.one("count", {"item": "rope"}), ToolCalls.one("count", {"item": "moon"}),
        ToolCalls.one("add_up", {"numbers": [1, 2, 3]}), ToolCalls.one("add_up", {"numbers": "x"}),
        ToolCalls.one("report", {}), FinalAnswer("x"),
    )  # fmt: skip
    assert [one.succeeded for one in read.tool_results] == [True, False, True, False, True]
    results = [one.content for one in read.tool_results]
    assert (results[0], results[2], results[4]) == ("40", "6", "done")
    assert "Error executing tool count" in results[1]
    assert "valid list" in results[3]


@pytest.mark.usefixtures("local_sandboxes")
def test_each_episode_has_the_real_server_in_its_sandbox(files):
    found = stock(
        files,
        command=["python3", "stock_server.py"], files=files, variables={"PYTHONPATH": "packages"},
    )  # fmt: skip
    check_what_is_read(found)
    tasks = found.read_benchmark(found.settings.tasks)
    with found.environments(None) as over:

        async def all_of_them():
            scripts = (play_script(over("train"), one, found.demonstrate(one)) for one in tasks)
            return await asyncio.gather(*scripts)

        attempts = asyncio.run(all_of_them())
    # in one process the second episode would find fewer lamps
    assert [one.reward["outcome"] for one in attempts] == [1.0] * len(ROWS)


def test_the_real_server_is_played_over_http(files):
    with running([python_of("mcp"), SERVER, "streamable-http"]) as url:
        found = stock(files, url=f"{url}/mcp")
        check_what_is_read(found)
        task = found.read_benchmark(found.settings.tasks)[2]
        with found.environments(None) as over:
            attempt = asyncio.run(play_script(over("train"), task, found.demonstrate(task)))
    assert attempt.reward["outcome"] == 1.0
