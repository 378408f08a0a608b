import asyncio
import threading
import time
from dataclasses import replace

import pytest

from espalier.config import EpisodeConfig, Profile
from espalier.environments import (
    EnvironmentLostError,
    ProgramBrokeSandboxError,
    Tool,
    ToolEnvironment,
)
from espalier.records import FinalAnswer, Message, action_of
from espalier.records.trajectory import FinishReason, read_trajectories, write_trajectories
from espalier.rollout.context import SUMMARY_REQUEST
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
from tests.fakes.scripted_engine import ScriptedEngine

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


def _played(engine, task=TASK, *, limits=LIMITS, environments=None, workers=0, timeout_s=5.0):
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

    return asyncio.run(play())


def _play(*args, **settings):
    return _played(*args, **settings).trajectory


def test_a_right_answer_is_rewarded_with_outcome_and_format():
    trajectory = _play(_engine())
    assert trajectory.finish_reason is FinishReason.ANSWERED
    assert trajectory.reward == {"outcome": 1.0, "format": 0.1}
    assert [result.call.arguments["query"] for result in trajectory.tool_results] == [
        "lyon country",
        "france currency",
    ]


def test_a_trajectory_has_the_policy_version_that_sampled_it():
    assert _play(_engine()).policy_version == 3


@pytest.mark.parametrize("overflow", ["stop", "truncate", "summarise"])
def test_a_trajectory_survives_its_file(tmp_path, overflow):
    limits = EpisodeConfig(max_tokens=70, max_turn_tokens=16, overflow=overflow)
    trajectory = _play(_engine(), limits=limits)
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


def test_the_session_saw_exactly_the_tokens_of_the_trajectory():
    engine = _engine()
    trajectory = _play(engine)
    (session,) = engine.sessions
    assert tuple(session.context) == trajectory.token_ids
    assert not session.is_open


def test_sampled_ids_are_kept_though_their_text_tokenises_differently():
    letters = {letter: _ids(letter) for letter in "lyoncut"}
    spelled = [token_id for letter in "lyon" for token_id in letters[letter][-1:]]
    tag = _ids("<think> </think> <search>")
    end = _ids("</search>")
    odd = (*tag, *spelled, *end)
    again = _ids(DIALECT.text(odd))
    assert again != odd

    engine = ScriptedEngine(DIALECT, [odd, _ids(ACTIONS[2])])
    trajectory = _play(engine)
    first = trajectory.turns[0]
    assert trajectory.token_ids[first.action_start : first.action_end] == odd
    assert tuple(engine.sessions[0].context) == trajectory.token_ids


def test_tags_spelled_by_a_document_do_not_become_control_tokens():
    trajectory = _play(_engine())
    answer_tag = tiny_tokenizer().convert_tokens_to_ids("<answer>")
    assert trajectory.token_ids.count(answer_tag) == 1


def test_text_outside_the_grammar_is_a_parse_error():
    trajectory = _play(_engine(["<search> lyon </search>"]))
    assert trajectory.finish_reason is FinishReason.PARSE_ERROR
    assert trajectory.total_reward == 0


def test_searching_for_ever_ends_at_the_turn_limit():
    trajectory = _play(_engine([ACTIONS[0]] * 2), limits=EpisodeConfig(max_turns=2))
    assert trajectory.finish_reason is FinishReason.MAX_TURNS


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


def _truncated():
    """Room for the prompt, all actions, and one observation; the first one has to go."""
    prompt = DIALECT.prompt_ids(TASK.prompt)
    lengths = [len(_ids(action)) for action in ACTIONS]
    second = _read_ids(SEARCH.observation("france"))
    limits = EpisodeConfig(
        max_tokens=len(prompt) + sum(lengths) + len(second) + 1,
        max_turn_tokens=max(lengths),
        overflow="truncate",
    )
    engine = _engine()
    return engine, _play(engine, limits=limits)


def test_a_new_window_drops_the_oldest_observation():
    engine, trajectory = _truncated()
    assert trajectory.finish_reason is FinishReason.ANSWERED
    first, second = engine.sessions
    assert not first.is_open
    assert not second.is_open
    expected = (
        *DIALECT.prompt_ids(TASK.prompt),
        *_ids(ACTIONS[0]),
        *_ids(ACTIONS[1]),
        *_read_ids(SEARCH.observation("france")),
        *_ids(ACTIONS[2]),
    )
    assert tuple(second.context) == expected


def test_each_window_is_recorded_as_its_session_saw_it():
    engine, trajectory = _truncated()
    windows = [trajectory.token_ids[window] for window in trajectory.windows]
    assert windows == [tuple(session.context) for session in engine.sessions]


def test_tokens_repeated_in_a_new_window_are_no_actions():
    _, trajectory = _truncated()
    lengths = [len(_ids(action)) for action in ACTIONS]
    assert sum(trajectory.action_mask) == sum(lengths)
    for turn, action in zip(trajectory.turns, ACTIONS, strict=True):
        spanned = trajectory.token_ids[turn.action_start : turn.action_end]
        assert spanned == _ids(action)
        assert set(trajectory.action_mask[turn.action_start : turn.action_end]) == {1}


def test_a_new_window_has_another_seed():
    engine, _ = _truncated()
    seeds = {sampling.seed for sampling in engine.samplings}
    assert len(seeds) == 2


SUMMARY = "country of lyon : france"


def _summarised():
    """Room for one observation, and after it an action, the request and a summary."""
    actions = [_ids(action) for action in ACTIONS]
    longest = max(len(ids) for ids in actions)
    request = _read_ids(SUMMARY_REQUEST)
    first = _read_ids(SEARCH.observation("lyon"))
    prompt = DIALECT.prompt_ids(TASK.prompt)
    room = len(prompt) + len(actions[0]) + len(first) + 2 * longest + len(request)
    limits = EpisodeConfig(max_tokens=room, max_turn_tokens=longest, overflow="summarise")
    engine = _engine([*ACTIONS[:2], SUMMARY, ACTIONS[2]])
    return engine, _play(engine, limits=limits)


def test_a_summary_by_the_policy_replaces_the_history():
    engine, trajectory = _summarised()
    assert trajectory.finish_reason is FinishReason.ANSWERED
    _, second = engine.sessions
    assert tuple(second.context) == (
        *DIALECT.prompt_ids(TASK.prompt),
        *_ids(SUMMARY),
        *_read_ids(SEARCH.observation("france")),
        *_ids(ACTIONS[2]),
    )


def test_a_summary_is_an_action_of_its_window():
    engine, trajectory = _summarised()
    windows = [trajectory.token_ids[window] for window in trajectory.windows]
    assert windows == [tuple(session.context) for session in engine.sessions]
    spans = [trajectory.token_ids[t.action_start : t.action_end] for t in trajectory.turns]
    assert spans == [_ids(text) for text in (*ACTIONS[:2], SUMMARY, ACTIONS[2])]
    assert sum(trajectory.action_mask) == sum(len(span) for span in spans)


class Failing(ToolEnvironment):
    def step(self, action):
        raise EnvironmentLostError("the sandbox is gone")


class Breaking(ToolEnvironment):
    """The policy's program ends its sandbox, at a step or when its answer is judged."""

    breaks_when = "step"

    def step(self, action):
        if self.breaks_when == "step":
            raise ProgramBrokeSandboxError("the program ended its sandbox")
        return super().step(action)

    def score(self):
        if self.breaks_when == "score" and self.answer is not None:
            raise ProgramBrokeSandboxError("the answer ended its sandbox")
        return super().score()


class BreakingWhenJudged(Breaking):
    breaks_when = "score"


class Stuck(ToolEnvironment):
    def step(self, action):
        threading.Event().wait(30)


class StuckAndAsynchronous(ToolEnvironment):
    async def step(self, action):
        await asyncio.sleep(30)


class Asynchronous(ToolEnvironment):
    async def step(self, action):
        await asyncio.sleep(0)
        return super().step(action)


class Buggy(ToolEnvironment):
    def step(self, action):
        raise ZeroDivisionError


def _made_by(environment_class):
    rules = SearchQA(Profile()).rules((search_tool(SEARCH),))
    return replace(lookup_environments(SEARCH), make=lambda _: environment_class(rules))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_lost_environment_ends_its_episode_unscored(workers):
    engine = _engine()
    trajectory = _play(engine, environments=_made_by(Failing), workers=workers)
    assert trajectory.finish_reason is FinishReason.SANDBOX_LOST
    assert trajectory.is_lost
    assert trajectory.reward == {}
    assert sum(trajectory.action_mask) == len(_ids(ACTIONS[0]))
    assert not engine.sessions[0].is_open


@pytest.mark.parametrize("environment_class", [Breaking, BreakingWhenJudged])
def test_whose_program_broke_the_sandbox_has_answered_wrong(environment_class, tmp_path):
    engine = _engine()
    trajectory = _play(engine, environments=_made_by(environment_class))
    assert trajectory.finish_reason is FinishReason.PROGRAM_BROKE_SANDBOX
    assert trajectory.broke_sandbox
    assert not trajectory.is_lost
    assert trajectory.reward == {"outcome": 0.0, "format": 0.0}
    assert trajectory.answer is None
    assert not engine.sessions[0].is_open
    write_trajectories(tmp_path / "t.parquet", [trajectory])
    assert read_trajectories(tmp_path / "t.parquet") == [trajectory]


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


def test_a_lost_episode_gives_back_what_it_held():
    ended = []
    rules = replace(
        SearchQA(Profile()).rules((search_tool(SEARCH),)), on_end=lambda: ended.append(1)
    )
    environments = replace(lookup_environments(SEARCH), make=lambda _: Failing(rules))
    _play(_engine(), environments=environments)
    assert ended == [1]


def test_an_environment_that_cannot_be_set_up_is_lost():
    def unavailable(task):
        raise EnvironmentLostError("no sandbox is free")

    assert _play(_engine(), environments=unavailable).finish_reason is FinishReason.SANDBOX_LOST


@pytest.mark.parametrize("environment_class", [Stuck, StuckAndAsynchronous])
def test_a_stuck_environment_ends_its_episode_unscored_in_time(environment_class):
    started = time.perf_counter()
    trajectory = _play(
        _engine(), environments=_made_by(environment_class), workers=1, timeout_s=0.05
    )
    assert time.perf_counter() - started < 10
    assert trajectory.finish_reason is FinishReason.TIMEOUT
    assert trajectory.is_lost
    assert trajectory.reward == {}


def test_an_asynchronous_environment_gives_the_same_episode():
    assert _play(_engine(), environments=_made_by(Asynchronous)) == _play(_engine())


def test_an_environment_in_a_thread_gives_the_same_episode():
    assert _play(_engine(), workers=2) == _play(_engine())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bug_is_not_taken_for_a_lost_environment(workers):
    with pytest.raises(ZeroDivisionError):
        _play(_engine(), environments=_made_by(Buggy), workers=workers)


def test_a_reward_for_an_action_stays_with_its_turn(tmp_path):
    class PaidByTheSearch(ToolEnvironment):
        def step(self, action):
            taken = super().step(action)
            return replace(taken, reward=0.25) if taken.messages else taken

    environments = _made_by(PaidByTheSearch)
    trajectory = _play(_engine(), environments=environments)
    assert [turn.reward for turn in trajectory.turns] == [0.25, 0.25, 0.0]
    assert trajectory.reward == {"outcome": 1.0, "format": 0.1, "turns": 0.5}
    assert trajectory.total_reward == pytest.approx(1.6)
    write_trajectories(tmp_path / "t.parquet", [trajectory])
    assert read_trajectories(tmp_path / "t.parquet")[0].turns == trajectory.turns
