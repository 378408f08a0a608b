"""OpenAI-style completion and chat requests, validated before anything runs, and refusals.

Fields beyond OpenAI's have the names that vLLM gives them. A field that would change the answer and
is not supported is refused by name, never ignored: a client that asks for a penalty must not
believe that it was applied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, TypeGuard, TypeVar

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

from espalier.dialects.syntax import MAX_CALLS, parsed_json
from espalier.records import Message, ToolCall
from espalier.records.message import ToolSpec

CLIENT_GONE = 499
"""Status of a request whose client left; counted in the metrics, never sent."""

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "invalid_request_error",  # as OpenAI's own API has it
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    431: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_HEADERS = {
    401: {"www-authenticate": "Bearer"},
    429: {"retry-after": "1"},
    503: {"retry-after": "1"},
}
_LEAST_TEMPERATURE = 0.01
_MAX_STOPS = 16
MAX_TOOLS = 128
"""OpenAI's own limit on tools; their schemas are part of the prompt."""
_IGNORED = frozenset(
    {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}
)
"""OpenAI fields that do not change an answer."""
_REPLAYED = _IGNORED | {"annotations", "cache_control", "index", "logprobs", "parsed"}
"""Fields of an earlier answer, whole or streamed, that a client sends back with it."""
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
"""Fields that are not supported, with the values at which they have no effect."""
_NO_OTHER_LOGPROBS = (
    "{} is not supported: this endpoint knows the log-probs of the sampled tokens alone; "
    "ask with {}"
)
_FAULTS = 3
"""How many faults of one request a refusal lists."""

Prompt: TypeAlias = str | tuple[int, ...]


class Refusal(Exception):
    """A request refused in the shape of OpenAI's API; the text is written for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the refusal.

        Args:
            status: HTTP status.
            message: what was wrong, and what to do.
            param: the request field that is at fault.
            code: one of OpenAI's error codes.
            headers: response headers, besides those of the status.
        """
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = {**_HEADERS.get(status, {}), **(headers or {})}
        """Response headers, besides type and length."""

    def body(self) -> dict[str, Any]:
        """Return the error object that OpenAI's clients read."""
        return {
            "error": {
                "message": str(self),
                "type": _ERROR_TYPES.get(
                    self.status, "invalid_request_error" if self.status < 500 else "server_error"
                ),
                "param": self.param,
                "code": self.code,
            }
        }


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_prompts(value: object) -> tuple[Prompt, ...]:
    """Return a tuple of prompts from one text, one list of token ids, or a list of either."""
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


class RequestPart(BaseModel):
    """Base of request models: unknown fields are refused, fields without effect dropped."""

    ignored: ClassVar[frozenset[str]] = _IGNORED
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = _NEUTRAL
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_idle_fields(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        kept = {name: value for name, value in given.items() if value is not None}
        for name in kept.keys() - cls.model_fields.keys():
            if name in cls.ignored or kept[name] in cls.neutral.get(name, ()):
                del kept[name]
        return kept


class StreamOptions(RequestPart):
    """Options of a streamed answer."""

    include_usage: bool = False


class ModelRequest(RequestPart):
    """Fields of every request that a model answers."""

    model: str = Field(min_length=1, max_length=256)
    temperature: float = Field(default=1.0, ge=0, le=2)
    """Values below 0.01 become 0: dividing logits by less may overflow single precision."""
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @field_validator("temperature")
    @classmethod
    def _round_small_to_zero(cls, temperature: float) -> float:
        return temperature if temperature >= _LEAST_TEMPERATURE else 0.0

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if "stream_options" in self.model_fields_set and not self.stream:
            raise ValueError("stream_options needs stream = true")
        return self


class _Request(ModelRequest):
    """Fields common to both endpoints of a policy."""

    max_tokens: int | None = Field(default=None, ge=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1, lt=1 << 31)
    """Number of likeliest tokens to draw from; 0 and -1 draw from all."""
    n: int = Field(default=1, ge=1)
    stop: Stops = Field(default=[], max_length=_MAX_STOPS)
    stop_token_ids: list[int] = Field(default=[], max_length=_MAX_STOPS)
    ignore_eos: bool = False
    """Whether to keep generating after the tokens that end a message."""
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    """Whether the answer includes the token ids of the prompt and of the completion."""


class CompletionRequest(_Request):
    """Body of a /v1/completions request."""

    prompt: Annotated[tuple[Prompt, ...], BeforeValidator(_as_prompts)] = Field(strict=False)
    logprobs: int | None = Field(default=None, ge=0)
    """0 returns the log-probs of the sampled tokens; those of other tokens are not known."""

    @field_validator("logprobs")
    @classmethod
    def _only_sampled_tokens(cls, logprobs: int | None) -> int | None:
        if logprobs:
            raise ValueError(_NO_OTHER_LOGPROBS.format(logprobs, "logprobs = 0"))
        return logprobs

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer includes the log-probs of the sampled tokens."""
        return self.logprobs is not None


class TextPart(RequestPart):
    """A text part of a message."""

    ignored: ClassVar[frozenset[str]] = _REPLAYED
    type: Literal["text"]
    text: str


class CalledFunction(RequestPart):
    """The function a call names, and its arguments; the function may not exist."""

    name: str = Field(min_length=1, max_length=256)
    arguments: str
    """A JSON object as text."""

    @field_validator("arguments")
    @classmethod
    def _is_an_object(cls, arguments: str) -> str:
        if not isinstance(parsed_json(arguments), dict):
            raise ValueError("must spell a JSON object")
        return arguments


class CallPart(RequestPart):
    """A call that the assistant made earlier in the conversation."""

    ignored: ClassVar[frozenset[str]] = _REPLAYED
    id: str = Field(default="", max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction

    def call(self) -> ToolCall:
        """Convert to the library's record."""
        arguments = json.loads(self.function.arguments)
        return ToolCall(name=self.function.name, arguments=arguments, call_id=self.id)


class ChatMessage(RequestPart):
    """One message of a chat, in the form the policy's chat template accepts."""

    ignored: ClassVar[frozenset[str]] = _REPLAYED
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] = ""
    name: str | None = Field(default=None, max_length=256)
    tool_call_id: str | None = Field(default=None, max_length=256)
    tool_calls: list[CallPart] = Field(default=[], max_length=MAX_CALLS)
    reasoning_content: str | None = None
    """The assistant's thought, as returned by an earlier answer with tools."""

    @model_validator(mode="after")
    def _only_the_assistant_calls_and_thinks(self) -> Self:
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content is not None):
            raise ValueError("tool_calls and reasoning_content are for messages of the assistant")
        return self

    @property
    def text(self) -> str:
        """The content with its parts joined."""
        content = self.content
        return content if isinstance(content, str) else "".join(part.text for part in content)

    def for_template(self) -> dict[str, str]:
        """Return role, text and the optional fields that were given."""
        extra = self.model_dump(include={"name", "tool_call_id"}, exclude_none=True)
        return {"role": self.role, "content": self.text, **extra}

    def as_message(self) -> Message:
        """Convert to the library's record; text beside an assistant's calls becomes its thought."""
        said = self.text
        thought = self.reasoning_content
        if self.tool_calls:
            thought, said = (said or None) if thought is None else thought, ""
        return Message(
            role="system" if self.role == "developer" else self.role,
            content=said,
            thought=thought,
            tool_calls=tuple(part.call() for part in self.tool_calls),
            call_id=self.tool_call_id or "",
        )


class OfferedFunction(RequestPart):
    """A function that the policy may call."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of the arguments."""
    strict: Literal[False] = False
    """Only false: the endpoint cannot guarantee that calls follow the schema."""

    @field_validator("parameters")
    @classmethod
    def _describes_an_object(cls, schema: dict[str, Any]) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if schema.get("type", "object") != "object":
            raise ValueError('the schema of arguments must have the type "object"')
        if not isinstance(properties, dict) or not all(
            isinstance(one, dict) for one in properties.values()
        ):
            raise ValueError("properties must be an object with a schema for each name")
        if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
            raise ValueError("required must be a list of names")
        return schema


class RequestedTool(RequestPart):
    """One entry of `tools`."""

    type: Literal["function"]
    function: OfferedFunction

    def spec(self) -> ToolSpec:
        """Convert to the form that dialects use."""
        function = self.function
        return ToolSpec(
            name=function.name, description=function.description, parameters=function.parameters
        )


class ChatRequest(_Request):
    """Body of a /v1/chat/completions request."""

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[RequestedTool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: Literal["auto", "none"] = "auto"
    """With "none", a call that the policy writes anyway is returned as content."""
    parallel_tool_calls: bool = True
    """If false, the answer keeps only the first call of a message."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The newer name of max_tokens."""
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
    def _some_content(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        if not any(message.content or message.tool_calls for message in messages):
            raise ValueError("no message has any content")
        return messages

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _leaves_the_choice_to_the_policy(cls, choice: object) -> object:
        if choice == "required" or isinstance(choice, dict):
            raise ValueError(
                "a call cannot be forced: the policy itself chooses whether it calls a tool, and "
                'which. Ask with "auto", or offer the one tool and ask for its call in a message'
            )
        return choice

    @field_validator("tools")
    @classmethod
    def _names_differ(cls, tools: list[RequestedTool]) -> list[RequestedTool]:
        names = [tool.function.name for tool in tools]
        if len(set(names)) < len(names):
            raise ValueError("two functions have the same name")
        return tools

    @property
    def speaks_of_tools(self) -> bool:
        """Whether the request offers tools, or its messages contain calls."""
        return bool(self.tools) or any(message.tool_calls for message in self.messages)

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer includes the log-probs of the sampled tokens."""
        return self.logprobs


Request = TypeVar("Request", bound=RequestPart)


def parse(body: bytes, kind: type[Request], *, called: str = "the body") -> Request:
    """Parse and validate the body of a request.

    Args:
        body: the JSON bytes.
        kind: the type of the request.
        called: how the refusal's message refers to `body`.

    Raises:
        Refusal: it is not JSON, or not a valid request; the message names the fields.
    """
    try:
        given: Any = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(400, f"{called} is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise Refusal(400, f"{called} must be a JSON object")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _explained(error) from error


def _explained(error: ValidationError) -> Refusal:
    """Return a refusal with the first faults by field, without values: they may be private."""
    faults: dict[str, str] = {}
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(str(part) for part in fault["loc"])[:100] or "request"
        what = "is not supported here; leave it out"
        if fault["type"] != "extra_forbidden":  # without pydantic's own phrases
            what = fault["msg"].removeprefix("Value error, ")
            what = what.replace("Input should be", "must be", 1)
        faults.setdefault(where, what)
    told = [f"{where}: {what}" for where, what in list(faults.items())[:_FAULTS]]
    return Refusal(400, "; ".join(told), param=next(iter(faults)))
