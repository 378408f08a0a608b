"""Drift is counted over the episodes that are compared, and fails a run where that is asked."""

from contextlib import nullcontext

import pytest

from espalier.config import Profile
from espalier.dialects.tags import Tags
from espalier.records import FinalAnswer, Message, PolicyError
from espalier.records.trajectory import FinishReason
from espalier.rollout.roller import Roller
from espalier_search.synthesis.search_wording import search_call
from tests.factories.records import make_task
from tests.factories.tiny import LookupSearch, lookup_environments, tiny_dialect
from tests.fakes.scripted_engine import ScriptedEngine
from tests.unit.dialects.test_drift import SHORTENS_OLD_RESULTS, STEADY, given_model

EPISODE = {"max_tokens": 8000, "max_turn_tokens": 2000}
"""Room for a tokenizer of bytes."""
LONG = f"Lyon | country: France {'x' * 900}"
SHORT = "France | currency: Euro"
EPISODE_ACTIONS = (
    search_call("country , currency", "lyon country"),
    search_call("currency", "france currency"),
    FinalAnswer("euro", "answer"),
)


class LouderTags(Tags):
    """Renders results otherwise than the chat template of its policy."""

    def write_result(self, content, tools):
        return super().write_result(f"{content} !", tools)


def louder_dialect():
    dialect = tiny_dialect()
    dialect.syntax = LouderTags()
    return dialect


def rolled_out(dialect, messages, *, lines=(LONG, SHORT), **sections):
    """A roller, its engine and the trajectory of one episode of these messages."""
    profile = Profile.model_validate(sections)
    engine = ScriptedEngine(dialect, messages)
    roller = Roller(engine, dialect, lookup_environments(LookupSearch(lines), profile), profile)
    task = make_task(question="What is the currency of the country of Lyon?", gold=("euro",))
    (trajectory,) = roller.roll_out([task], samples=1, temperature=1.0, seed=0)
    return roller, engine, trajectory


def written(dialect):
    return [dialect.action_ids(action) for action in EPISODE_ACTIONS]


@pytest.mark.parametrize(
    ("make_dialect", "drifted"),
    [
        (tiny_dialect, 0),
        (lambda: given_model(STEADY), 0),
        (louder_dialect, 2),
        (lambda: given_model(SHORTENS_OLD_RESULTS), 2),
    ],
)
def test_injected_drift_is_counted_and_fails_runs_forbidding_it(make_dialect, drifted):
    dialect = make_dialect()
    compared = {"lines": ("Lyon | country: France", SHORT), "episode": EPISODE}
    rollout = {"compare_every": 1}
    roller, _, trajectory = rolled_out(dialect, written(dialect), rollout=rollout, **compared)
    assert trajectory.is_right
    assert (roller.drift.turns, roller.drift.drifted) == (2, drifted)
    refused = pytest.raises(PolicyError, match=f"{drifted} of 2 turns")
    with refused if drifted else nullcontext():
        strict = rollout | {"token_drift": "fail"}
        rolled_out(dialect, written(dialect), rollout=strict, **compared)


def test_a_truncated_context_keeps_the_frames_of_the_template():
    dialect = given_model(STEADY)
    episode = {"max_tokens": 1750, "max_turn_tokens": 250, "overflow": "truncate"}
    _, engine, trajectory = rolled_out(dialect, written(dialect), episode=episode)
    assert trajectory.is_right
    before, after = (dialect.text(session.context) for session in engine.sessions)
    read_then = dialect.text(dialect.result_ids((Message(role="tool", content=SHORT),)))
    answer = dialect.text(written(dialect)[2])
    assert after == before.replace(LONG, "(removed)") + read_then + answer


def test_a_summary_that_was_cut_off_ends_the_episode():
    dialect = given_model(STEADY)
    cut_off = dialect.text_ids("country of lyon : france")[:-1]
    messages = [*written(dialect)[:2], cut_off, written(dialect)[2]]
    episode = {"max_tokens": 2350, "max_turn_tokens": 250, "overflow": "summarise"}
    _, engine, trajectory = rolled_out(dialect, messages, episode=episode)
    assert trajectory.finish_reason is FinishReason.MAX_TOKENS
    assert len(engine.sessions) == 1
