"""The contract of an engine: token ids in, token ids and their log-probs out; never text.

An episode is one `Session`: its prompt is given at `Engine.open`, what the environment says is
appended with `observe`, and `sample` lets the policy write one action. Siblings: `lockstep.py`
(this process, CPU), `vllm.py` (a server).

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
    """Epsilon-tool-choice: now and then the kind of an action is drawn and not chosen.

    Where the sampled token before is `after_id` (`</think>`), the next token comes from
    `(1 - epsilon) * policy + epsilon * uniform(kind_ids)`, and its log-prob is that of the mixture.
    """

    epsilon: float
    after_id: int
    kind_ids: tuple[int, ...]
    """The tags that open an action of some kind: `<search>`, `<answer>`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of one session are drawn.

    A draw is a function of (seed, position in the session) and the distribution alone, never of
    which other sessions are open. Recorded log-probs are those of the distribution that was drawn
    from: after temperature, top-k, top-p and `kind_choice`, in this order, renormalised.
    """

    temperature: float
    """0 takes the most likely token; its log-prob is then that of temperature 1 and full support,
    as a greedy choice has probability one, which tells nothing."""
    seed: int
    top_p: float = 1.0
    """Least mass that the kept most likely tokens have; 1 keeps all."""
    top_k: int = 0
    """Number of most likely tokens that are kept; 0 keeps all."""
    kind_choice: KindChoice | None = None


class Completion(NamedTuple):
    """One action of the policy."""

    token_ids: tuple[int, ...]
    """The stop token, or the tokens that spell the closing tag, are the last of them."""
    logprobs: tuple[float, ...]
    """Nats, one a token."""
    stopped: bool
    """Whether the stop rule ended it; False where `max_tokens` was reached first."""


@dataclass(slots=True)
class EngineCounters:
    """Work done since the engine was built, in tokens."""

    forwarded: int = 0
    """Token positions that went through the model."""
    unique: int = 0
    """What any engine forwards at least once: each prompt once a `serving`, however many sessions
    ask for it, and every observed and sampled token."""
    sampled: int = 0
    """Tokens that the policy wrote."""


class StopRule(Protocol):
    """Where an action ends. An engine is built with it; `policy.rendering.Rendering` is one."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an action wherever they are sampled."""
        ...

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end an action once its tokens spell them; empty where ids say it all."""
        ...

    def ends_action(self, action_ids: Sequence[int]) -> bool:
        """Whether the last of the tokens sampled so far ends the action."""
        ...


class Session(Protocol):
    """One episode's context on one engine; used by one coroutine."""

    def observe(self, token_ids: Sequence[int]) -> None:
        """Append tokens that the policy did not choose; they are read before the next sample."""
        ...

    async def sample(self, *, max_tokens: int) -> Completion:
        """Write one action of at least one token: up to the stop rule, or `max_tokens`."""
        ...

    def close(self) -> None:
        """Give the slot back to the next waiting `open`; a second call does nothing."""
        ...


class Engine(Protocol):
    """Samples for many sessions at once."""

    policy_version: int
    """Of the weights that sample now; the caller sets it where both share one model in memory."""

    @property
    def counters(self) -> EngineCounters:
        """Running totals; never reset."""
        ...

    def serving(self) -> AbstractAsyncContextManager[None]:
        """The time of one roll-out, inside one event loop: sessions are opened within it only.

        Whatever is bound to a loop (a driving task, connections) lives from here to the exit, so
        one engine may serve several loops one after the other. Weights do not change inside,
        other than by `load_weights`.
        """
        ...

    async def open(self, prompt_ids: Sequence[int], sampling: Sampling) -> Session:
        """Begin a session; waits until a slot is free, first come first served."""
        ...

    async def load_weights(self, policy_dir: Path, version: int) -> None:
        """Sample from the weights of `policy_dir` from now on, as `policy_version` `version`.

        Raises:
            PolicyError: the directory holds no such policy, or one of another shape.
        """
        ...
