"""OpenAI's responses: POST /v1/responses.

A conversation is a list of items. Consecutive items of the assistant (reasoning, text, calls) are
one message of the policy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from espalier.records.message import Message, ToolCall, ToolSpec
from espalier.wire.requests import (
    MAX_TOOLS,
    CalledFunction,
    OfferedFunction,
    Refusal,
    RequestPart,
    parse,
)
from espalier_interop.recording.call_request import Answer, CallRequest, Json, Remembered, WireName
from espalier_interop.recording.formats.events import event


class _Part(RequestPart):
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}
        | {"prompt_cache_retention", "include", "truncation", "status", "annotations", "phase"}
    )
    """Fields that do not affect the answer; `truncation` "auto" is one, as nothing is ever
    truncated."""
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "background": (False,),
        "top_logprobs": (0,),
        "logprobs": ([],),
        "text": ({"format": {"type": "text"}}, {}),
        "reasoning": ({},),
        "stream_options": ({}, {"include_obfuscation": False}),
    }


class _Text(_Part):
    type: Literal["input_text", "output_text", "text"]
    text: str


def _as_texts(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


_Texts = Annotated[list[_Text], BeforeValidator(_as_texts)]


class _Said(_Part):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Texts = Field(default=[])
    id: str | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


class _Call(_Part):
    type: Literal["function_call"]
    call_id: str = Field(min_length=1, max_length=256)
    name: str = Field(min_length=1, max_length=256)
    arguments: str
    id: str | None = None

    @field_validator("arguments")
    @classmethod
    def _is_an_object(cls, arguments: str) -> str:
        return CalledFunction(name="any", arguments=arguments).arguments

    def call(self) -> ToolCall:
        arguments = json.loads(self.arguments)
        return ToolCall(name=self.name, arguments=arguments, call_id=self.call_id)


class _Result(_Part):
    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1, max_length=256)
    output: _Texts
    id: str | None = None


class _Reasoning(_Part):
    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Any] = Field(default=[])
    content: list[Any] | None = None
    encrypted_content: str | None = None


_Item = _Said | _Call | _Result | _Reasoning


def _as_items(given: object) -> object:
    """Return text as a message of the user, and messages without a type as messages."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        return given
    return [
        {"type": "message", **item} if isinstance(item, dict) and "type" not in item else item
        for item in given
    ]


class _Tool(_Part, OfferedFunction):
    type: Literal["function"]
    strict: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]
    """Agents' libraries set it by default, as in `formats.chat`."""


class _Request(_Part):
    model: str = Field(min_length=1, max_length=256)
    input: Annotated[
        list[Annotated[_Item, Field(discriminator="type")]], BeforeValidator(_as_items)
    ]
    instructions: str | None = None
    previous_response_id: str | None = Field(default=None, max_length=256)
    tools: list[_Tool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stream: bool = False

    @field_validator("tools")
    @classmethod
    def _names_differ(cls, tools: list[_Tool]) -> list[_Tool]:
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise ValueError("two functions have the same name")
        return tools


class ResponsesFormat:
    """OpenAI's responses."""

    name: WireName = "responses"

    def read(self, body: bytes, remembered: Remembered) -> CallRequest:
        """Read a request."""
        given = parse(body, _Request)
        earlier: tuple[Message, ...] = ()
        if given.previous_response_id is not None:
            earlier = remembered(given.previous_response_id.removeprefix("resp_"))
        if (
            given.instructions is not None
        ):  # the instructions of an earlier request do not apply any more
            rest = earlier[1:] if earlier and earlier[0].role == "system" else earlier
            earlier = (Message(role="system", content=given.instructions), *rest)
        return CallRequest(
            model=given.model,
            messages=(*earlier, *_messages(given.input)),
            tools=tuple(
                ToolSpec(name=t.name, description=t.description, parameters=t.parameters)
                for t in given.tools
            ),
            offers_calls=bool(given.tools) and given.tool_choice == "auto",
            one_call=not given.parallel_tool_calls,
            max_tokens=given.max_output_tokens,
            temperature=given.temperature,
            top_p=given.top_p,
            stream=given.stream,
        )

    def whole(self, asked: CallRequest, answer: Answer) -> Json:
        """Return the answer as one object."""
        return _response(asked, answer, _items(answer), is_over=True)

    def events(self, asked: CallRequest, answer: Answer) -> Iterable[bytes]:
        """Return the answer as server-sent events."""
        items = _items(answer)
        begun = _response(asked, answer, [], is_over=False)
        told: list[Json] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for place, item in enumerate(items):
            told += [{**one, "output_index": place} for one in _item_events(item)]
        ended = _response(asked, answer, items, is_over=True)
        told.append({"type": f"response.{ended['status']}", "response": ended})
        for number, one in enumerate(told):
            yield event({**one, "sequence_number": number}, named=one["type"])

    def refused(self, refusal: Refusal) -> Json:
        """Return an error, as clients of this format read it."""
        return refusal.body()


def _messages(items: Iterable[_Item]) -> Iterator[Message]:
    """Yield the messages of a list of items."""
    text: list[str] = []
    calls: list[ToolCall] = []
    is_open = False

    def written() -> Iterator[Message]:
        if is_open:
            thought = "".join(text) if calls and text else None
            content = "" if calls else "".join(text)
            yield Message(
                role="assistant", content=content, thought=thought, tool_calls=tuple(calls)
            )

    for item in items:
        match item:
            case _Said(role="assistant"):
                text.append(item.text)
                is_open = True
            case _Call():
                calls.append(item.call())
                is_open = True
            case _Reasoning():
                pass  # a summary may differ from the thought; the sampled tokens are recorded
            case _Said() | _Result():
                yield from written()
                text, calls, is_open = [], [], False
                yield _read(item)
    yield from written()


def _read(item: _Said | _Result) -> Message:
    if isinstance(item, _Result):
        content = "".join(part.text for part in item.output)
        return Message(role="tool", content=content, call_id=item.call_id)
    role = "user" if item.role == "user" else "system"
    return Message(role=role, content=item.text)


def _items(answer: Answer) -> list[Json]:
    """Return the output items: reasoning, then calls or text."""
    said, items = answer.said, list[Json]()
    status = "completed" if answer.stopped else "incomplete"
    if said.thought is not None:
        items.append(
            {
                "id": f"rs_{answer.answer_id}",
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": said.thought}],
            }
        )
    for place, call in enumerate(said.tool_calls):
        items.append(
            {
                "id": f"fc_{answer.answer_id}_{place}",
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False),
                "status": status,
            }
        )
    if not said.tool_calls:
        part = {"type": "output_text", "text": said.content, "annotations": [], "logprobs": []}
        items.append(
            {
                "id": f"msg_{answer.answer_id}",
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": [part],
            }
        )
    return items


def _response(asked: CallRequest, answer: Answer, items: list[Json], *, is_over: bool) -> Json:
    prompt, sampled = len(answer.prompt_ids), len(answer.token_ids)
    status = "completed" if answer.stopped else "incomplete"
    return {
        "id": f"resp_{answer.answer_id}",
        "object": "response",
        "created_at": answer.created,
        "model": asked.model,
        "status": status if is_over else "in_progress",
        "error": None,
        "incomplete_details": (
            {"reason": "max_output_tokens"} if is_over and not answer.stopped else None
        ),
        "instructions": None,
        "metadata": {},
        "output": items,
        "parallel_tool_calls": not asked.one_call,
        "temperature": asked.temperature,
        "tool_choice": "auto" if asked.offers_calls else "none",
        "tools": [
            {**tool.as_function()["function"], "type": "function", "strict": False}  # pyright: ignore
            for tool in asked.tools
        ],
        "top_p": asked.top_p,
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + sampled,
        }
        if is_over
        else None,
    }


def _item_events(item: Json) -> Iterator[Json]:
    """Yield the events of one item, without its index."""
    identity = {"item_id": item["id"]}
    match item["type"]:
        case "function_call":
            opened = {**item, "arguments": "", "status": "in_progress"}
            yield {"type": "response.output_item.added", "item": opened}
            name = "response.function_call_arguments"
            yield {"type": f"{name}.delta", **identity, "delta": item["arguments"]}
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": f"{name}.done", **identity, **done}
        case "message":
            part = item["content"][0]
            opened = {**item, "content": [], "status": "in_progress"}
            yield {"type": "response.output_item.added", "item": opened}
            where = {**identity, "content_index": 0}
            empty = {**part, "text": ""}
            yield {"type": "response.content_part.added", **where, "part": empty}
            said = {"logprobs": []}
            yield {"type": "response.output_text.delta", **where, "delta": part["text"], **said}
            yield {"type": "response.output_text.done", **where, "text": part["text"], **said}
            yield {"type": "response.content_part.done", **where, "part": part}
        case _:
            yield {"type": "response.output_item.added", "item": {**item, "summary": []}}
            part = item["summary"][0]
            where = {**identity, "summary_index": 0}
            name = "response.reasoning_summary_text"
            empty = {**part, "text": ""}
            yield {"type": "response.reasoning_summary_part.added", **where, "part": empty}
            yield {"type": f"{name}.delta", **where, "delta": part["text"]}
            yield {"type": f"{name}.done", **where, "text": part["text"]}
            yield {"type": "response.reasoning_summary_part.done", **where, "part": part}
    yield {"type": "response.output_item.done", "item": item}
