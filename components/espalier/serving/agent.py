"""An agent behind the endpoint: a question is answered by a whole episode, tools included.

`POST /v1/chat/completions` with one message of the user plays an episode in the environments of a
finished run, under its limits, and answers with what the policy answers at its end:

    question                            {"role": "user", "content": "currency of Lyon's country?"}
    search("lyon country")  -> ...      espalier.turns[0]
    search("france currency")  -> ...   espalier.turns[1]
    Euro                                choices[0].message.content
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, field_validator

from espalier.config import Profile
from espalier.records import DataError, EspalierError, Task
from espalier.records.trajectory import FinishReason, Trajectory
from espalier.serving.answering import DONE, sent_event
from espalier.serving.answers import Json
from espalier.serving.engine_thread import ServingThread
from espalier.serving.metrics import Metrics
from espalier.serving.source import Source
from espalier.wire.requests import ChatMessage, ModelRequest, Refusal, RequestPart

if TYPE_CHECKING:  # they import torch, and probes must be answered before that is loaded
    from espalier.rollout.asking import RunTasks
    from espalier.rollout.episode import EpisodeContext
    from espalier.rollout.roller import Roller

_FINISHED: dict[FinishReason, str] = {
    FinishReason.MAX_TURNS: "length",
    FinishReason.MAX_TOKENS: "length",
}
"""OpenAI's `finish_reason` where it is not "stop"."""

_log = logging.getLogger(__name__)


class AgentRequest(ModelRequest):
    """Body of a chat request to an agent: one question."""

    neutral: ClassVar = {
        **RequestPart.neutral,
        "n": (1,),
        "top_p": (1,),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "stop": ([],),
    }
    messages: list[ChatMessage] = Field(min_length=1)
    temperature: float = Field(default=0.0, ge=0, le=2)
    """0, the default, takes the likeliest tokens, as an evaluation does."""

    @field_validator("messages")
    @classmethod
    def _is_one_question(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        roles = [message.role for message in messages]
        if "system" in roles or "developer" in roles:
            raise ValueError(
                "an agent has the instructions that it was trained with: leave out messages of "
                "the system"
            )
        if roles != ["user"]:
            raise ValueError(
                "an agent answers one question, in an episode of its own that knows no earlier "
                "turns: send one message, of the user, with everything that the question needs"
            )
        if not messages[0].text.strip():
            raise ValueError("the question is empty")
        return messages

    @property
    def question(self) -> str:
        """The text of the user's message."""
        return self.messages[0].text


class EpisodeThread(ServingThread["EpisodeContext"]):
    """A thread that plays the episodes of an agent for the caller's event loop."""

    def __init__(self, roller: Roller, *, rows: int) -> None:
        """Play at most `rows` episodes at the same time; others wait in order of arrival."""
        super().__init__(roller.serving)
        self._roller = roller
        self._free = asyncio.Semaphore(rows)

    @property
    def failure(self) -> BaseException | None:
        """The error that broke the engine, or None; an error of one episode breaks nothing."""
        return self._failure or (self._opened and self._opened.engine.failure)

    def play(self, task: Task, *, temperature: float, seed: int) -> asyncio.Future[Trajectory]:
        """Play one episode of a task; to cancel the future ends it."""

        async def played(context: EpisodeContext) -> Trajectory:
            async with self._free:
                return await self._roller.roll_out_one(
                    (task, ()), context, temperature=temperature, name=str(seed)
                )

        return asyncio.wrap_future(self.submit(played))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAgent:
    """A policy that plays in the environments of a run."""

    source: Source
    tasks: RunTasks
    episodes: EpisodeThread
    context: int
    """Tokens of an episode: question, tool calls, results and answer."""

    def task_for(self, request: AgentRequest) -> Task:
        """The task of a request's question.

        Raises:
            Refusal: unknown model, or the run's tasks are more than a question.
        """
        self.source.expect_name(request.model)
        try:
            return self.tasks.of_question(request.question)
        except DataError as error:
            raise Refusal(400, str(error), param="messages") from error


@contextmanager
def open_agent(
    run_dir: Path, policy_dir: Path, source: Source, profile: Profile
) -> Generator[ServedAgent]:
    """Open the environments of a run and a policy that plays in them, in a thread of its own.

    Raises:
        ArtifactError: the run has not published knowledge and tasks, or they are damaged.
        PolicyError: not a policy directory.
        EngineError: the engine does not start.
        DataError: the run's tasks have a state of their own, which no question has.
    """
    from espalier.rollout.asking import opened_agent  # imported here: it imports torch

    with opened_agent(run_dir, for_serving(profile), policy_dir) as (roller, tasks):
        tasks.of_question("")  # refused here, where no question of the run can be answered
        episodes = EpisodeThread(roller, rows=profile.serving.rows)
        episodes.start()
        try:
            yield ServedAgent(
                source=source, tasks=tasks, episodes=episodes, context=profile.episode.max_tokens
            )
        finally:
            episodes.stop()


def for_serving(profile: Profile) -> Profile:
    """A run's profile with the settings under which its agent answers requests.

    Tools run in threads, so that a slow one delays only its own episode. There are no retries: they
    follow an answer that is known to be wrong, and here nobody knows. Drafts and the comparison of
    tokens are for questions that come up again and for training.
    """
    rows = profile.serving.rows
    rollout = profile.rollout.model_copy(
        update={
            "max_rows": rows,
            "tool_workers": max(rows, profile.rollout.tool_workers),
            "compare_every": 0,
            "speculation": "off",
        }
    )
    episode = profile.episode.model_copy(update={"retry": None})
    return profile.model_copy(update={"rollout": rollout, "episode": episode})


@dataclass(slots=True)
class EpisodeAnswering:
    """One request that is being answered by an episode."""

    request: AgentRequest
    task: Task
    agent: ServedAgent
    metrics: Metrics
    seed: int
    answer_id: str
    created: int
    """Seconds since 1970 (UTC)."""
    began_s: float
    """Time at which the request's body had arrived, on the clock of `time.perf_counter`."""
    timeout_s: float

    async def whole(self) -> Json:
        """Wait for the end of the episode, and return the response.

        Raises:
            Refusal: the episode did not end in time, or was lost.
        """
        trajectory = await self._played()
        message = {"role": "assistant", "content": trajectory.answer, "refusal": None}
        return {
            **self._envelope("chat.completion", {"message": message, **_ending(trajectory)}),
            "usage": _usage(trajectory),
            "espalier": _recorded(trajectory),
        }

    async def streamed(self) -> AsyncGenerator[bytes]:
        """The response as server-sent events; the answer is one piece, once the episode has ended.

        A fault is sent as an event, without `[DONE]` after it.
        """
        opening = {"role": "assistant", "content": ""}
        yield self._event({"delta": opening, "finish_reason": None, "logprobs": None})
        try:
            trajectory = await self._played()
        except Refusal as refusal:
            yield sent_event(refusal.body())
            return
        said = {} if trajectory.answer is None else {"content": trajectory.answer}
        yield self._event({"delta": said, **_ending(trajectory)}, espalier=_recorded(trajectory))
        if self.request.stream_options.include_usage:
            yield self._event(None, usage=_usage(trajectory))
        yield DONE

    def _event(self, choice: Json | None, **more: Json) -> bytes:
        return sent_event({**self._envelope("chat.completion.chunk", choice), **more})

    def _envelope(self, kind: str, choice: Json | None) -> Json:
        return {
            "id": f"chatcmpl-{self.answer_id}",
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "system_fingerprint": self.agent.source.fingerprint,
            "choices": [] if choice is None else [{"index": 0, **choice}],
        }

    async def _played(self) -> Trajectory:
        """The episode's trajectory, counted in the metrics.

        Raises:
            Refusal: the episode did not end in time, was lost, or could not hold the question.
        """
        playing = self.agent.episodes.play(
            self.task, temperature=self.request.temperature, seed=self.seed
        )
        try:
            left_s = self.timeout_s - (time.perf_counter() - self.began_s)
            await asyncio.wait([playing], timeout=left_s)
            if not playing.done():
                raise Refusal(
                    504,
                    f"the episode did not end within {self.timeout_s:g} s; ask something simpler, "
                    "or try again when the server is less busy",
                )
            trajectory = _expect_answered(playing, self.agent)
        finally:
            playing.cancel()
        self.metrics.observe_request(time.perf_counter() - self.began_s)
        usage = _usage(trajectory)
        self.metrics.count_tokens(prompt=usage["prompt_tokens"], sampled=usage["completion_tokens"])
        return trajectory


def _expect_answered(playing: asyncio.Future[Trajectory], agent: ServedAgent) -> Trajectory:
    """The trajectory of an episode that ended by what the policy did.

    An answer stands, also where the episode was lost afterwards: it could not be scored, and nobody
    asks for its score.

    Raises:
        Refusal: it ended by an error, was lost before an answer, or the question did not fit.
    """
    if playing.cancelled():
        raise Refusal(500, "the engine was stopped")
    error = playing.exception()
    if isinstance(error, EspalierError):
        raise Refusal(500, str(error)) from error
    if error is not None:
        _log.error("an episode ended by an error", exc_info=error)
        raise Refusal(500, "internal error; see the log") from error
    trajectory = playing.result()
    if trajectory.is_lost and trajectory.answer is None:
        raise Refusal(
            503,
            f"the episode was lost ({trajectory.finish_reason.value}): its tools or its sandbox "
            "failed; try again in a moment",
        )
    if not trajectory.turns and trajectory.finish_reason is FinishReason.MAX_TOKENS:
        raise Refusal(
            400,
            f"the question does not fit into the {agent.context} tokens of an episode "
            "(episode.max_tokens); shorten it",
            param="messages",
            code="context_length_exceeded",
        )
    return trajectory


def _ending(trajectory: Trajectory) -> Json:
    return {"finish_reason": _FINISHED.get(trajectory.finish_reason, "stop"), "logprobs": None}


def _usage(trajectory: Trajectory) -> Json:
    """Tokens of all turns; those that were read and not sampled count once for each context."""
    sampled = sum(trajectory.action_mask)
    total = len(trajectory.token_ids)
    return {
        "prompt_tokens": total - sampled,
        "completion_tokens": sampled,
        "total_tokens": total,
    }


def _recorded(trajectory: Trajectory) -> Json:
    """What the agent did: each of its messages, and the results of the calls in it."""
    results = deque(trajectory.tool_results)
    turns: list[Json] = []
    for message in trajectory.messages:
        if message.role != "assistant":
            continue
        calls: list[Json] = []
        for call in message.tool_calls:
            shown: Json = {"name": call.name, "arguments": call.arguments}
            if results and results[0].call == call:  # calls after the last one were not executed
                result = results.popleft()
                shown |= {"result": result.content, "succeeded": result.succeeded}
            calls.append(shown)
        turns.append(
            {"thought": message.thought, "content": message.content or None, "tool_calls": calls}
        )
    return {"finish_reason": trajectory.finish_reason.value, "turns": turns}
