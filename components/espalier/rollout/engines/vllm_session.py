"""One episode on a vLLM server: its tokens, and the requests that let the policy write more."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from espalier.rollout.engines.engine import (
    Completion,
    EngineCounters,
    KindChoice,
    Sampling,
    StopRule,
)
from espalier.rollout.engines.vllm_client import Answer, VllmClient

_TOKENS_OUT = {
    "logprobs": 0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
    "ignore_eos": True,  # the stop rule alone ends an action
    "min_p": 0.0,
    "repetition_penalty": 1.0,  # a generation_config.json of the policy must not bend the draw
}
"""Of every request: ids and log-probs of all sampled tokens, drawn from what `Sampling` says."""

_IMPOSSIBLE = -9000.0
"""vLLM writes a log-prob of minus infinity as -9999.0, which JSON can carry."""


@dataclass(slots=True, kw_only=True)
class Serving:
    """What the sessions of one `VllmEngine.serving` share."""

    client: VllmClient
    model: str
    weights: str
    """What the server says that it serves; the server's cache is split by it."""
    slots: asyncio.Semaphore
    stop_rule: StopRule
    counters: EngineCounters
    prompts: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])

    def count_prompt(self, prompt_ids: Sequence[int]) -> None:
        """Count a prompt as unique work where no session had it yet."""
        prompt = tuple(prompt_ids)
        if prompt not in self.prompts:
            self.prompts.add(prompt)
            self.counters.unique += len(prompt)


class VllmSession:
    """One episode's tokens, sent whole with each request; the server's prefix cache knows them."""

    def __init__(self, serving: Serving, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        self._serving = serving
        self._sampling = sampling
        self._context = list(prompt_ids)
        self._sampled_last = False
        self._open = True
        serving.count_prompt(prompt_ids)

    def observe(self, token_ids: Sequence[int]) -> None:
        """See `Session.observe`."""
        self._context.extend(token_ids)
        self._serving.counters.unique += len(token_ids)
        self._sampled_last = self._sampled_last and not token_ids

    async def sample(self, *, max_tokens: int) -> Completion:
        """See `Session.sample`."""
        action: list[int] = []
        logprobs: list[float] = []
        stopped = False
        while not stopped and len(action) < max_tokens:
            choice = self._due_choice()
            if choice is None:
                stopped = await self._write(action, logprobs, max_tokens - len(action))
            else:
                stopped = await self._choose(choice, action, logprobs)
        return Completion(tuple(action), tuple(logprobs), stopped)

    def close(self) -> None:
        """See `Session.close`."""
        if self._open:
            self._open = False
            self._serving.slots.release()

    def _due_choice(self) -> KindChoice | None:
        choice = self._sampling.kind_choice
        due = choice is not None and self._sampled_last and self._context[-1] == choice.after_id
        return choice if due else None

    async def _write(self, action: list[int], logprobs: list[float], max_tokens: int) -> bool:
        """Sample up to the stop rule, a choice of kind, or `max_tokens`; whether it stopped."""
        rule, choice = self._serving.stop_rule, self._sampling.kind_choice
        pauses = set() if choice is None else {choice.after_id}
        answer = await self._request(
            max_tokens=max_tokens,
            stop_token_ids=sorted(rule.stop_ids | pauses),
            stop=list(rule.stop_texts),
        )
        written = answer.choices[0]
        self._append(action, written.token_ids)
        logprobs.extend(written.logprobs.token_logprobs)
        paused = action[-1] in pauses and not rule.ends_action(action)
        return written.finish_reason == "stop" and not paused

    async def _choose(self, choice: KindChoice, action: list[int], logprobs: list[float]) -> bool:
        """Draw one token of the mixture of `KindChoice`; whether it ends the action.

        The server draws from the policy and tells the log-probs of all kinds; the coin and the
        uniform draw are thrown here, so that the mixture's log-prob is exact either way.
        """
        answer = await self._request(max_tokens=1, logprob_token_ids=list(choice.kind_ids))
        drawn = answer.choices[0]
        known = {int(name.split(":")[1]): p for name, p in drawn.logprobs.top_logprobs[0].items()}
        dice = random.Random(_seed(self._sampling.seed, len(self._context), "kind"))
        explores = dice.random() < choice.epsilon
        token_id = dice.choice(choice.kind_ids) if explores else drawn.token_ids[0]
        self._append(action, [token_id])
        logprobs.append(_mixed(known[token_id], token_id, choice))
        return self._serving.stop_rule.ends_action(action)

    async def _request(self, **asked: object) -> Answer:
        """One completion of the context, drawn by the session's seed at this position."""
        payload: dict[str, object] = {
            "model": self._serving.model,
            "prompt": self._context,
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "top_k": self._sampling.top_k,
            "seed": _seed(self._sampling.seed, len(self._context), "token"),
            "cache_salt": self._serving.weights,  # never the cached keys of other weights
            **_TOKENS_OUT,
            **asked,
        }
        answer = await self._serving.client.complete(payload)
        counters, sampled = self._serving.counters, len(answer.choices[0].token_ids)
        counters.forwarded += answer.forwarded
        counters.unique += sampled
        counters.sampled += sampled
        return answer

    def _append(self, action: list[int], token_ids: Sequence[int]) -> None:
        action.extend(token_ids)
        self._context.extend(token_ids)
        self._sampled_last = True


def _seed(session_seed: int, position: int, purpose: str) -> int:
    """63 bits of their own for every position of every session and each use of randomness."""
    named = f"{session_seed}/{position}/{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest()) >> 1


def _mixed(policy_logprob: float, token_id: int, choice: KindChoice) -> float:
    """Log-prob of `token_id` in (1 - epsilon) * policy + epsilon * uniform(kind_ids), in nats."""
    policy = 0.0 if policy_logprob < _IMPOSSIBLE else math.exp(policy_logprob)
    uniform = choice.kind_ids.count(token_id) / len(choice.kind_ids)
    return math.log((1 - choice.epsilon) * policy + choice.epsilon * uniform)
