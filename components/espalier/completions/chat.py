"""Chat completions with native tool calls: a conversation in, an action of the policy out.

Nothing in a reply is trusted. A body that is not a chat completion is a fault of the server: the
request is repeated, and finally raises `EndpointFault`. A call that cannot be parsed is the model's
own mistake and becomes `Malformed`, like text without an action in a dialect.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic import BaseModel, Field, ValidationError

from espalier.completions.answering import estimated_tokens
from espalier.completions.endpoint import MeteredServer
from espalier.completions.servers import EndpointFault, Sleep
from espalier.config import EndpointConfig
from espalier.dialects.syntax import MAX_PARSED_CHARACTERS, parsed_json
from espalier.records import Action, FinalAnswer, Malformed, Message
from espalier.records.message import JsonObject, ToolCall, ToolCalls, ToolSpec

CALL = "chat"
"""The call name of these requests in the ledger."""
_UNSAFE = re.compile("[^A-Za-z0-9_-]")
_MOST_NAME = 64
_MOST_CALLS = 128
"""Limit of calls in one message; a model that writes more is looping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """One message of the model, parsed into an action."""

    action: Action
    fault: str = ""
    """Why the action is malformed: `malformed_call`, `too_long`, `truncated`, `filtered`, `refused`
    or `empty`."""
    message: JsonObject
    """The message in the form in which the next request sends it back."""
    prompt_tokens: int = 0
    """Prompt tokens, repeats included; an upper estimate if the server does not count."""
    completion_tokens: int = 0


class ToolNames:
    """Maps tool names to the form servers accept: letters, digits, `_`, `-`, at most 64."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._sent: dict[str, str] = {}
        self._own: dict[str, str] = {}
        for tool in tools:
            sent, number = _UNSAFE.sub("_", tool.name)[:_MOST_NAME], 1
            while sent in self._own:
                number += 1
                tail = f"_{number}"
                sent = _UNSAFE.sub("_", tool.name)[: _MOST_NAME - len(tail)] + tail
            self._sent[tool.name], self._own[sent] = sent, tool.name

    def sent(self, name: str) -> str:
        """Return the name to send to the server."""
        return self._sent.get(name, name)

    def own(self, sent: str) -> str:
        """Return the tool's own name; an unknown name is returned unchanged."""
        return self._own.get(sent, sent)


class _Function(BaseModel, frozen=True):
    name: str = Field(min_length=1)
    arguments: str = ""


class _Call(BaseModel, frozen=True):
    id: str | None = None
    function: _Function


class _Said(BaseModel, frozen=True):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None
    """Not validated here: `_calls` parses each call on its own."""


class _Choice(BaseModel, frozen=True):
    finish_reason: str | None = None
    message: _Said


class _Completion(BaseModel, frozen=True):
    choices: tuple[_Choice, ...] = Field(min_length=1)


def read_reply(body: bytes, names: ToolNames) -> ChatReply | None:
    """Parse the body of a chat completion; None if it is not one. Never raises.

    Args:
        body: the body of a response with status 200.
        names: names of the offered tools.
    """
    try:
        choice = _Completion.model_validate_json(body).choices[0]
    except ValidationError:
        return None
    action, fault = _action(choice, names)
    said = choice.message
    message: JsonObject = {"role": "assistant", "content": said.content or ""}
    if isinstance(action, ToolCalls):
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {
                    "name": names.sent(call.name),
                    "arguments": json.dumps(call.arguments),
                },
            }
            for call in action.calls
        ]
    return ChatReply(action=action, fault=fault, message=message)


def _action(choice: _Choice, names: ToolNames) -> tuple[Action, str]:
    said = choice.message
    text = said.content or ""
    if said.refusal:
        return Malformed("the model refused", said.refusal), "refused"
    if choice.finish_reason == "content_filter":
        return Malformed("filtered by the server", text), "filtered"
    if choice.finish_reason == "length":
        return Malformed("cut off at its token limit", text), "truncated"
    if len(text) > MAX_PARSED_CHARACTERS:  # no more than a dialect would read
        return Malformed("too long", text), "too_long"
    if said.tool_calls:
        calls = _calls(said.tool_calls, names)
        if calls is None:
            return Malformed("calls that cannot be read", text), "malformed_call"
        return ToolCalls(calls, said.reasoning_content or text or None), ""
    if not text.strip():
        return Malformed("neither text nor a call"), "empty"
    return FinalAnswer(text, said.reasoning_content or None), ""


def _calls(given: object, names: ToolNames) -> tuple[ToolCall, ...] | None:
    if not isinstance(given, list) or len(given) > _MOST_CALLS:
        return None
    calls: list[ToolCall] = []
    for place, one in enumerate(cast("list[object]", given)):
        call = _call(one, f"call_{place}", names, {call.call_id for call in calls})
        if call is None:
            return None
        calls.append(call)
    return tuple(calls)


def _call(given: object, spare_id: str, names: ToolNames, taken: set[str]) -> ToolCall | None:
    """Parse a call and give it an id unique in its message; None if it cannot be parsed."""
    try:
        call = _Call.model_validate(given)
        if len(call.function.arguments) > MAX_PARSED_CHARACTERS:
            return None
        arguments = parsed_json(call.function.arguments or "{}")
    except ValueError:  # a ValidationError is one
        return None
    if not isinstance(arguments, dict):
        return None
    call_id = call.id if call.id and call.id not in taken else spare_id
    if call_id in taken:
        return None
    return ToolCall(
        name=names.own(call.function.name),
        arguments=cast("JsonObject", arguments),
        call_id=call_id,
    )


def sent_message(message: Message) -> JsonObject:
    """Return a message of the environment in the form a server accepts."""
    sent: JsonObject = {"role": message.role, "content": message.content}
    if message.role == "tool":
        sent["tool_call_id"] = message.call_id
    return sent


class ChatEndpoint(MeteredServer):
    """A model behind a server; use it as an async context manager."""

    def __init__(
        self, config: EndpointConfig, key: str = "", *, sleep: Sleep = asyncio.sleep
    ) -> None:
        """Prepare the client; the connection opens on entering the context."""
        super().__init__(config, key, sleep=sleep)

    async def reply(
        self,
        messages: Sequence[JsonObject],
        tools: Sequence[ToolSpec],
        names: ToolNames,
        *,
        temperature: float,
        seed: int,
    ) -> ChatReply:
        """Send the conversation and return the model's next message.

        Args:
            messages: the conversation, built from `sent_message` and `ChatReply.message`.
            tools: the tools the model may call.
            names: names of those tools.
            temperature: 0 takes the likeliest token.
            seed: the sampling seed, for servers that support one.

        Raises:
            EndpointFault: this request got no answer.
            EngineError: the server refuses every request, or the cost limit is reached.
        """
        fields: dict[str, Any] = {
            "model": self.config.model,
            "messages": list(messages),
            "temperature": temperature,
            "max_tokens": self.config.max_tokens,
            "seed": seed,
        }
        if tools:
            fields["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": names.sent(tool.name),
                        "description": tool.description,
                        "parameters": tool.parameters or {"type": "object", "properties": {}},
                    },
                }
                for tool in tools
            ]
        estimate = estimated_tokens(
            json.dumps([fields["messages"], fields.get("tools")], ensure_ascii=False)
        )
        prompt_tokens = completion_tokens = 0
        for _ in range(self.config.asks):
            body, used = await self._body(CALL, fields, estimate)
            prompt_tokens += used.prompt_tokens
            completion_tokens += used.completion_tokens
            if (reply := read_reply(body, names)) is not None:
                return replace(
                    reply, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens
                )
        raise EndpointFault(
            f"{self.config.name}: {self.config.asks} answers were no chat "
            "completions; is the address that of an OpenAI-compatible server, as https://host/v1?",
            "no_completion",
        )
