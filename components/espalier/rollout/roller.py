"""Rolls out tasks under one policy: many concurrent episodes, as coroutines over an engine."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from transformers import PreTrainedTokenizerBase

from espalier.config import ExplorationConfig, Profile, RolloutConfig
from espalier.dialects.dialect import Dialect
from espalier.dialects.syntax import THINK
from espalier.environments import Environments
from espalier.environments.losses import Attempts
from espalier.policy.loading import Policy, load_policy_for_sampling, load_tokenizer
from espalier.records import PolicyError, Task
from espalier.records.trajectory import FinishReason, Trajectory
from espalier.rollout.closed_book import ClosedBookQuestion, closed_book_answer
from espalier.rollout.context import EpisodeTranscript
from espalier.rollout.engines.engine import Completion, Engine, KindChoice, Sampling
from espalier.rollout.engines.lockstep import lockstep_engine
from espalier.rollout.engines.vllm import VllmServerEngine
from espalier.rollout.episode import EpisodeContext, FinishedEpisode, ToolRunner, run_episode
from espalier.rollout.player import Player, installed_player
from espalier.rollout.stragglers import Stragglers, all_ended
from espalier.rollout.waits import EpisodeWaits, exit_if_hung, hangs_after_s

T = TypeVar("T")


def kind_choice(dialect: Dialect, epsilon: float) -> KindChoice | None:
    """Return the exploration of `rollout.exploration.kind_epsilon`; None where it is 0.

    Raises:
        PolicyError: no single token of the dialect decides the kind of an action.
    """
    if epsilon == 0:
        return None
    if not dialect.kind_markers:
        raise PolicyError(
            f"rollout.exploration.kind_epsilon={epsilon} draws the tag that opens an action, and "
            f'the dialect "{dialect.syntax.name}" has none. Set it to 0'
        )
    ids = {tag: dialect.marker_id(tag) for tag in (THINK[1], *dialect.kind_markers)}
    spelled = [tag for tag, token_id in ids.items() if token_id is None]
    if spelled:
        raise PolicyError(
            f"rollout.exploration.kind_epsilon={epsilon} draws the tag that opens an action, but "
            f"the policy's tokenizer writes {', '.join(spelled)} in several tokens. Set it to 0, "
            "or add the tags to the tokenizer and train their embeddings"
        )
    after_id, *kind_ids = (token_id for token_id in ids.values() if token_id is not None)
    return KindChoice(epsilon=epsilon, after_id=after_id, kind_ids=tuple(kind_ids))


class DriftCount:
    """Compares every `rollout.compare_every`-th episode with the chat template's whole rendering.

    Sampled tokens cannot drift, as they are never encoded again. Observations can, if a template
    renders a message differently once others follow it.
    """

    def __init__(self, dialect: Dialect, config: RolloutConfig) -> None:
        self.turns = 0
        """Number of turns compared."""
        self.drifted = 0
        """Number of compared turns whose tokens differ."""
        self._dialect = dialect
        self._config = config
        self._episodes = 0

    def compare(self, episode: FinishedEpisode) -> None:
        """Compare a finished episode, or skip it.

        Raises:
            PolicyError: a turn drifted, and the profile makes that an error.
        """
        self._episodes += 1
        every = self._config.compare_every
        if not every or (self._episodes - 1) % every:
            return
        drifted = episode.dialect.drifted_turns(episode.prompt, episode.pieces)
        self.turns += max(1, len(episode.pieces))
        self.drifted += drifted
        if drifted and self._config.token_drift == "fail":
            raise PolicyError(
                f"task {episode.trajectory.task_id}: {drifted} of {len(episode.pieces)} turns have "
                "other tokens than the chat template gives for the whole conversation. The "
                "template renders a message differently once others follow it: correct it, or set "
                'rollout.token_drift = "count" to train on the tokens as they were sampled'
            )


def dialect_of(
    tokenizer: PreTrainedTokenizerBase, environments: Environments, profile: Profile
) -> Dialect:
    """Return the dialect of the profile's policy, with the environments' tools.

    Raises:
        PolicyError: the tokenizer has no chat template.
    """
    return Dialect(
        tokenizer,
        environments.tools,
        name=profile.policy.dialect,
        instructions=environments.instructions,
    )


def _ignored(_lost: Trajectory) -> None:
    """Ignore a lost trajectory: the default of `on_lost`, as it is returned with the others."""


def _not_followed(_place: int, _ended: Trajectory) -> None:
    """Ignore a trajectory that has ended: the default of `on_ended`."""


EpisodeStart = tuple[Task, Sequence[Completion]]
"""A task, and the policy's first messages; no messages for an episode from its beginning."""


def start_after(task: Task, trajectory: Trajectory, turns: int) -> EpisodeStart:
    """Return the start of an episode that repeats the first `turns` messages of `trajectory`.

    Args:
        task: the trajectory's task.
        trajectory: one window long; what was cut out of a context cannot be repeated.
        turns: at least 1, and fewer than the trajectory has.
    """
    assert len(trajectory.windows) == 1, "an episode of several contexts is not repeated"
    spans = [slice(turn.action_start, turn.action_end) for turn in trajectory.turns[:turns]]
    return task, tuple(
        Completion(trajectory.token_ids[span], trajectory.behavior_logprobs[span], stopped=True)
        for span in spans
    )


class RunsCoroutine(Protocol):
    """Runs a coroutine in an event loop and returns its result, as `asyncio.run` does."""

    def __call__(self, main: Coroutine[Any, Any, T], /) -> T:
        """Return the coroutine's result, or raise its error."""
        ...


_JUDGING_WORKERS = 8
"""Fewest threads that judge the attempts of agents."""


class TrajectorySampler(Protocol):
    """Samples trajectories of tasks; the part of a `Roller` that stages use."""

    def roll_out(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """Sample `samples` trajectories of every task, as `Roller.roll_out` does."""
        ...


class RolloutCounts(NamedTuple):
    """What one or several rollers have sampled so far."""

    seconds: float = 0.0
    """Duration of the rollouts; 0 where they overlap with other work."""
    tokens: int = 0
    """Tokens read and sampled (`Roller.total_tokens`)."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drifted_turns: int = 0
    """Turns with other tokens than the chat template gives (`DriftCount`)."""
    compared_turns: int = 0

    @classmethod
    def total(cls, counts: Iterable[RolloutCounts]) -> Self:
        """Return the sums."""
        return cls(*(sum(column) for column in zip(cls(), *counts, strict=True)))


class Roller:
    """Samples trajectories from a policy, which may be updated between calls."""

    def __init__(
        self,
        engine: Engine,
        dialect: Dialect,
        environments: Environments,
        profile: Profile,
        *,
        for_training: bool = False,
        run: RunsCoroutine = asyncio.run,
    ) -> None:
        """Store the parts that episodes are run with.

        Args:
            engine: samples tokens; built with `dialect` as its stop rule.
            dialect: dialect of the policy.
            environments: makes the environment of a task.
            profile: only its sections `agent`, `episode` and `rollout` matter, and
                `training.stragglers` for training.
            for_training: the policy learns from the episodes: they explore (`rollout.exploration`),
                and lost ones are dropped. Otherwise they are played again
                (`rollout.max_replays`), so that scores can be compared.
            run: runs a rollout's coroutine in the event loop that its engine belongs to.
        """
        self.dialect = dialect
        self.drift = DriftCount(dialect, profile.rollout)
        self.seconds = 0.0
        self.losses: Counter[FinishReason] = Counter()
        """Number of lost attempts by finish reason, including those that were played again."""
        self.replays = 0
        """Number of attempts that repeated a lost episode."""
        self.waits = EpisodeWaits(hangs_after_s(profile))
        """What the episodes wait for."""
        rule = profile.training.stragglers if for_training else None
        self.stragglers = None if rule is None else Stragglers(rule)
        """Closes groups without their slowest episodes; None waits for all."""
        self._run = run
        self._engine = engine
        self._environments = environments
        self._profile = profile
        self._exploration = profile.rollout.exploration if for_training else ExplorationConfig()
        self._max_replays = 0 if for_training else profile.rollout.max_replays
        self._kind_choice = kind_choice(dialect, self._exploration.kind_epsilon)

    @classmethod
    def local(
        cls,
        policy: Policy,
        environments: Environments,
        profile: Profile,
        *,
        for_training: bool = False,
    ) -> Self:
        """Return a roller over a policy in memory, which a trainer may change between calls.

        It samples on the policy's device; on a GPU in the profile's number format, as
        `lockstep.decoder_for` describes.
        """
        dialect = dialect_of(policy.tokenizer, environments, profile)
        config = profile.rollout
        engine = lockstep_engine(
            policy.model,
            dialect,
            max_rows=config.max_rows,
            speculation=config.speculation,
            hardware=profile.hardware,
        )
        return cls(
            engine,
            dialect,
            environments,
            profile,
            for_training=for_training,
        )

    @classmethod
    def open(
        cls,
        policy_dir: Path,
        environments: Environments,
        profile: Profile,
        *,
        for_training: bool = False,
    ) -> Self:
        """Return a roller over the policy in `policy_dir`, by the profile's engine.

        Raises:
            PolicyError: `policy_dir` is not a policy directory.
            EngineError: the server that the profile names cannot be used.
        """
        if profile.rollout.engine == "lockstep":
            return cls.local(
                load_policy_for_sampling(policy_dir, profile.hardware),
                environments,
                profile,
                for_training=for_training,
            )
        dialect = dialect_of(load_tokenizer(policy_dir), environments, profile)
        config = profile.rollout
        engine = VllmServerEngine(config.vllm, dialect, max_rows=config.max_rows)
        roller = cls(
            engine,
            dialect,
            environments,
            profile,
            for_training=for_training,
        )
        roller.load_weights(policy_dir, version=0)
        return roller

    @property
    def policy_version(self) -> int:
        """Version of the weights; the publisher sets it after updating a policy in memory."""
        return self._engine.policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._engine.policy_version = version

    @property
    def action_tokens(self) -> int:
        """Number of tokens sampled so far."""
        return self._engine.counters.sampled

    @property
    def total_tokens(self) -> int:
        """Number of tokens read and sampled so far, each as `EngineCounters.unique` counts it."""
        return self._engine.counters.unique

    @property
    def forwarded_tokens(self) -> int:
        """Number of tokens forwarded by the model so far; fewer where episodes share turns."""
        return self._engine.counters.forwarded

    @property
    def drafted_tokens(self) -> int:
        """Number of tokens drafted from earlier episodes so far (`rollout.speculation`)."""
        return self._engine.counters.drafted

    @property
    def accepted_tokens(self) -> int:
        """Number of drafted tokens that the policy then sampled."""
        return self._engine.counters.accepted

    @property
    def counts(self) -> RolloutCounts:
        """Return what this roller has sampled so far."""
        return RolloutCounts(
            seconds=self.seconds,
            tokens=self.total_tokens,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            drifted_turns=self.drift.drifted,
            compared_turns=self.drift.turns,
        )

    def load_weights(self, policy_dir: Path, version: int) -> None:
        """Sample from the weights in `policy_dir` from now on, as version `version`."""
        self._run(self.exchange_weights(policy_dir, version))

    async def exchange_weights(self, policy_dir: Path, version: int) -> None:
        """As `load_weights`, also inside `serving`, where the engine allows it there."""
        await self._engine.load_weights(policy_dir, version)

    def roll_out(
        self,
        tasks: Sequence[Task],
        *,
        samples: int,
        temperature: float,
        seed: int,
        on_lost: Callable[[Trajectory], None] = _ignored,
        on_ended: Callable[[int, Trajectory], None] = _not_followed,
    ) -> list[Trajectory]:
        """Sample `samples` trajectories of every task.

        Args:
            tasks: any number of tasks.
            samples: trajectories per task; those of one task share a group id.
            temperature: 0 is greedy.
            seed: seed of the draws. With tools on the event loop (`rollout.tool_workers = 0`), the
                same call with the same weights gives the same trajectories. Where it was made
                before and `rollout.speculation` is not off, log-probs may differ by rounding.
            on_lost: called with each trajectory that stays lost, at once; if it raises, the rollout
                ends with that error.
            on_ended: called with each trajectory as it ends, and its place in what is returned.

        Returns:
            len(tasks) * samples trajectories, task by task. Those whose environment failed in every
            attempt are among them: they are `is_lost`, and not scored.
        """
        starts = [(task, ()) for task in tasks for _ in range(samples)]
        with self._timed():
            return self._run(
                self._roll_out(
                    starts,
                    temperature=temperature,
                    seed=seed,
                    on_lost=on_lost,
                    on_ended=on_ended,
                    group_size=samples,
                )
            )

    def complete(
        self, starts: Sequence[EpisodeStart], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """Sample `samples` continuations of each episode in `starts`.

        Returns:
            len(starts) * samples trajectories, start by start, including their first messages.
        """
        if self._profile.agent.plays and starts:
            raise PolicyError(
                "an episode of `[agent]` cannot be continued from its middle: label and train "
                "reward models with the built-in loop"
            )
        repeated = [start for start in starts for _ in range(samples)]
        with self._timed():
            return self._run(
                self._roll_out(
                    repeated, temperature=temperature, seed=seed, on_lost=_ignored, group_size=1
                )
            )

    def closed_book(self, questions: Sequence[ClosedBookQuestion]) -> list[str | None]:
        """Return the policy's greedy answers from memory, as `closed_book_answer` gives them."""

        async def answered() -> list[str | None]:
            async with self.serving() as context:
                answers = (closed_book_answer(question, context) for question in questions)
                return await self.waits.by_the_deadline(asyncio.gather(*answers))

        with self._timed():
            return self._run(answered())

    @contextmanager
    def _timed(self) -> Generator[None]:
        """Add the time of the block, in which episodes are sampled, to `seconds`."""
        started = time.perf_counter()
        self.waits.progress()
        with exit_if_hung(self.waits.overdue):
            yield
        self.seconds += time.perf_counter() - started

    async def _roll_out(
        self,
        starts: Sequence[EpisodeStart],
        *,
        temperature: float,
        seed: int,
        on_lost: Callable[[Trajectory], None],
        group_size: int,
        on_ended: Callable[[int, Trajectory], None] = _not_followed,
    ) -> list[Trajectory]:
        async with self.serving() as context:

            async def followed(place: int, start: EpisodeStart) -> Trajectory:
                name = f"{seed}:{place}"
                ended = await self.roll_out_one(
                    start, context, temperature=temperature, name=name, on_lost=on_lost
                )
                on_ended(place, ended)
                return ended

            episodes = [
                asyncio.create_task(followed(place, start)) for place, start in enumerate(starts)
            ]
            ended = all_ended(episodes, group_size=group_size, stragglers=self.stragglers)
            return await self.waits.by_the_deadline(asyncio.create_task(ended))

    async def roll_out_group(
        self, task: Task, context: EpisodeContext, *, temperature: float, names: Sequence[str]
    ) -> list[Trajectory]:
        """Sample a trajectory for each name, all concurrently, as `roll_out_one` does."""
        episodes = [
            asyncio.create_task(
                self.roll_out_one((task, ()), context, temperature=temperature, name=name)
            )
            for name in names
        ]
        return await all_ended(episodes, group_size=len(episodes), stragglers=self.stragglers)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[EpisodeContext]:
        """Yield the context for calls of `roll_out_one`, also concurrent ones; not reentrant."""
        config = self._profile.rollout
        workers = config.tool_workers
        if self._profile.agent.plays:  # their calls are answered on this loop meanwhile
            workers = max(workers, _JUDGING_WORKERS)
        tools = ToolRunner(workers=workers, timeout_s=config.tool_timeout_s)
        async with self._engine.serving(), self._agent(tools) as agent:
            yield EpisodeContext(
                engine=self._engine,
                dialect=self.dialect,
                environments=self._environments,
                tools=tools,
                limits=self._profile.episode,
                agent=agent,
                waits=self.waits,
            )

    @asynccontextmanager
    async def _agent(self, tools: ToolRunner) -> AsyncGenerator[Player | None]:
        """Yield the player that replaces the built-in loop, where the profile names an agent."""
        if not self._profile.agent.plays:
            yield None
            return
        open_player = installed_player(self._profile.agent)
        async with open_player(
            self._profile.agent,
            self._engine,
            self.dialect,
            self._environments,
            tools,
            self._profile.episode,
        ) as player:
            yield player

    async def roll_out_one(
        self,
        start: EpisodeStart,
        context: EpisodeContext,
        *,
        temperature: float,
        name: str,
        on_lost: Callable[[Trajectory], None] = _ignored,
    ) -> Trajectory:
        """Sample one trajectory; one lost to infrastructure is sampled again a few times.

        Args:
            start: the task, and messages that are replayed first, as in `run_episode`.
            context: the context that `serving` yields.
            temperature: 0 is greedy.
            name: seeds the episode's draws; those of a replay differ.
            on_lost: called with the trajectory if it stays lost.

        Returns:
            The trajectory; that of a straggler is lost, and has no tokens.
        """
        task, begun = start
        attempts = Attempts(max_replays=self._max_replays)
        try:
            while True:
                again = attempts.number
                self.replays += again > 0
                sampling = self._sampling(temperature, f"{name}:replay{again}" if again else name)
                if context.agent is not None:
                    with self.waits.wait(task.task_id, "the agent's program"):
                        trajectory = await context.agent.play(task, sampling)
                else:
                    episode = await run_episode(task, sampling, context, begun)
                    trajectory = episode.trajectory
                    if not trajectory.is_lost:
                        self.drift.compare(episode)
                if not (trajectory.is_lost and attempts.again_after(trajectory.finish_reason)):
                    break
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if self.stragglers is None or not self.stragglers.has_cut(own):
                raise
            trajectory = EpisodeTranscript(task).trajectory(None, FinishReason.TIMEOUT, {})
            attempts.losses.append(trajectory.finish_reason)
        self.losses.update(attempts.losses)
        self.waits.progress()
        if trajectory.is_lost:
            on_lost(trajectory)
        return trajectory

    def _sampling(self, temperature: float, name: str) -> Sampling:
        seed = random.Random(f"episode:{name}").getrandbits(63)
        return Sampling(
            temperature=temperature,
            seed=seed,
            top_p=self._exploration.top_p,
            top_k=self._exploration.top_k,
            kind_choice=self._kind_choice,
        )
