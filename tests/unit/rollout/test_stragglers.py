"""A group is closed without its stragglers where the profile says so, and else waits for all."""

import asyncio

import pytest

from espalier.config import StragglersConfig
from espalier.records.trajectory import FinishReason
from espalier.rollout import roller as rolling
from espalier.rollout.episode import FinishedEpisode
from espalier.rollout.stragglers import Stragglers
from tests.factories.tiny import tiny_policy
from tests.factories.training import TASKS, make_trajectory, warm_roller


@pytest.fixture
def roller_of(monkeypatch):
    """Plays the n-th episode in the n-th of `seconds`; None never ends."""

    def make(seconds, rule):
        roller = warm_roller(tiny_policy())
        roller.stragglers = None if rule is None else Stragglers(StragglersConfig(**rule))
        times = iter(seconds)

        async def run(task, sampling, context, begun):
            taken_s = next(times)
            await (asyncio.Event().wait() if taken_s is None else asyncio.sleep(taken_s))
            return FinishedEpisode(make_trajectory(task, 1), task.prompt, (), context.dialect)

        monkeypatch.setattr(rolling, "run_episode", run)
        return roller

    return make


RULE = {"share": 0.5, "patience_s": 0.1}
ENDED, CUT = FinishReason.ANSWERED, FinishReason.TIMEOUT


@pytest.mark.parametrize(
    ("seconds", "rule", "reasons"),
    [
        ((0, 0, 0, None), RULE, [ENDED, ENDED, ENDED, CUT]),
        ((None, 0, 0, None), RULE, [CUT, ENDED, ENDED, CUT]),
        ((0, 0, 0.02, 0.04), RULE, [ENDED] * 4),
        ((0, 0, 0.2, 0.2), RULE, [ENDED, ENDED, CUT, CUT]),
        ((0, 0, 0.2, 0.2), None, [ENDED] * 4),
        ((0, 0.2, 0.2, 0.2), RULE, [ENDED] * 4),
        # each group is closed by itself
        ((0, 0, 0, None, 0.2, 0.2, 0.2, 0.2), RULE, [ENDED] * 3 + [CUT] + [ENDED] * 4),
    ],
)
def test_a_group_waits_for_a_share_and_then_a_time(roller_of, seconds, rule, reasons):
    roller = roller_of(seconds, rule)
    tasks = TASKS[: len(seconds) // 4]
    played = roller.roll_out(tasks, samples=4, temperature=1.0, seed=0)
    assert [t.finish_reason for t in played] == reasons
    assert [t.task_id for t in played] == [task.task_id for task in tasks for _ in range(4)]
    assert roller.losses[CUT] == reasons.count(CUT)


def test_a_group_that_is_sampled_ahead_is_closed_too(roller_of):
    roller = roller_of((0, None, 0, 0), RULE)

    async def play():
        async with roller.serving() as context:
            return await roller.roll_out_group(
                TASKS[0], context, temperature=1.0, names=["a", "b", "c", "d"]
            )

    assert [t.is_lost for t in asyncio.run(play())] == [False, True, False, False]


def test_episodes_that_are_cancelled_with_all_others_are_no_stragglers(roller_of):
    roller = roller_of((None, None), RULE)

    async def play():
        async with roller.serving() as context:
            async with asyncio.timeout(0.1):
                await roller.roll_out_group(TASKS[0], context, temperature=1.0, names=["a", "b"])

    with pytest.raises(TimeoutError):
        asyncio.run(play())
    assert not roller.losses
