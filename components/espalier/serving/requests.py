"""What may be asked of the endpoint: OpenAI's completions and chat, checked before anything runs.

Fields beyond OpenAI's have the names that vLLM gives them. What would change the answer and is not
supported is refused by name, never passed over: a client that asks for a penalty must not believe
that it was applied.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias, TypeGuard, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from espalier.serving.refusal import Refusal

_LEAST_TEMPERATURE = 0.01
_MAX_STOPS = 16
_SAYS_NOTHING = frozenset(
    {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}
)
"""Fields of OpenAI's that change no answer."""
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tool_calls": ([],),
}
"""Fields that are not supported, with the values at which they ask for nothing."""
_NO_OTHER_LOGPROBS = (
    "{} is not supported: this endpoint knows the log-probs of the sampled tokens alone; "
    "ask with {}"
)
_FAULTS = 3
"""Of one request that a message tells."""

Prompt: TypeAlias = str | tuple[int, ...]


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_prompts(value: object) -> tuple[Prompt, ...]:
    """A text, token ids, or a list of either: as a list."""
    whole = [value] if isinstance(value, str) or _are_ids(value) else value
    if isinstance(whole, list) and whole:
        prompts = tuple(p if isinstance(p, str) else tuple(p) for p in whole if _is_prompt(p))
        if len(prompts) == len(whole):
            return prompts
    raise ValueError("must be a text, a list of token ids, or a list of either; none empty")


def _is_prompt(value: object) -> TypeGuard[str | list[int]]:
    return (isinstance(value, str) and bool(value)) or _are_ids(value)


def _are_ids(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(i) is int for i in value)


Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=256)]], BeforeValidator(_one_or_many)
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_what_asks_for_nothing(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if not cls._is_idle(name, value)}

    @classmethod
    def _is_idle(cls, name: str, value: object) -> bool:
        if name in cls.model_fields:
            return value is None
        neutral = _NEUTRAL.get(name, ())
        return value is None or name in _SAYS_NOTHING or value in neutral


class StreamOptions(_Part):
    """How a stream ends."""

    include_usage: bool = False


class _Request(_Part):
    """What both end points have in common."""

    model: str = Field(min_length=1, max_length=256)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    """Below 0.01 it is 0: logits divided by less may exceed what single precision holds."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1, lt=1 << 31)
    """Of the likeliest tokens; 0 and -1 draw from all."""
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    n: int = Field(default=1, ge=1)
    stop: Stops = Field(default=[], max_length=_MAX_STOPS)
    stop_token_ids: list[int] = Field(default=[], max_length=_MAX_STOPS)
    ignore_eos: bool = False
    """Whether to write on past the tokens that end a message."""
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    """Whether the answer has the prompt's and its own token ids, as the policy saw them."""
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @field_validator("temperature")
    @classmethod
    def _is_zero_where_it_is_next_to_it(cls, temperature: float) -> float:
        return temperature if temperature >= _LEAST_TEMPERATURE else 0.0

    @model_validator(mode="after")
    def _only_a_stream_has_stream_options(self) -> Self:
        if "stream_options" in self.model_fields_set and not self.stream:
            raise ValueError("stream_options needs stream = true")
        return self


class CompletionRequest(_Request):
    """Body of /v1/completions."""

    prompt: Annotated[tuple[Prompt, ...], BeforeValidator(_as_prompts)] = Field(strict=False)
    logprobs: int | None = Field(default=None, ge=0)
    """0 tells the log-probs of the sampled tokens; those of others are not known."""

    @field_validator("logprobs")
    @classmethod
    def _only_sampled_tokens(cls, logprobs: int | None) -> int | None:
        if logprobs:
            raise ValueError(_NO_OTHER_LOGPROBS.format(logprobs, "logprobs = 0"))
        return logprobs

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer tells them."""
        return self.logprobs is not None


class TextPart(_Part):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(_Part):
    """A message, as the policy's chat template takes it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] = ""
    name: str | None = Field(default=None, max_length=256)
    tool_call_id: str | None = Field(default=None, max_length=256)

    def for_template(self) -> dict[str, str]:
        """Role and text, and whatever else was given."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        extra = self.model_dump(include={"name", "tool_call_id"}, exclude_none=True)
        return {"role": self.role, "content": text, **extra}


class ChatRequest(_Request):
    """Body of /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The later name of max_tokens."""
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0)

    @field_validator("top_logprobs")
    @classmethod
    def _only_sampled_tokens(cls, top_logprobs: int) -> int:
        if top_logprobs:
            raise ValueError(_NO_OTHER_LOGPROBS.format(top_logprobs, "logprobs = true alone"))
        return top_logprobs

    @field_validator("messages")
    @classmethod
    def _somebody_says_something(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        if not any(message.content for message in messages):
            raise ValueError("no message has any content")
        return messages

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer tells the log-probs of the sampled tokens."""
        return self.logprobs


Request = TypeVar("Request", bound=_Request)


def parse(body: bytes, kind: type[Request]) -> Request:
    """Read a request.

    Raises:
        Refusal: it is not JSON, or not such a request; the message names the fields.
    """
    try:
        given: Any = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise Refusal(400, "the body must be a JSON object")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _explained(error) from error


def _explained(error: ValidationError) -> Refusal:
    """The first faults, by field; never what was sent, which may be long or private."""
    faults: dict[str, str] = {}
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(str(part) for part in fault["loc"])[:100] or "request"
        unknown = fault["type"] == "extra_forbidden"
        told = "is not supported here; leave it out" if unknown else _in_plain_words(fault["msg"])
        faults.setdefault(where, told)
    told = [f"{where}: {what}" for where, what in list(faults.items())[:_FAULTS]]
    return Refusal(400, "; ".join(told), param=next(iter(faults)))


def _in_plain_words(message: str) -> str:
    """What pydantic says of a value, without how pydantic says it."""
    return message.removeprefix("Value error, ").replace("Input should be", "must be", 1)
