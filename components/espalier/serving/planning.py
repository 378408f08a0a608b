"""From a checked request to the answers that have to be written."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import TemplateError

from espalier.config import ServingConfig
from espalier.rollout.engines.engine import Sampling
from espalier.serving.choice import Order
from espalier.serving.refusal import Refusal
from espalier.serving.requests import ChatRequest, CompletionRequest, Prompt

if TYPE_CHECKING:  # it brings torch, and probes are to be answered before that is there
    from espalier.serving.served_policy import ServedPolicy

_DEFAULT_MAX_TOKENS = 16
"""Of a completion that names none, as OpenAI has it; a chat may fill the context."""


class Plan(NamedTuple):
    """A request's prompts, and its answers: `n` for the first prompt, then for the next."""

    prompts: tuple[tuple[int, ...], ...]
    orders: tuple[Order, ...]

    @property
    def prompt_tokens(self) -> int:
        """As usage counts them: each prompt once."""
        return sum(len(prompt) for prompt in self.prompts)


def plan(
    request: CompletionRequest | ChatRequest,
    policy: ServedPolicy,
    config: ServingConfig,
    new_seed: Callable[[], int],
) -> Plan:
    """Tokenise what was asked, and check it against the policy.

    Args:
        request: parsed.
        policy: that is to answer.
        config: bounds of the endpoint.
        new_seed: for a request that names no seed; 63 bits.

    Raises:
        Refusal: another model, too many answers, a prompt that does not fit or is none.
    """
    if request.model not in policy.source.names:
        raise Refusal(
            404,
            f"the model {request.model!r} is not served here; there is "
            f"{' or '.join(policy.source.names)}",
            param="model",
            code="model_not_found",
        )
    if isinstance(request, ChatRequest):
        prompts = (_chat_ids(request, policy),)
    else:
        prompts = _completion_ids(request, policy, config)
    if len(prompts) * request.n > config.max_choices:
        raise Refusal(400, f"at most {config.max_choices} answers a request", param="n")
    seed = new_seed() if request.seed is None else request.seed
    limits = [_max_tokens(request, len(prompt), policy) for prompt in prompts]
    return Plan(
        prompts,
        tuple(
            _order(request, prompt, limit, _seed_of(seed, number * request.n + copy))
            for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
            for copy in range(request.n)
        ),
    )


def _order(
    request: CompletionRequest | ChatRequest, prompt_ids: tuple[int, ...], limit: int, seed: int
) -> Order:
    return Order(
        prompt_ids=prompt_ids,
        sampling=Sampling(
            temperature=request.temperature,
            seed=seed,
            top_p=request.top_p,
            top_k=max(0, request.top_k),
        ),
        max_tokens=limit,
        stops=tuple(request.stop),
        stop_ids=frozenset(request.stop_token_ids),
        ignores_end=request.ignore_eos,
        includes_stop=request.include_stop_str_in_output,
        skips_special_tokens=request.skip_special_tokens,
        in_pieces=request.stream,
    )


def _chat_ids(request: ChatRequest, policy: ServedPolicy) -> tuple[int, ...]:
    """The conversation in the policy's own template, up to where it is to write."""
    messages = [message.for_template() for message in request.messages]
    try:
        text = policy.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
    except TemplateError as error:
        raise Refusal(
            400, f"the policy's chat template refuses these messages: {error}", param="messages"
        ) from error
    return _encoded(str(text), policy, "messages")


def _completion_ids(
    request: CompletionRequest, policy: ServedPolicy, config: ServingConfig
) -> tuple[tuple[int, ...], ...]:
    if len(request.prompt) > config.max_choices:
        raise Refusal(400, f"at most {config.max_choices} prompts a request", param="prompt")
    return tuple(_prompt_ids(prompt, policy) for prompt in request.prompt)


def _prompt_ids(prompt: Prompt, policy: ServedPolicy) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return _encoded(prompt, policy, "prompt")
    if wrong := next((i for i in prompt if not 0 <= i < policy.vocabulary), None):
        raise Refusal(
            400,
            f"prompt: {wrong} is no token id; this policy has {policy.vocabulary}, from 0",
            param="prompt",
        )
    return prompt


def _encoded(text: str, policy: ServedPolicy, param: str) -> tuple[int, ...]:
    token_ids = policy.tokenizer.encode(text, add_special_tokens=False)
    if not token_ids:
        raise Refusal(400, f"{param}: has no token", param=param)
    return tuple(token_ids)


def _max_tokens(
    request: CompletionRequest | ChatRequest, prompt_tokens: int, policy: ServedPolicy
) -> int:
    left = policy.context - prompt_tokens
    if isinstance(request, ChatRequest):
        asked = request.max_completion_tokens or request.max_tokens or max(left, 1)
    else:
        asked = request.max_tokens or min(_DEFAULT_MAX_TOKENS, max(left, 1))
    if asked > left:
        raise Refusal(
            400,
            f"the prompt has {prompt_tokens} tokens and {asked} are asked for, and the policy reads"
            f" {policy.context}; shorten the prompt, or lower max_tokens",
            param="messages" if isinstance(request, ChatRequest) else "prompt",
            code="context_length_exceeded",
        )
    return asked


def _seed_of(seed: int, number: int) -> int:
    """The seed of a request's answers: its own for the first, others for the rest."""
    return seed if number == 0 else random.Random(f"answer:{seed}:{number}").getrandbits(63)


def new_seed() -> int:
    """63 bits of the system's own randomness."""
    return random.SystemRandom().getrandbits(63)
