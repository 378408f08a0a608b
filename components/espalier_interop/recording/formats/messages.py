"""Anthropic's messages: POST /v1/messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from espalier.records.message import JsonObject, Message, ToolCall, ToolSpec
from espalier.wire.requests import MAX_TOOLS, OfferedFunction, Refusal, RequestPart, parse
from espalier_interop.recording.call_request import Answer, CallRequest, Json, Remembered, WireName
from espalier_interop.recording.formats.events import event

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class _Part(RequestPart):
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"metadata", "cache_control", "service_tier", "citations", "signature", "inference_geo"}
    )
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "stop_sequences": ([],),
        "thinking": ({"type": "disabled"},),
        "container": (None,),
        "mcp_servers": ([],),
    }


class _Text(_Part):
    type: Literal["text"]
    text: str


class _Thinking(_Part):
    type: Literal["thinking"]
    thinking: str


class _Use(_Part):
    type: Literal["tool_use"]
    id: str = Field(min_length=1, max_length=256)
    name: str = Field(min_length=1, max_length=256)
    input: JsonObject
    caller: dict[str, Any] | None = None


def _as_texts(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


_Texts = Annotated[list[_Text], BeforeValidator(_as_texts)]


class _Result(_Part):
    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1, max_length=256)
    content: _Texts = Field(default=[])
    is_error: bool = False


_Block = Annotated[_Text | _Thinking | _Use | _Result, Field(discriminator="type")]


class _Said(_Part):
    role: Literal["user", "assistant"]
    content: Annotated[list[_Block], BeforeValidator(_as_texts)]


class _Tool(_Part):
    type: Literal["custom"] = "custom"
    name: str
    description: str = ""
    input_schema: dict[str, Any]
    strict: bool = False
    """Agents' libraries set it by default, as in `formats.chat`."""

    @field_validator("input_schema")
    @classmethod
    def _describes_an_object(cls, schema: dict[str, Any]) -> dict[str, Any]:
        return OfferedFunction(name="any", parameters=schema).parameters


class _Choice(_Part):
    type: Literal["auto", "none"]
    disable_parallel_tool_use: bool = False

    @field_validator("type", mode="before")
    @classmethod
    def _leaves_the_choice_to_the_policy(cls, choice: object) -> object:
        if choice in ("any", "tool"):
            raise ValueError("a call cannot be forced: the policy itself chooses")
        return choice


class _Request(_Part):
    model: str = Field(min_length=1, max_length=256)
    max_tokens: int = Field(ge=1)
    messages: list[_Said] = Field(min_length=1)
    system: _Texts = Field(default=[])
    tools: list[_Tool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: _Choice = _Choice(type="auto")
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, lt=1 << 31)
    stream: bool = False

    @field_validator("tools")
    @classmethod
    def _names_differ(cls, tools: list[_Tool]) -> list[_Tool]:
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise ValueError("two tools have the same name")
        return tools


class MessagesFormat:
    """Anthropic's messages."""

    name: WireName = "messages"

    def read(self, body: bytes, remembered: Remembered) -> CallRequest:
        """Read a request."""
        del remembered  # the whole conversation is in every request
        given = parse(body, _Request)
        system = "".join(part.text for part in given.system)
        opening = (Message(role="system", content=system),) if system else ()
        said = (message for one in given.messages for message in _messages(one))
        return CallRequest(
            model=given.model,
            messages=(*opening, *said),
            tools=tuple(
                ToolSpec(name=t.name, description=t.description, parameters=t.input_schema)
                for t in given.tools
            ),
            offers_calls=bool(given.tools) and given.tool_choice.type == "auto",
            one_call=given.tool_choice.disable_parallel_tool_use,
            max_tokens=given.max_tokens,
            temperature=given.temperature,
            top_p=given.top_p,
            top_k=given.top_k,
            stream=given.stream,
        )

    def whole(self, asked: CallRequest, answer: Answer) -> Json:
        """Return the answer as one object."""
        return {
            **_opened(asked, answer),
            "content": _blocks(answer),
            "stop_reason": _stop_reason(answer),
            "usage": _usage(answer, len(answer.token_ids)),
        }

    def events(self, asked: CallRequest, answer: Answer) -> Iterable[bytes]:
        """Return the answer as server-sent events."""
        begun = {**_opened(asked, answer), "content": [], "usage": _usage(answer, 0)}
        told: list[Json] = [{"type": "message_start", "message": begun}]
        for place, block in enumerate(_blocks(answer)):
            told += [{**one, "index": place} for one in _block_events(block)]
        told += [
            {
                "type": "message_delta",
                "delta": {"stop_reason": _stop_reason(answer), "stop_sequence": None},
                "usage": {"output_tokens": len(answer.token_ids)},
            },
            {"type": "message_stop"},
        ]
        for one in told:
            yield event(one, named=one["type"])

    def refused(self, refusal: Refusal) -> Json:
        """Return an error, as clients of this format read it."""
        kind = _ERROR_TYPES.get(
            refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error"
        )
        return {"type": "error", "error": {"type": kind, "message": str(refusal)}}


def _messages(said: _Said) -> Iterator[Message]:
    """Yield the messages of one Anthropic message; tool results are in a user message."""
    if said.role == "assistant":
        yield _assistant(said.content)
        return
    for block in said.content:
        match block:
            case _Text():
                yield Message(role="user", content=block.text)
            case _Result():
                content = "".join(part.text for part in block.content)
                yield Message(role="tool", content=content, call_id=block.tool_use_id)
            case _:
                raise _misplaced("user", block.type)


def _assistant(blocks: Iterable[_Text | _Thinking | _Use | _Result]) -> Message:
    text, thought, calls = "", "", list[ToolCall]()
    for block in blocks:
        match block:
            case _Text():
                text += block.text
            case _Thinking():
                thought += block.thinking
            case _Use():
                calls.append(ToolCall(name=block.name, arguments=block.input, call_id=block.id))
            case _Result():
                raise _misplaced("assistant", block.type)
    if calls:
        thought, text = thought or text, ""
    return Message(role="assistant", content=text, thought=thought or None, tool_calls=tuple(calls))


def _misplaced(role: str, kind: str) -> Refusal:
    return Refusal(400, f"messages: a {kind} block in a message of the {role}", param="messages")


def _opened(asked: CallRequest, answer: Answer) -> Json:
    return {
        "id": f"msg_{answer.answer_id}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(answer: Answer) -> list[Json]:
    said, blocks = answer.said, list[Json]()
    if said.thought is not None:
        blocks.append({"type": "thinking", "thinking": said.thought, "signature": ""})
    if said.content or not said.tool_calls:
        blocks.append({"type": "text", "text": said.content})
    blocks += [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.arguments}
        for call in said.tool_calls
    ]
    return blocks


def _block_events(block: Json) -> Iterator[Json]:
    """Yield the events of one block, without its index."""
    match block["type"]:
        case "tool_use":
            empty, delta = {"input": {}}, {"type": "input_json_delta"}
            told = {"partial_json": json.dumps(block["input"], ensure_ascii=False)}
        case "thinking":
            empty, delta = {"thinking": ""}, {"type": "thinking_delta"}
            told = {"thinking": block["thinking"]}
        case _:
            empty, delta = {"text": ""}, {"type": "text_delta"}
            told = {"text": block["text"]}
    yield {"type": "content_block_start", "content_block": {**block, **empty}}
    yield {"type": "content_block_delta", "delta": {**delta, **told}}
    yield {"type": "content_block_stop"}


def _stop_reason(answer: Answer) -> Literal["tool_use", "end_turn", "max_tokens"]:
    if answer.said.tool_calls:
        return "tool_use"
    return "end_turn" if answer.stopped else "max_tokens"


def _usage(answer: Answer, sampled: int) -> Json:
    return {"input_tokens": len(answer.prompt_ids), "output_tokens": sampled}
