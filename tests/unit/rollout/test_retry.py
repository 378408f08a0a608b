"""Several attempts of one episode, each after a reflection: what is read, sampled and paid."""

import asyncio

import pytest
from pydantic import ValidationError

from espalier.config import EpisodeConfig, Profile
from espalier.environments import EnvironmentLostError, ToolEnvironment
from espalier.records import FinalAnswer, Message
from espalier.records.trajectory import FinishReason, read_trajectories, write_trajectories
from espalier.rollout.context import REFLECTION_REQUEST, RETRY_REQUEST
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.episode import EpisodeContext, ToolRunner, run_episode
from espalier.training.packing import TrainingSequence
from espalier_search.search_qa import SearchQA
from espalier_search.synthesis.search_wording import search_call
from tests.factories.records import make_task
from tests.factories.tiny import LookupSearch, lookup_environments, tiny_dialect
from tests.fakes.scripted_engine import ScriptedEngine

TASK = make_task(question="What is the currency of the country of Lyon?", gold=("Euro",), hops=2)
SEARCH = LookupSearch(("Lyon | country: France", "France | currency: Euro"))
DIALECT = tiny_dialect()
SEARCHED = search_call("country", "lyon country")
WRONG, RIGHT = FinalAnswer("france", "answer"), FinalAnswer("euro", "answer")
REFLECTION = "country is france , currency"


def limits(attempts=2, **changes):
    retry = {"attempts": attempts, "reflection_tokens": 30}
    return EpisodeConfig(**{"retry": retry} | changes)


def ids(action):
    return DIALECT.text_ids(action) if isinstance(action, str) else DIALECT.action_ids(action)


def read(content):
    return DIALECT.result_ids((Message(role="user", content=content),))


def played(*actions, episode=None, environments=None):
    engine = ScriptedEngine(DIALECT, [ids(action) for action in actions])
    episode = episode or limits()

    async def play():
        context = EpisodeContext(
            engine=engine,
            dialect=DIALECT,
            environments=environments or lookup_environments(SEARCH, Profile()),
            tools=ToolRunner(workers=0, timeout_s=5.0),
            limits=episode,
        )
        return await run_episode(TASK, Sampling(temperature=1.0, seed=7), context)

    return engine, asyncio.run(play()).trajectory


@pytest.fixture(scope="module")
def retried():
    return played(SEARCHED, WRONG, REFLECTION, SEARCHED, RIGHT)


def test_second_attempt_begins_with_the_prompt_and_the_reflection(retried):
    engine, trajectory = retried
    second = engine.sessions[1].context
    begun = (*DIALECT.prompt_ids(TASK.prompt), *ids(REFLECTION), *read(RETRY_REQUEST))
    assert tuple(second[: len(begun)]) == begun
    assert trajectory.finish_reason is FinishReason.ANSWERED
    assert trajectory.answer == "euro"
    assert trajectory.reward == {"outcome": 1.0, "format": 0.1}
    assert trajectory.attempts == 2
    assert len(trajectory.tool_results) == 2


def test_every_sampled_token_is_an_action_once_and_no_other(retried):
    engine, trajectory = retried
    windows = [trajectory.token_ids[window] for window in trajectory.windows]
    assert windows == [tuple(session.context) for session in engine.sessions]
    spans = [trajectory.token_ids[t.action_start : t.action_end] for t in trajectory.turns]
    assert spans == [ids(one) for one in (SEARCHED, WRONG, REFLECTION, SEARCHED, RIGHT)]
    assert sum(trajectory.action_mask) == sum(map(len, spans))
    for turn in trajectory.turns:
        assert set(trajectory.action_mask[turn.action_start : turn.action_end]) == {1}
    unsampled = zip(trajectory.action_mask, trajectory.behavior_logprobs, strict=True)
    assert {logprob for mask, logprob in unsampled if not mask} == {0.0}


def test_windows_of_attempts_are_packed_apart(retried):
    _, trajectory = retried
    sequence = TrainingSequence(
        token_ids=trajectory.token_ids,
        loss_mask=trajectory.action_mask,
        window_starts=trajectory.window_starts,
    )
    assert len(sequence.windows) == 2


def test_messages_show_the_requests_and_the_reflection(retried):
    _, trajectory = retried
    said = [message.content for message in trajectory.messages if message.role == "user"]
    assert said == [TASK.question, REFLECTION_REQUEST, RETRY_REQUEST]
    assert len({sampling.seed for sampling in retried[0].samplings}) == 2


def test_right_answer_ends_the_episode_at_once():
    engine, trajectory = played(SEARCHED, RIGHT)
    _, plain = played(SEARCHED, RIGHT, episode=EpisodeConfig())
    assert trajectory == plain
    assert trajectory.attempts == 1
    assert len(engine.sessions) == 1


def test_last_attempt_is_paid_whatever_came_before():
    _, trajectory = played(WRONG, REFLECTION, WRONG, REFLECTION, WRONG, episode=limits(3))
    assert trajectory.attempts == 3
    assert trajectory.reward == {"outcome": 0.0, "format": 0.1}
    assert len(trajectory.windows) == 3


def test_only_the_last_reflection_is_kept():
    engine, _ = played(WRONG, REFLECTION, WRONG, "look again", RIGHT, episode=limits(3))
    begun = (*DIALECT.prompt_ids(TASK.prompt), *ids("look again"), *read(RETRY_REQUEST))
    assert tuple(engine.sessions[2].context[: len(begun)]) == begun


def test_attempt_without_room_for_a_reflection_is_the_last():
    prompt = len(DIALECT.prompt_ids(TASK.prompt))
    full = prompt + len(ids(WRONG)) + len(read(REFLECTION_REQUEST)) + 29
    tight = limits(max_tokens=full, max_turn_tokens=16)
    engine, trajectory = played(WRONG, episode=tight)
    assert trajectory.attempts == 1
    assert trajectory.reward["outcome"] == 0
    assert len(engine.sessions) == 1


def test_no_context_exceeds_the_limit():
    for room in range(90, 140, 5):
        short = limits(max_tokens=room, max_turn_tokens=16)
        _, trajectory = played(SEARCHED, WRONG, REFLECTION, SEARCHED, RIGHT, episode=short)
        assert all(window.stop - window.start <= room for window in trajectory.windows)


def test_message_that_was_cut_off_is_followed_by_a_reflection():
    _, trajectory = played(" ".join(["lyon"] * 60), REFLECTION, SEARCHED, RIGHT)
    assert trajectory.attempts == 2
    assert trajectory.reward["outcome"] == 1


def test_retried_trajectory_survives_its_file(tmp_path, retried):
    _, trajectory = retried
    write_trajectories(tmp_path / "t.parquet", [trajectory])
    assert read_trajectories(tmp_path / "t.parquet") == [trajectory]


class _LostLater(ToolEnvironment):
    """Lost in every attempt but the first."""

    resets = 0

    def reset(self, task):
        _LostLater.resets += 1
        if _LostLater.resets > 1:
            raise EnvironmentLostError("the sandbox is gone")
        return super().reset(task)


def test_loss_in_a_later_attempt_loses_the_episode():
    family = SearchQA(Profile())
    rules = family.rules(family.tools())
    environments = family.environments_of(rules)
    object.__setattr__(environments, "make", lambda _task: _LostLater(rules))
    _, trajectory = played(WRONG, REFLECTION, environments=environments)
    assert trajectory.is_lost
    assert trajectory.reward == {}


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"agent": {"command": ["true"]}}, "loop"),
        ({"episode": {"max_tokens": 60}}, "turn"),
        (
            {
                "environment": {"name": "python_math"},
                "self_play": {"name": "absolute_zero"},
            },
            "absolute_zero",
        ),
    ],
)
def test_retry_is_refused_where_it_makes_no_sense(sections, said):
    episode = {"retry": {"attempts": 2}} | sections.get("episode", {})
    with pytest.raises(ValidationError, match=said):
        Profile.model_validate(sections | {"episode": episode})


def test_profile_without_retry_has_the_digest_it_had():
    assert "retry" not in Profile().model_dump(mode="json")["episode"]
    assert "hindsight" not in Profile().model_dump(mode="json")["warm_start"]
