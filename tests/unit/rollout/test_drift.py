"""Drift is counted over the episodes that are compared, and fails a run where that is asked."""

import pytest

from espalier.config import Profile, RolloutConfig
from espalier.dialects.dialect import TurnPieces
from espalier.records import Message, PolicyError, Task, TaskMetadata, Verifier
from espalier.records.trajectory import FinishReason, Trajectory
from espalier.rollout.drift import DriftCount
from espalier.rollout.episode import PlayedEpisode
from espalier.rollout.roller import Roller
from tests.factories.tiny import LookupSearch, lookup_environments, tiny_dialect, tiny_policy

PROMPT = (Message(role="user", content="country of Lyon?"),)
RESULT = (Message(role="tool", content="lyon | country: france"),)
SAME, DRIFTED = "same", "drifted"


def count(**settings):
    return DriftCount(tiny_dialect(), RolloutConfig(**settings))


def played(*turns):
    """An episode with a turn for each name."""
    honest = tuple(tiny_dialect().result_ids(RESULT))
    pieces = [TurnPieces(RESULT, honest[:-1] if turn == DRIFTED else honest) for turn in turns]
    trajectory = Trajectory(
        task_id="t",
        group_id="t",
        messages=PROMPT,
        tool_results=(),
        reward={},
        answer=None,
        finish_reason=FinishReason.MAX_TURNS,
        policy_version=0,
    )
    return PlayedEpisode(trajectory, PROMPT, pieces)


def test_turns_and_those_that_drifted_are_counted():
    drift = count(compare_every=1)
    drift.compare(played(SAME, DRIFTED, DRIFTED))
    drift.compare(played(SAME))
    assert (drift.turns, drift.drifted) == (4, 2)


def test_one_of_so_many_episodes_is_compared():
    drift = count(compare_every=3)
    for _ in range(7):
        drift.compare(played(DRIFTED, SAME))
    assert (drift.turns, drift.drifted) == (6, 3)


def test_nothing_is_compared_where_the_profile_asks_for_none():
    drift = count(compare_every=0, token_drift="fail")
    drift.compare(played(DRIFTED))
    assert (drift.turns, drift.drifted) == (0, 0)


def test_an_episode_that_never_read_anything_is_one_turn():
    drift = count(compare_every=1)
    drift.compare(played())
    assert (drift.turns, drift.drifted) == (1, 0)


def test_a_drifted_turn_fails_the_run_where_that_is_asked():
    drift = count(compare_every=1, token_drift="fail")
    drift.compare(played(SAME, SAME))
    with pytest.raises(PolicyError, match=r'task t: 1 of 2 turns .*token_drift = "count"'):
        drift.compare(played(SAME, DRIFTED))


def test_the_embedded_policys_own_episodes_do_not_drift():
    task = Task(
        task_id="t",
        prompt=PROMPT,
        environment="search_qa",
        verifier=Verifier(gold=("France",)),
        metadata=TaskMetadata(split="train", source="test"),
    )
    profile = Profile.model_validate({"rollout": {"compare_every": 1, "token_drift": "fail"}})
    environments = lookup_environments(LookupSearch(("Lyon | country: France",)), profile)
    roller = Roller.local(tiny_policy(), environments, profile)
    roller.roll_out([task], samples=8, temperature=1.0, seed=0)
    assert roller.drift.turns >= 8
    assert roller.drift.drifted == 0
