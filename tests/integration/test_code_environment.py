"""The whole chain over a code environment: every program runs in a sandbox of this machine."""

import asyncio
import json
from pathlib import Path

import pytest

from espalier.config import Profile, load_profile
from espalier.records import FinalAnswer, ToolCalls
from espalier.records.trajectory import read_trajectories
from espalier.rollout.episode import ToolRunner
from espalier.sandbox.choice import sandbox_pool
from espalier_environments.python_math import PythonMath
from tests.factories.chains import chain_run
from tests.factories.python_math import TASK

PROFILES = Path(__file__).parents[2] / "pipelines" / "profiles"
pytestmark = pytest.mark.usefixtures("local_sandboxes")


def test_every_looping_program_is_judged_however_many_wait():
    """48 episodes over 2 sandboxes take 4.8 s at least, and one call may take 4."""
    sandbox = {"packages": [], "size": 2}
    section = {"name": "python_math", "code_timeout_s": 0.2, "sandbox": sandbox}
    math = PythonMath(Profile.model_validate({"environment": section}))

    async def played(environments, tools):
        async def looped(code):
            environment = environments(TASK)
            environment.reset(TASK)
            step = await tools.run(environment.step, ToolCalls.one("python", {"code": code}))
            await tools.run(environment.step, FinalAnswer("85"))
            reward = await tools.run(environment.score)
            return step.messages[0].content, reward["outcome"]

        looping = ["while True: pass", "print(9 ** 9 ** 9)"] * 24
        return await asyncio.gather(*map(looped, looping), return_exceptions=True)

    with sandbox_pool(math.settings.sandbox, math.profile.kubernetes) as sandboxes:
        tools = ToolRunner(workers=0, timeout_s=4)
        episodes = asyncio.run(played(math.environments_in(sandboxes), tools))
    assert episodes == [("TimeoutError: the program took too long", -1.0)] * 48


def test_the_whole_chain_runs_over_sandboxes(tmp_path):
    profile = load_profile(PROFILES / "arithmetic-smoke.toml")
    manifests = chain_run(profile, tmp_path / "run")
    demonstrations = read_trajectories(tmp_path / "run" / "accepted" / "trajectories.parquet")
    assert demonstrations
    assert all(t.tool_results and t.reward["outcome"] == 1.0 for t in demonstrations)
    results = json.loads((tmp_path / "run" / "evaluation" / "results.json").read_bytes())
    assert results["environment"]["name"] == "python_math"
    assert results["eval"]["trained"]["n"] == profile.synthesis.heldout_tasks
    assert results["eval"]["trained"]["finish_reasons"].keys() <= {
        "answered", "max_turns", "max_tokens", "parse_error",
    }  # fmt: skip
    again = chain_run(profile, tmp_path / "run")
    assert {name: m.content for name, m in again.items()} == {
        name: m.content for name, m in manifests.items()
    }
