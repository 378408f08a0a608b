"""An environment of GEM and one of SkyRL-gym, played by the episode loop."""

import asyncio
import re

import pytest

from espalier.config import EpisodeConfig
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.episode import EpisodeContext, ToolRunner, run_episode
from tests.factories.records import make_task
from tests.interop.gyms.bridge import environments_of, gym
from tests.interop.venvs import python_of
from tests.interop.witness import Witness, hermes

COUNT = 20


def guesses(text, _dice):
    """Halve what the hints leave of 1 to 50."""
    low, high = 1, 50
    for number, hint in re.findall(r"guessed (\d+), and the target number is (\w+)", text):
        low, high = (int(number) + 1, high) if hint == "higher" else (low, int(number) - 1)
    return f"\\boxed{{{(low + high) // 2}}}"


def sums(text, _dice):
    """Be wrong first, and right where it is asked for more."""
    first, second = map(int, re.search(r"What is (\d+) \+ (\d+)", text).groups())
    wrong = 0 if "tentative" in text else 1
    return f"It is so . #### {first + second + wrong}"


@pytest.mark.parametrize(
    ("package", "kind", "name", "rule", "right"),
    [
        ("gem", "gem", "game:GuessTheNumber-v0-hard", guesses, 1.0),
        ("skyrl_gym", "skyrl", "gsm8k_multi_turn", sums, 1.0),
    ],
)
def test_an_environment_is_played_and_rewards(package, kind, name, rule, right):
    python_of(package)
    dialect = hermes()
    limits = EpisodeConfig(max_tokens=8000, max_turn_tokens=200)
    with gym(package, kind, name) as playing, gym(package, kind, name) as beside:
        witness = Witness(dialect, rule)
        context = EpisodeContext(
            engine=witness, dialect=dialect, environments=environments_of(playing),
            tools=ToolRunner(workers=0, timeout_s=30.0), limits=limits,
        )  # fmt: skip

        async def play(seed):
            task = make_task(f"t{seed}", environment="gym", arguments={"seed": seed})
            finished = await run_episode(task, Sampling(temperature=1.0, seed=seed), context)
            return finished.trajectory

        sampled = []
        for seed in range(COUNT):
            trajectory = asyncio.run(play(seed))
            said = [m.content for m in trajectory.messages if m.role == "assistant"]
            assert len(said) == len(trajectory.turns) > 0
            sampled += [
                trajectory.token_ids[turn.action_start : turn.action_end]
                for turn in trajectory.turns
            ]
            # the same messages in the package itself, without espalier between
            prompt = beside.ask(reset=seed)["messages"]
            told = [beside.ask(step=one) for one in said]
            assert [m.content for m in trajectory.messages if m.role == "user"] == [
                one["content"] for one in [*prompt, *(m for t in told[:-1] for m in t["messages"])]
            ]
            assert [t.reward for t in trajectory.turns] == pytest.approx(
                [one["reward"] for one in told]
            )
            assert (told[-1]["done"], trajectory.reward["outcome"]) == (True, right)
    assert sampled == [ids for _, ids, _ in witness.answered], "each token as it was sampled"
    assert len(sampled) > COUNT
