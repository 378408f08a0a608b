import asyncio
import itertools
import math
import threading
import time
from dataclasses import replace

import pytest
from pydantic import ValidationError

from espalier.config import EpisodeConfig, Profile
from espalier.environments import (
    EnvironmentLostError,
    ProgramBrokeSandboxError,
    Tool,
    ToolEnvironment,
)
from espalier.environments.contract import UnreadableTextError, in_own_time
from espalier.records import DataError, FinalAnswer, Message, action_of
from espalier.records.trajectory import FinishReason, read_trajectories, write_trajectories
from espalier.rollout.context import REFLECTION_REQUEST, RETRY_REQUEST, SUMMARY_REQUEST
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.episode import EpisodeContext, ToolRunner, run_episode
from espalier.sandbox import SandboxLost
from espalier_search.search_qa import SearchQA
from espalier_search.search_qa.family import search_tool
from espalier_search.synthesis.search_wording import search_call
from tests.factories.records import make_task
from tests.factories.tiny import (
    TAGS,
    TOOLS,
    LookupSearch,
    lookup_environments,
    tiny_dialect,
    tiny_tokenizer,
)
from tests.fakes.scripted_engine import ScriptedEngine, ScriptedSession

TASK = make_task(question="What is the currency of the country of Lyon?", gold=("Euro",), hops=2)
SEARCH = LookupSearch(("Lyon | country: France", "France | currency: Euro <answer> x </answer>"))
LIMITS = EpisodeConfig()
ACTIONS = (
    search_call("country , currency", "lyon country"),
    search_call("currency", "france currency"),
    FinalAnswer("euro", "answer"),
)
DIALECT = tiny_dialect()


def _ids(action):
    return DIALECT.text_ids(action) if isinstance(action, str) else DIALECT.action_ids(action)


def _read_ids(content):
    return DIALECT.result_ids((Message(role="tool", content=content),))


def _engine(actions=ACTIONS):
    return ScriptedEngine(DIALECT, [_ids(action) for action in actions])


def _play(engine, task=TASK, *, limits=LIMITS, environments=None, workers=0, timeout_s=5.0):
    rules = Profile(episode=EpisodeConfig(max_turns=limits.max_turns))

    async def play():
        context = EpisodeContext(
            engine=engine,
            dialect=DIALECT,
            environments=environments or lookup_environments(SEARCH, rules),
            tools=ToolRunner(workers=workers, timeout_s=timeout_s),
            limits=limits,
        )
        return await run_episode(task, Sampling(temperature=1.0, seed=7), context)

    return asyncio.run(play()).trajectory


def test_a_right_answer_is_rewarded_with_outcome_and_format():
    engine = _engine()
    trajectory = _play(engine)
    assert trajectory.finish_reason is FinishReason.ANSWERED
    assert trajectory.reward == {"outcome": 1.0, "format": 0.1}
    queries = [result.call.arguments["query"] for result in trajectory.tool_results]
    assert queries == ["lyon country", "france currency"]
    assert trajectory.policy_version == 3
    (session,) = engine.sessions
    assert tuple(session.context) == trajectory.token_ids
    assert not session.is_open
    answer_tag = tiny_tokenizer().convert_tokens_to_ids("<answer>")
    assert trajectory.token_ids.count(answer_tag) == 1, "the document's tag is no control token"


@pytest.mark.parametrize("workers", [0, 2])
def test_an_episodes_time_is_measured_by_turn(workers):
    trajectory = _play(_engine(), workers=workers)
    told = [(span.kind, span.turn) for span in trajectory.spans
            if span.kind in ("sampling", "tools", "scoring")]  # fmt: skip
    assert told == [
        ("sampling", 0), ("tools", 0), ("sampling", 1), ("tools", 1), ("sampling", 2),
        ("scoring", 2),
    ]  # fmt: skip
    pairs = itertools.pairwise(trajectory.spans)
    assert all(one.end <= other.start for one, other in pairs)


@pytest.mark.parametrize("overflow", ["stop", "truncate", "summarise"])
def test_a_trajectory_survives_its_file(tmp_path, overflow):
    limits = EpisodeConfig(max_tokens=70, max_turn_tokens=16, overflow=overflow)
    trajectory = _play(_engine(), limits=limits)
    write_trajectories(tmp_path / "t.parquet", [trajectory])
    assert read_trajectories(tmp_path / "t.parquet") == [trajectory]


def test_each_token_has_the_version_that_sampled_it(tmp_path):
    """Where weights are exchanged while an episode is under way."""
    engine, versions = _engine(), iter(range(4, 99))

    async def open_on_servers(prompt_ids, sampling):
        session = await ScriptedEngine.open(engine, prompt_ids, sampling)

        async def sample(*, max_tokens):
            action = await ScriptedSession.sample(session, max_tokens=max_tokens)
            first = next(versions)
            cut = len(action.token_ids) // 2
            of_each = (first,) * cut + (first + 1,) * (len(action.token_ids) - cut)
            return action._replace(versions=of_each)

        session.sample = sample
        return session

    engine.open = open_on_servers
    trajectory = _play(engine)
    told = list(zip(trajectory.token_versions, trajectory.action_mask, strict=True))
    sampled = [version for version, on in told if on]
    assert (trajectory.policy_version, sorted(set(sampled))) == (4, [4, 5, 6, 7])
    assert sampled == sorted(sampled)
    assert {version for version, on in told if not on} == {0}
    write_trajectories(tmp_path / "t.parquet", [trajectory])
    assert read_trajectories(tmp_path / "t.parquet") == [trajectory]


def _written(message):
    spelled = message.role == "assistant"
    content = TAGS.write(action_of(message), TOOLS) if spelled else message.content
    return {"role": message.role, "content": content}


def test_token_ids_and_mask_equal_the_chat_templates():
    trajectory = _play(_engine())
    rendered = tiny_tokenizer().apply_chat_template(
        [_written(message) for message in trajectory.messages],
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    # the tags that a document spells are defused in the context, so compare without that turn
    assert tuple(rendered["input_ids"][:40]) == trajectory.token_ids[:40]
    assert tuple(rendered["assistant_masks"][:40]) == trajectory.action_mask[:40]


def test_sampled_ids_are_kept_though_their_text_tokenises_differently():
    spelled = [_ids(letter)[-1] for letter in "lyon"]
    odd = (*_ids("<think> </think> <search>"), *spelled, *_ids("</search>"))
    assert _ids(DIALECT.text(odd)) != odd
    engine = ScriptedEngine(DIALECT, [odd, _ids(ACTIONS[2])])
    trajectory = _play(engine)
    first = trajectory.turns[0]
    assert trajectory.token_ids[first.action_start : first.action_end] == odd
    assert tuple(engine.sessions[0].context) == trajectory.token_ids


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        (["<search> lyon </search>"], FinishReason.PARSE_ERROR),
        ([ACTIONS[0]] * 2, FinishReason.MAX_TURNS),
    ],
)
def test_bad_grammar_and_the_turn_limit_end_an_episode_unpaid(actions, reason):
    trajectory = _play(_engine(actions), limits=EpisodeConfig(max_turns=2))
    assert trajectory.finish_reason is reason
    assert trajectory.total_reward == 0


def test_an_action_without_end_is_cut_off_and_not_executed():
    limits = EpisodeConfig(max_turn_tokens=4)
    trajectory = _play(_engine(["<think> country country country country"]), limits=limits)
    assert trajectory.finish_reason is FinishReason.MAX_TOKENS
    assert sum(trajectory.action_mask) == 4
    assert trajectory.tool_results == ()


def test_a_prompt_that_fills_the_context_is_never_sampled_from():
    engine, long = _engine(), Message(role="user", content="country of Lyon? " * 8)
    limits = EpisodeConfig(max_tokens=16, max_turn_tokens=4)
    trajectory = _play(engine, TASK.model_copy(update={"prompt": (long,)}), limits=limits)
    assert trajectory.finish_reason is FinishReason.MAX_TOKENS
    assert trajectory.token_ids == ()
    assert engine.sessions == []


def test_with_overflow_stop_a_long_observation_ends_the_episode():
    prompt = len(DIALECT.prompt_ids(TASK.prompt))
    action = len(_ids(ACTIONS[0]))
    limits = EpisodeConfig(max_tokens=prompt + action + 3)
    trajectory = _play(_engine(), limits=limits)
    assert trajectory.finish_reason is FinishReason.MAX_TOKENS
    assert len(trajectory.token_ids) == prompt + action
    assert trajectory.window_starts == (0,)


def _assert_windows_are_sessions(engine, trajectory, actions):
    """What was sampled is an action once, and what a new window repeats is none."""
    windows = [trajectory.token_ids[window] for window in trajectory.windows]
    assert windows == [tuple(session.context) for session in engine.sessions]
    assert not any(session.is_open for session in engine.sessions)
    spans = [slice(turn.action_start, turn.action_end) for turn in trajectory.turns]
    assert [trajectory.token_ids[span] for span in spans] == [_ids(action) for action in actions]
    assert all(set(trajectory.action_mask[span]) == {1} for span in spans)
    assert sum(trajectory.action_mask) == sum(span.stop - span.start for span in spans)
    assert len({sampling.seed for sampling in engine.samplings}) == len(windows)


def test_a_new_window_drops_the_oldest_observation():
    prompt = DIALECT.prompt_ids(TASK.prompt)
    lengths = [len(_ids(action)) for action in ACTIONS]
    second = _read_ids(SEARCH.observation("france"))
    # room for the prompt, all actions, and one observation
    room = len(prompt) + sum(lengths) + len(second) + 1
    limits = EpisodeConfig(max_tokens=room, max_turn_tokens=max(lengths), overflow="truncate")
    engine = _engine()
    trajectory = _play(engine, limits=limits)
    assert trajectory.finish_reason is FinishReason.ANSWERED
    expected = (*prompt, *_ids(ACTIONS[0]), *_ids(ACTIONS[1]), *second, *_ids(ACTIONS[2]))
    assert tuple(engine.sessions[1].context) == expected
    _assert_windows_are_sessions(engine, trajectory, ACTIONS)


def test_a_summary_by_the_policy_replaces_the_history():
    summary = "country of lyon : france"
    actions = [_ids(action) for action in ACTIONS]
    longest = max(len(ids) for ids in actions)
    first = _read_ids(SEARCH.observation("lyon"))
    prompt = DIALECT.prompt_ids(TASK.prompt)
    # room for one observation, and after it an action, the request and a summary
    room = len(prompt) + len(actions[0]) + len(first) + 2 * longest
    room += len(_read_ids(SUMMARY_REQUEST))
    limits = EpisodeConfig(max_tokens=room, max_turn_tokens=longest, overflow="summarise")
    engine = _engine([*ACTIONS[:2], summary, ACTIONS[2]])
    trajectory = _play(engine, limits=limits)
    assert trajectory.finish_reason is FinishReason.ANSWERED
    second = _read_ids(SEARCH.observation("france"))
    expected = (*prompt, *_ids(summary), *second, *actions[2])
    assert tuple(engine.sessions[1].context) == expected
    _assert_windows_are_sessions(engine, trajectory, (*ACTIONS[:2], summary, ACTIONS[2]))


def _lost(environment, action):
    raise EnvironmentLostError("the sandbox is gone")


def _broken(environment, action):
    raise ProgramBrokeSandboxError("the program ended its sandbox")


def _broken_when_judged(environment):
    if environment.answer is not None:
        raise ProgramBrokeSandboxError("the answer ended its sandbox")
    return ToolEnvironment.score(environment)


def _stuck(environment, action):
    threading.Event().wait(30)


async def _stuck_and_asynchronous(environment, action):
    await asyncio.sleep(30)


async def _judged_slowly(environment):
    await in_own_time(time.sleep, 0.6)
    return ToolEnvironment.score(environment)


def test_a_judge_that_takes_its_own_time_loses_no_episode():
    trajectory = _play(_engine(), environments=_with(score=_judged_slowly), timeout_s=0.2)
    assert trajectory.finish_reason is FinishReason.ANSWERED
    assert trajectory.is_right


async def _asynchronous(environment, action):
    await asyncio.sleep(0)
    return ToolEnvironment.step(environment, action)


def _with(**methods):
    """Environments with some methods replaced."""
    rules = SearchQA(Profile()).rules((search_tool(SEARCH),))
    environment_class = type("Changed", (ToolEnvironment,), methods)
    return replace(lookup_environments(SEARCH), make=lambda _: environment_class(rules))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_lost_environment_ends_its_episode_unscored(workers):
    ended = []
    rules = SearchQA(Profile()).rules((search_tool(SEARCH),))
    rules = replace(rules, on_end=lambda: ended.append(1))
    lost = type("Lost", (ToolEnvironment,), {"step": _lost})
    environments = replace(lookup_environments(SEARCH), make=lambda _: lost(rules))
    engine = _engine()
    trajectory = _play(engine, environments=environments, workers=workers)
    assert trajectory.finish_reason is FinishReason.SANDBOX_LOST
    assert trajectory.is_lost
    assert trajectory.reward == {}
    assert sum(trajectory.action_mask) == len(_ids(ACTIONS[0]))
    assert not engine.sessions[0].is_open
    assert ended == [1], "what it held is given back"

    def unavailable(task):
        raise EnvironmentLostError("no sandbox is free")

    never_begun = _play(_engine(), environments=unavailable)
    assert never_begun.finish_reason is FinishReason.SANDBOX_LOST


@pytest.mark.parametrize("methods", [{"step": _broken}, {"score": _broken_when_judged}])
def test_whose_program_broke_the_sandbox_has_answered_wrong(methods, tmp_path):
    engine = _engine()
    trajectory = _play(engine, environments=_with(**methods))
    assert trajectory.finish_reason is FinishReason.PROGRAM_BROKE_SANDBOX
    assert trajectory.broke_sandbox
    assert not trajectory.is_lost
    assert trajectory.reward == {"outcome": 0.0, "format": 0.0}
    assert trajectory.answer is None
    assert not engine.sessions[0].is_open
    write_trajectories(tmp_path / "t.parquet", [trajectory])
    assert read_trajectories(tmp_path / "t.parquet") == [trajectory]


def _unreadable(environment, action):
    raise UnreadableTextError("too long for the user's model")


def _unreadable_when_judged(environment):
    if environment.answer is not None:
        raise UnreadableTextError("too long for the judge")
    return ToolEnvironment.score(environment)


@pytest.mark.parametrize("methods", [{"step": _unreadable}, {"score": _unreadable_when_judged}])
def test_a_text_that_nobody_can_read_is_a_wrong_answer(methods):
    trajectory = _play(_engine(), environments=_with(**methods))
    assert trajectory.finish_reason is FinishReason.PARSE_ERROR
    assert not trajectory.is_lost
    assert trajectory.reward == {"outcome": 0.0, "format": 0.0}
    assert trajectory.answer is None


def test_any_familys_tool_says_whose_doing_a_loss_was():
    def search(query: str) -> str:
        """Search the documents."""
        error = SandboxLost("gone")
        error.by_program = query == "lyon country"
        raise error

    tool = Tool(search, call_tag=TOOLS[0].call_tag, result_tag=TOOLS[0].result_tag)
    rules = SearchQA(Profile()).rules((tool,))
    environments = replace(lookup_environments(SEARCH), make=lambda _: rules.environment())
    trajectory = _play(_engine(), environments=environments)
    assert trajectory.finish_reason is FinishReason.PROGRAM_BROKE_SANDBOX
    assert trajectory.tool_results[0].content == "error: the program ended its sandbox: gone"
    others = _engine([ACTIONS[1]])
    assert _play(others, environments=environments).finish_reason is FinishReason.SANDBOX_LOST


@pytest.mark.parametrize("step", [_stuck, _stuck_and_asynchronous])
def test_a_stuck_environment_ends_its_episode_unscored_in_time(step):
    started = time.perf_counter()
    trajectory = _play(_engine(), environments=_with(step=step), workers=1, timeout_s=0.05)
    assert time.perf_counter() - started < 10
    assert trajectory.finish_reason is FinishReason.TIMEOUT
    assert trajectory.is_lost
    assert trajectory.reward == {}


def _raises(task, answer, turns):
    raise RuntimeError("the verifier is broken")


async def _hangs(task, answer, turns):
    await asyncio.sleep(30)


def _says_nothing(task, answer, turns):
    return math.nan


def test_a_verifier_without_a_verdict_is_never_a_zero():
    def judged_by(verify):
        rules = replace(SearchQA(Profile()).rules((search_tool(SEARCH),)), verify=verify)
        return replace(lookup_environments(SEARCH), make=lambda _: rules.environment())

    hung = _play(_engine(), environments=judged_by(_hangs), timeout_s=0.05)
    assert (hung.finish_reason, hung.reward, hung.is_lost) == (FinishReason.TIMEOUT, {}, True)
    with pytest.raises(RuntimeError, match="the verifier is broken"):
        _play(_engine(), environments=judged_by(_raises))
    with pytest.raises(DataError, match="gave nan, outside"):
        _play(_engine(), environments=judged_by(_says_nothing))


def test_environments_in_threads_or_asynchronous_give_the_same_episode():
    plain = _play(_engine())
    assert _play(_engine(), workers=2) == plain
    assert _play(_engine(), environments=_with(step=_asynchronous)) == plain


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bug_is_not_taken_for_a_lost_environment(workers):
    with pytest.raises(ZeroDivisionError):
        _play(_engine(), environments=_with(step=lambda *_: 1 / 0), workers=workers)


def test_a_reward_for_an_action_stays_with_its_turn(tmp_path):
    def paid_for_searches(environment, action):
        taken = ToolEnvironment.step(environment, action)
        return replace(taken, reward=0.25) if taken.messages else taken

    trajectory = _play(_engine(), environments=_with(step=paid_for_searches))
    assert [turn.reward for turn in trajectory.turns] == [0.25, 0.25, 0.0]
    assert trajectory.reward == {"outcome": 1.0, "format": 0.1, "turns": 0.5}
    assert trajectory.total_reward == pytest.approx(1.6)
    write_trajectories(tmp_path / "t.parquet", [trajectory])
    assert read_trajectories(tmp_path / "t.parquet")[0].turns == trajectory.turns


SEARCHED = search_call("country", "lyon country")
WRONG, RIGHT = FinalAnswer("france", "answer"), FinalAnswer("euro", "answer")
REFLECTION = "country is france , currency"


def _retries(attempts=2, **changes):
    retry = {"attempts": attempts, "reflection_tokens": 30}
    return EpisodeConfig(**{"retry": retry} | changes)


def _read(content):
    return DIALECT.result_ids((Message(role="user", content=content),))


def _retried(*actions, episode=None, environments=None):
    engine = _engine(actions)
    return engine, _play(engine, limits=episode or _retries(), environments=environments)


def test_second_attempt_begins_with_the_prompt_and_the_reflection(tmp_path):
    actions = (SEARCHED, WRONG, REFLECTION, SEARCHED, RIGHT)
    engine, trajectory = _retried(*actions)
    second = engine.sessions[1].context
    begun = (*DIALECT.prompt_ids(TASK.prompt), *_ids(REFLECTION), *_read(RETRY_REQUEST))
    assert tuple(second[: len(begun)]) == begun
    assert trajectory.finish_reason is FinishReason.ANSWERED
    assert trajectory.answer == "euro"
    assert trajectory.reward == {"outcome": 1.0, "format": 0.1}
    assert trajectory.attempts == 2
    assert len(trajectory.tool_results) == 2
    said = [message.content for message in trajectory.messages if message.role == "user"]
    assert said == [TASK.question, REFLECTION_REQUEST, RETRY_REQUEST]
    _assert_windows_are_sessions(engine, trajectory, actions)
    unsampled = zip(trajectory.action_mask, trajectory.behavior_logprobs, strict=True)
    assert {logprob for mask, logprob in unsampled if not mask} == {0.0}
    write_trajectories(tmp_path / "t.parquet", [trajectory])
    assert read_trajectories(tmp_path / "t.parquet") == [trajectory]


def test_right_answer_ends_the_episode_at_once():
    engine, trajectory = _retried(SEARCHED, RIGHT)
    _, plain = _retried(SEARCHED, RIGHT, episode=EpisodeConfig())
    assert trajectory == plain
    assert trajectory.attempts == 1
    assert len(engine.sessions) == 1


def test_last_attempt_is_paid_whatever_came_before():
    engine, trajectory = _retried(
        WRONG, REFLECTION, WRONG, "look again", WRONG, episode=_retries(3)
    )
    assert trajectory.attempts == 3
    assert trajectory.reward == {"outcome": 0.0, "format": 0.1}
    assert len(trajectory.windows) == 3
    begun = (*DIALECT.prompt_ids(TASK.prompt), *_ids("look again"), *_read(RETRY_REQUEST))
    assert tuple(engine.sessions[2].context[: len(begun)]) == begun, "the last reflection alone"
    _, cut_off = _retried(" ".join(["lyon"] * 60), REFLECTION, SEARCHED, RIGHT)
    assert (cut_off.attempts, cut_off.reward["outcome"]) == (2, 1)


def test_attempt_without_room_for_a_reflection_is_the_last():
    prompt = len(DIALECT.prompt_ids(TASK.prompt))
    full = prompt + len(_ids(WRONG)) + len(_read(REFLECTION_REQUEST)) + 29
    tight = _retries(max_tokens=full, max_turn_tokens=16)
    engine, trajectory = _retried(WRONG, episode=tight)
    assert trajectory.attempts == 1
    assert trajectory.reward["outcome"] == 0
    assert len(engine.sessions) == 1


def test_no_context_exceeds_the_limit():
    for room in range(90, 140, 5):
        short = _retries(max_tokens=room, max_turn_tokens=16)
        _, trajectory = _retried(SEARCHED, WRONG, REFLECTION, SEARCHED, RIGHT, episode=short)
        assert all(window.stop - window.start <= room for window in trajectory.windows)


class _LostLater(ToolEnvironment):
    """Lost in every attempt but the first."""

    resets = 0

    def reset(self, task):
        _LostLater.resets += 1
        if _LostLater.resets > 1:
            raise EnvironmentLostError("the sandbox is gone")
        return super().reset(task)


def test_loss_in_a_later_attempt_loses_the_episode():
    rules = SearchQA(Profile()).rules((search_tool(SEARCH),))
    environments = replace(lookup_environments(SEARCH), make=lambda _task: _LostLater(rules))
    _, trajectory = _retried(WRONG, REFLECTION, environments=environments)
    assert trajectory.is_lost
    assert trajectory.reward == {}


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"agent": {"command": ["true"]}}, "loop"),
        ({"episode": {"max_tokens": 60}}, "turn"),
        (
            {"environment": {"name": "python_math"}, "self_play": {"name": "absolute_zero"}},
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
