"""OpenAI's chat completions: POST /v1/chat/completions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from espalier.records.message import Message
from espalier.wire.requests import (
    MAX_TOOLS,
    ChatRequest,
    OfferedFunction,
    Refusal,
    RequestedTool,
    parse,
)
from espalier_interop.recording.call_request import Answer, CallRequest, Json, Remembered, WireName
from espalier_interop.recording.formats.events import event


class _Function(OfferedFunction):
    strict: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]
    """Agents' libraries set it by default; the agent has to refuse a call that breaks the schema,
    as with every model that cannot guarantee it."""


class _Tool(RequestedTool):
    function: _Function  # pyright: ignore[reportIncompatibleVariableOverride]


class _Request(ChatRequest):
    """A chat whose sampled tokens are recorded."""

    tools: list[_Tool] = Field(default=[], max_length=MAX_TOOLS)  # pyright: ignore


class ChatFormat:
    """OpenAI's chat completions."""

    name: WireName = "chat"

    def read(self, body: bytes, remembered: Remembered) -> CallRequest:
        """Read a request."""
        del remembered  # the whole conversation is in every request
        given = parse(body, _Request)
        if unsupported := self._unsupported(given):
            name, why = unsupported
            raise Refusal(400, f"{name}: {why}", param=name)
        set_ = given.model_fields_set
        return CallRequest(
            model=given.model,
            messages=tuple(message.as_message() for message in given.messages),
            tools=tuple(tool.spec() for tool in given.tools),
            offers_calls=bool(given.tools) and given.tool_choice == "auto",
            one_call=not given.parallel_tool_calls,
            max_tokens=given.max_completion_tokens or given.max_tokens,
            temperature=given.temperature if "temperature" in set_ else None,
            top_p=given.top_p if "top_p" in set_ else None,
            top_k=max(0, given.top_k) if "top_k" in set_ else None,
            seed=given.seed,
            stream=given.stream,
            tells_usage=given.stream_options.include_usage,
            tells_token_ids=given.return_token_ids,
        )

    @staticmethod
    def _unsupported(given: _Request) -> tuple[str, str] | None:
        """Return an unsupported field and the reason; None if there is none."""
        told: dict[str, tuple[bool, str]] = {
            "n": (given.n > 1, "one answer a call is recorded; ask again for another"),
            "stop": (
                bool(given.stop or given.stop_token_ids),
                "an answer ends where the policy ends it; cut the text where you read it",
            ),
            "logprobs": (given.logprobs, "log-probs are recorded, and not sent"),
            "ignore_eos": (given.ignore_eos, "an answer ends where the policy ends it"),
        }
        return next(((name, why) for name, (found, why) in told.items() if found), None)

    def whole(self, asked: CallRequest, answer: Answer) -> Json:
        """Return the answer as one object."""
        choice: Json = {
            "index": 0,
            "message": {"role": "assistant", **_said(answer.said), "refusal": None},
            "logprobs": None,
            "finish_reason": _finish_reason(answer),
        }
        told: Json = {}
        if asked.tells_token_ids:
            choice["token_ids"] = answer.token_ids
            told["prompt_token_ids"] = answer.prompt_ids
        whole = self._envelope(asked, answer, "chat.completion")
        return {**whole, "choices": [choice], **told, "usage": _usage(answer)}

    def events(self, asked: CallRequest, answer: Answer) -> Iterable[bytes]:
        """Return the answer as server-sent events."""
        said = _said(answer.said)
        for place, call in enumerate(said.get("tool_calls", ())):
            call["index"] = place
        delta: Json = {"role": "assistant", **said}
        ids: Json = {"token_ids": answer.token_ids} if asked.tells_token_ids else {}
        prompt: Json = {"prompt_token_ids": answer.prompt_ids} if asked.tells_token_ids else {}
        yield self._chunk(asked, answer, [{"index": 0, "delta": delta, "finish_reason": None}])
        ended: Json = {"index": 0, "delta": {}, "finish_reason": _finish_reason(answer), **ids}
        yield self._chunk(asked, answer, [ended], **prompt)
        if asked.tells_usage:
            yield self._chunk(asked, answer, [], usage=_usage(answer))
        yield b"data: [DONE]\n\n"

    def refused(self, refusal: Refusal) -> Json:
        """Return an error, as clients of this format read it."""
        return refusal.body()

    def _chunk(self, asked: CallRequest, answer: Answer, choices: list[Json], **told: Any) -> bytes:  # noqa: ANN401 (JSON)
        chunk = self._envelope(asked, answer, "chat.completion.chunk")
        return event({**chunk, "choices": choices, **told})

    def _envelope(self, asked: CallRequest, answer: Answer, kind: str) -> Json:
        return {
            "id": f"chatcmpl-{answer.answer_id}",
            "object": kind,
            "created": answer.created,
            "model": asked.model,
        }


def _finish_reason(answer: Answer) -> Literal["stop", "length", "tool_calls"]:
    if answer.said.tool_calls:
        return "tool_calls"
    return "stop" if answer.stopped else "length"


def _said(said: Message) -> Json:
    told: Json = {"content": said.content}
    if said.thought is not None:
        told["reasoning_content"] = said.thought
    if said.tool_calls:
        told["content"] = None
        told["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False),
                },
            }
            for call in said.tool_calls
        ]
    return told


def _usage(answer: Answer) -> Json:
    prompt, sampled = len(answer.prompt_ids), len(answer.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }
