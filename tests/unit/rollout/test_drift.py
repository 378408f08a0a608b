"""Drift is counted over the episodes that are compared, and fails a run where that is asked."""

import pytest

from espalier.config import Profile, RolloutConfig
from espalier.dialects.dialect import TurnPieces
from espalier.dialects.tags import Tags
from espalier.records import FinalAnswer, Message, PolicyError, Task, TaskMetadata, Verifier
from espalier.records.trajectory import FinishReason, Trajectory
from espalier.rollout.episode import FinishedEpisode
from espalier.rollout.roller import DriftCount, Roller
from espalier_search.synthesis.search_wording import search_call
from tests.factories.records import make_task
from tests.factories.tiny import LookupSearch, lookup_environments, tiny_dialect, tiny_policy
from tests.fakes.scripted_engine import ScriptedEngine
from tests.unit.dialects.test_drift import SHORTENS_OLD_RESULTS, STEADY, given_model

PROMPT = (Message(role="user", content="country of Lyon?"),)
RESULT = (Message(role="tool", content="lyon | country: france"),)
EPISODE = {"max_tokens": 8000, "max_turn_tokens": 2000}
"""Room for a tokenizer of bytes."""
EPISODE_ACTIONS = (
    search_call("country , currency", "lyon country"),
    search_call("currency", "france currency"),
    FinalAnswer("euro", "answer"),
)
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
    return FinishedEpisode(trajectory, PROMPT, pieces, tiny_dialect())


def test_turns_and_those_that_drifted_are_counted():
    drift = count(compare_every=1)
    drift.compare(played(SAME, DRIFTED, DRIFTED))
    drift.compare(played(SAME))
    assert (drift.turns, drift.drifted) == (4, 2)


def test_every_nth_episode_is_compared_from_the_first_on():
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
    with pytest.raises(PolicyError, match=r"task t: 1 of 2 turns .*token_drift"):
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


class LouderTags(Tags):
    """Renders results otherwise than the chat template of its policy."""

    def write_result(self, content, tools):
        return super().write_result(f"{content} !", tools)


def louder_dialect():
    dialect = tiny_dialect()
    dialect.syntax = LouderTags()
    return dialect


PLAYED = [
    (tiny_dialect, 0),
    (lambda: given_model(STEADY), 0),
    (louder_dialect, 2),
    (lambda: given_model(SHORTENS_OLD_RESULTS), 2),
]


def rolled_out(dialect, **rollout):
    """A roller that has played one episode of two searches and an answer."""
    profile = Profile.model_validate(
        {"rollout": {"compare_every": 1, **rollout}, "episode": EPISODE}
    )
    lines = ("Lyon | country: France", "France | currency: Euro")
    engine = ScriptedEngine(dialect, [dialect.action_ids(action) for action in EPISODE_ACTIONS])
    environments = lookup_environments(LookupSearch(lines), profile)
    roller = Roller(engine, dialect, environments, profile)
    task = make_task(question="What is the currency of the country of Lyon?", gold=("euro",))
    (trajectory,) = roller.roll_out([task], samples=1, temperature=1.0, seed=0)
    assert trajectory.is_right
    return roller


@pytest.mark.parametrize(("make_dialect", "drifted"), PLAYED)
def test_injected_drift_is_counted_in_a_run(make_dialect, drifted):
    roller = rolled_out(make_dialect())
    assert roller.drift.drifted == drifted
    assert roller.drift.turns == 2


@pytest.mark.parametrize(("make_dialect", "drifted"), PLAYED)
def test_injected_drift_fails_a_run_that_forbids_it(make_dialect, drifted):
    if drifted:
        with pytest.raises(PolicyError, match=f"{drifted} of 2 turns"):
            rolled_out(make_dialect(), token_drift="fail")
    else:
        assert rolled_out(make_dialect(), token_drift="fail").drift.drifted == 0


LONG, SHORT = f"Lyon | country: France {'x' * 900}", "France | currency: Euro"


def overflowing(dialect, overflow, messages, *, room):
    """An engine and the trajectory of an episode whose first result does not fit for long."""
    profile = Profile.model_validate(
        {"episode": {"max_tokens": room, "max_turn_tokens": 250, "overflow": overflow}}
    )
    engine = ScriptedEngine(dialect, messages)
    environments = lookup_environments(LookupSearch((LONG, SHORT)), profile)
    roller = Roller(engine, dialect, environments, profile)
    task = make_task(question="What is the currency of the country of Lyon?", gold=("euro",))
    (trajectory,) = roller.roll_out([task], samples=1, temperature=1.0, seed=0)
    return engine, trajectory


def test_a_truncated_context_keeps_the_frames_of_the_template():
    dialect = given_model(STEADY)
    written = [dialect.action_ids(action) for action in EPISODE_ACTIONS]
    engine, trajectory = overflowing(dialect, "truncate", written, room=1750)
    assert trajectory.is_right
    before, after = (dialect.text(session.context) for session in engine.sessions)
    read_then = dialect.text(dialect.result_ids((Message(role="tool", content=SHORT),)))
    assert after == before.replace(LONG, "(removed)") + read_then + dialect.text(written[2])


def test_a_summary_that_was_cut_off_ends_the_episode():
    dialect = given_model(STEADY)
    written = [dialect.action_ids(action) for action in EPISODE_ACTIONS]
    cut_off = dialect.text_ids("country of lyon : france")[:-1]
    engine, trajectory = overflowing(
        dialect, "summarise", [*written[:2], cut_off, written[2]], room=2350
    )
    assert trajectory.finish_reason is FinishReason.MAX_TOKENS
    assert len(engine.sessions) == 1
