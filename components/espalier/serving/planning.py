"""Tokenizes a parsed request, checks it against the policy, and plans its answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import TemplateError

from espalier.config import ServingConfig
from espalier.dialects.rendering import rendering
from espalier.dialects.syntax import THINK
from espalier.records import PolicyError
from espalier.rollout.engines.engine import Sampling
from espalier.serving.choice import SamplingOrder
from espalier.wire.requests import ChatRequest, CompletionRequest, Prompt, Refusal

if TYPE_CHECKING:  # they import torch, and probes must be answered before that is loaded
    from espalier.dialects.dialect import Dialect
    from espalier.serving.served_policy import ServedPolicy

_DEFAULT_MAX_TOKENS = 16
"""Default `max_tokens` of completions, OpenAI's own; a chat may fill the context."""


class AnswerPlan(NamedTuple):
    """A request's prompts in token ids, and its answers: `n` for each prompt, in their order."""

    prompts: tuple[tuple[int, ...], ...]
    orders: tuple[SamplingOrder, ...]
    dialect: Dialect | None = None
    """Parser of calls and answers; None where the sampled text is the answer."""

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens for `usage`; each prompt counts once."""
        return sum(len(prompt) for prompt in self.prompts)


def plan(
    request: CompletionRequest | ChatRequest,
    policy: ServedPolicy,
    config: ServingConfig,
    new_seed: Callable[[], int],
) -> AnswerPlan:
    """Tokenize a request and check it against the policy.

    Args:
        request: parsed request.
        policy: policy that answers.
        config: limits of the endpoint.
        new_seed: gives the seed, of 63 bits, of a request without one.

    Raises:
        Refusal: unknown model, too many answers, or a prompt that is empty, invalid or too long.
    """
    policy.source.expect_name(request.model)
    dialect = None
    if isinstance(request, ChatRequest) and request.speaks_of_tools:
        dialect = _dialect(request, policy)
        prompts = (_conversation_ids(request, dialect),)
    elif isinstance(request, ChatRequest):
        prompts = (_chat_ids(request, policy),)
    else:
        if len(request.prompt) > config.max_choices:
            raise Refusal(400, f"at most {config.max_choices} prompts per request", param="prompt")
        prompts = tuple(_prompt_ids(prompt, policy) for prompt in request.prompt)
    if len(prompts) * request.n > config.max_choices:
        raise Refusal(400, f"at most {config.max_choices} answers per request", param="n")
    seed = new_seed() if request.seed is None else request.seed
    limits = [_max_tokens(request, len(prompt), policy) for prompt in prompts]
    orders = tuple(
        _order(request, prompt, limit, _seed_of(seed, number * request.n + copy))
        for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
        for copy in range(request.n)
    )
    if not (isinstance(request, ChatRequest) and request.tools and dialect):
        return AnswerPlan(prompts, orders)
    ends, end_ids = dialect.stop_texts, dialect.stop_ids
    orders = tuple(
        replace(order, kept_stops=(*order.kept_stops, *ends), stop_ids=order.stop_ids | end_ids)
        for order in orders
    )
    return AnswerPlan(prompts, orders, dialect)


def _order(
    request: CompletionRequest | ChatRequest, prompt_ids: tuple[int, ...], limit: int, seed: int
) -> SamplingOrder:
    return SamplingOrder(
        prompt_ids=prompt_ids,
        sampling=Sampling(
            temperature=request.temperature,
            seed=seed,
            top_p=request.top_p,
            top_k=max(0, request.top_k),
        ),
        max_tokens=limit,
        stops=() if request.include_stop_str_in_output else tuple(request.stop),
        kept_stops=tuple(request.stop) if request.include_stop_str_in_output else (),
        stop_ids=frozenset(request.stop_token_ids),
        ignores_end=request.ignore_eos,
        skips_special_tokens=request.skip_special_tokens,
        in_pieces=request.stream,
    )


def _dialect(request: ChatRequest, policy: ServedPolicy) -> Dialect:
    """The policy's dialect for the request's tools."""
    from espalier.dialects.dialect import Dialect  # imported here: it imports jinja2

    try:
        tools = [tool.spec() for tool in request.tools]
        return Dialect(policy.tokenizer, tools, name=policy.dialect)
    except PolicyError as error:
        raise Refusal(400, f"this policy cannot call tools: {error}", param="tools") from error


def _conversation_ids(request: ChatRequest, dialect: Dialect) -> tuple[int, ...]:
    """Token ids of the conversation in the policy's dialect, up to the policy's turn."""
    messages = [message.as_message() for message in request.messages]
    try:
        return dialect.conversation_ids(messages)
    except PolicyError as error:
        raise Refusal(400, f"messages: {error}", param="messages") from error


def _chat_ids(request: ChatRequest, policy: ServedPolicy) -> tuple[int, ...]:
    """Token ids of the conversation in the chat template, up to the policy's turn."""
    from espalier.dialects.control_tokens import control_tokens  # imported here, as in `_dialect`

    controls = control_tokens(policy.tokenizer, THINK)
    messages = []
    for message in request.messages:
        told = message.for_template()
        # the policy's own messages may contain thoughts, whose markers templates look for
        kept = frozenset(THINK if told["role"] == "assistant" else ())
        escaped = {key: controls.as_text(text, but=kept) for key, text in told.items()}
        messages.append({**escaped, "role": told["role"]})  # templates compare the role
    try:
        with rendering(str(policy.tokenizer.chat_template)):
            text = policy.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
    except TemplateError as error:
        raise Refusal(
            400, f"the policy's chat template refuses these messages: {error}", param="messages"
        ) from error
    return _expect_tokens(controls.encode(str(text)), "messages")


def _prompt_ids(prompt: Prompt, policy: ServedPolicy) -> tuple[int, ...]:
    if isinstance(prompt, str):
        # control tokens are encoded, because clients may apply a chat template of their own
        token_ids = policy.tokenizer.encode(prompt, add_special_tokens=False)
        return _expect_tokens(token_ids, "prompt")
    if wrong := next((i for i in prompt if not 0 <= i < policy.vocabulary), None):
        raise Refusal(
            400,
            f"prompt: {wrong} is no token id; ids of this policy are below {policy.vocabulary}",
            param="prompt",
        )
    return prompt


def _expect_tokens(token_ids: Sequence[int], param: str) -> tuple[int, ...]:
    if not token_ids:
        raise Refusal(400, f"{param}: it has no tokens", param=param)
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
            f"{prompt_tokens} tokens of the prompt and {asked} of the answer exceed the context of"
            f" {policy.context}; shorten the prompt, or lower max_tokens",
            param="messages" if isinstance(request, ChatRequest) else "prompt",
            code="context_length_exceeded",
        )
    return asked


def _seed_of(seed: int, number: int) -> int:
    """The seed of an answer: the request's own for the first, derived ones for the others."""
    return seed if number == 0 else random.Random(f"answer:{seed}:{number}").getrandbits(63)


def new_seed() -> int:
    """A random seed of 63 bits from the operating system."""
    return random.SystemRandom().getrandbits(63)
