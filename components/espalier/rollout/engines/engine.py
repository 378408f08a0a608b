"""The contract of an engine: it reads token ids and returns token ids with log-probs; never text.

An episode is one `Session`: `Engine.open` takes its prompt, `observe` appends the environment's
answers, and `sample` lets the policy write one action. Siblings: `lockstep.py` (this process),
`vllm.py` (a server).

    async with engine.serving():
        session = await engine.open(prompt_ids, Sampling(temperature=1.0, seed=7))
        action = await session.sample(max_tokens=40)
        session.observe(observation_ids)
        action = await session.sample(max_tokens=40)
        session.close()
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class KindChoice:
    """Epsilon-tool-choice: with probability epsilon the kind of an action is drawn uniformly.

    After a sampled token `after_id` (`</think>`), the next token comes from
    `(1 - epsilon) * policy + epsilon * uniform(kind_ids)`, and its log-prob is that of the mixture.
    """

    epsilon: float
    after_id: int
    kind_ids: tuple[int, ...]
    """The tags that open each kind of action, such as `<search>` and `<answer>`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of one session are drawn.

    A draw depends only on the seed, the position in the session and the distribution, not on other
    open sessions. Recorded log-probs are those of the distribution drawn from: after
    temperature, top-k, top-p and `kind_choice`, in this order, renormalised.
    """

    temperature: float
    """0 takes the most likely token. Its recorded log-prob is that of temperature 1 and the whole
    vocabulary: under a greedy choice it would always be 0."""
    seed: int
    top_p: float = 1.0
    """Probability mass that the kept tokens must reach; 1 keeps all."""
    top_k: int = 0
    """Number of most likely tokens that are kept; 0 keeps all."""
    kind_choice: KindChoice | None = None


class Completion(NamedTuple):
    """One action of the policy."""

    token_ids: tuple[int, ...]
    """Includes the stop token, or the tokens that spell the closing tag."""
    logprobs: tuple[float, ...]
    """Nats, one per token."""
    stopped: bool
    """Whether the stop rule ended it; False if `max_tokens` was reached first."""
    versions: tuple[int, ...] = ()
    """Version of the weights that sampled each token; empty where it is the one that the engine had
    when the session was opened."""


@dataclass(slots=True)
class EngineCounters:
    """Work done since the engine was built, in tokens."""

    forwarded: int = 0
    """Number of token positions that went through the model."""
    unique: int = 0
    """Each prompt counts once per `serving`, however many sessions share it; every observed or
    sampled token counts. The same for every engine, also for one that forwards common turns
    once."""
    sampled: int = 0
    """Number of tokens that the policy sampled."""
    drafted: int = 0
    """Number of tokens read as a guess of what would be sampled; part of `forwarded`."""
    accepted: int = 0
    """Number of drafted tokens that were then sampled; the others were read in vain."""


class StopRule(Protocol):
    """Decides where an action ends. An engine is built with one; a `Dialect` is one."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an action wherever they are sampled."""
        ...

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end an action once its tokens spell them; empty where `stop_ids` suffice."""
        ...

    def ends_action(self, action_ids: Sequence[int]) -> bool:
        """Whether the last of the tokens sampled so far ends the action."""
        ...


class Session(Protocol):
    """The context of one episode on one engine; used by one coroutine."""

    def observe(self, token_ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample; they are read before the next sample."""
        ...

    async def sample(self, *, max_tokens: int) -> Completion:
        """Sample one action of at least one token, until the stop rule or `max_tokens`."""
        ...

    def close(self) -> None:
        """Free the slot for the next waiting `open`; a second call does nothing."""
        ...


class Engine(Protocol):
    """Samples for many sessions at once."""

    @property
    def policy_version(self) -> int:
        """Version of the current weights; the caller sets it where both share a model in memory."""
        ...

    @policy_version.setter
    def policy_version(self, version: int) -> None: ...

    @property
    def counters(self) -> EngineCounters:
        """Running totals; never reset."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """The error that broke the engine for as long as it serves; None while it can sample."""
        ...

    def serving(self) -> AbstractAsyncContextManager[None]:
        """Return the context manager of one rollout in one event loop.

        Sessions are opened only inside it. Whatever is bound to a loop (a driving task,
        connections) lives only in this context, so one engine may serve several loops one after the
        other. Inside, weights change only by `load_weights`. Engines of one process wait for their
        sessions to end before that; servers exchange weights while sessions are open, and
        `Completion.versions` says which sampled a token.
        """
        ...

    async def open(self, prompt_ids: Sequence[int], sampling: Sampling) -> Session:
        """Begin a session; wait for a free slot, first come, first served."""
        ...

    async def load_weights(self, policy_dir: Path, version: int) -> None:
        """Sample from the weights in `policy_dir` from now on, as `policy_version` `version`.

        Raises:
            PolicyError: the directory holds no policy, or one of another shape.
        """
        ...
