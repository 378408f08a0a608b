"""Responses in OpenAI's format, whole or as the events of a stream.

`token_ids`, `prompt_token_ids` and `reasoning_content` are where vLLM puts them. Where a request
has tools, the policy's message is parsed by its dialect once it is complete: a stream carries the
calls or the answer in its last event.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from espalier.records import Malformed, ToolCall, ToolCalls
from espalier.serving.choice import FinishReason, Piece
from espalier.serving.planning import AnswerPlan
from espalier.wire.requests import ChatRequest, CompletionRequest

if TYPE_CHECKING:  # it imports torch, and probes must be answered before that is loaded
    from espalier.serving.served_policy import ServedPolicy

Json: TypeAlias = dict[str, Any]

_MAX_CALL_ID = 64
"""Longest call id, in characters, that is taken over from the policy's message."""


@dataclass(slots=True)
class Written:
    """The part of one answer that has been sampled."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    finish_reason: FinishReason | None = None

    def add(self, piece: Piece) -> None:
        """Append a piece."""
        self.text += piece.text
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.finish_reason = piece.finish_reason

    def as_piece(self) -> Piece:
        """The whole text and all tokens as one piece."""
        return Piece(self.text, tuple(self.token_ids), tuple(self.logprobs), self.finish_reason)


class AnswerShape:
    """Formats the answers of one request as OpenAI's responses or stream events."""

    def __init__(
        self,
        request: CompletionRequest | ChatRequest,
        planned: AnswerPlan,
        policy: ServedPolicy,
        *,
        answer_id: str,
        created: int,
    ) -> None:
        self._request = request
        self._plan = planned
        self._policy = policy
        self._is_chat = isinstance(request, ChatRequest)
        self._id = f"{'chatcmpl' if self._is_chat else 'cmpl'}-{answer_id}"
        self._created = created
        self._prompts_sent: set[int] = set()
        self._written = [Written() for _ in planned.orders]
        """Answers of a stream that are parsed once they are complete."""

    def whole(self, answers: Sequence[Written]) -> Json:
        """The response to a request without streaming."""
        choices = [self._choice(n, w.as_piece(), streamed=False) for n, w in enumerate(answers)]
        kind = "chat.completion" if self._is_chat else "text_completion"
        sampled = sum(len(written.token_ids) for written in answers)
        return {**self._envelope(kind, choices), **self._prompt(), "usage": self._usage(sampled)}

    def opening(self) -> list[Json]:
        """The first events of a stream: the role of each answer of a chat, else none."""
        if not self._is_chat:
            return []
        events: list[Json] = []
        for number in range(len(self._plan.orders)):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}
            events.append(self._event([choice]))
        events[0].update(self._prompt())
        return events

    def piece(self, number: int, piece: Piece) -> Json | None:
        """The event of a piece; None where it adds no text, as with an incomplete character."""
        sends_tokens = self._request.return_token_ids or self._request.wants_logprobs
        text = piece.text
        if self._plan.dialect is not None:
            self._written[number].add(piece)
            text = ""
        if not (text or piece.finish_reason or (sends_tokens and piece.token_ids)):
            return None
        return self._event([self._choice(number, piece, streamed=True)])

    def closing(self, sampled: int) -> list[Json]:
        """The last event of a stream: its usage, where `stream_options` asks for it."""
        if not self._request.stream_options.include_usage:
            return []
        return [{**self._event([]), "usage": self._usage(sampled)}]

    def _event(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return self._envelope(kind, choices)

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
            "system_fingerprint": self._policy.source.fingerprint,
            "choices": choices,
        }

    def _prompt(self) -> Json:
        if self._is_chat and self._request.return_token_ids:
            return {"prompt_token_ids": self._plan.prompts[0]}
        return {}

    def _usage(self, sampled: int) -> Json:
        prompt = self._plan.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
        }

    def _choice(self, number: int, piece: Piece, *, streamed: bool) -> Json:
        choice: Json = {"index": number, "finish_reason": piece.finish_reason, "logprobs": None}
        if not self._is_chat:
            choice["text"] = piece.text
        elif streamed:
            choice["delta"] = self._delta(number, piece)
        else:
            said = self._fields(number, piece) if self._plan.dialect else {"content": piece.text}
            choice["message"] = {"role": "assistant", **said, "refusal": None}
        told = choice.get("delta") or choice.get("message") or {}
        if "tool_calls" in told and piece.finish_reason == "stop":
            choice["finish_reason"] = "tool_calls"
        if self._request.wants_logprobs:
            choice["logprobs"] = self._logprobs(number, piece)
        if self._request.return_token_ids:
            choice["token_ids"] = piece.token_ids
            if not self._is_chat and number not in self._prompts_sent:
                self._prompts_sent.add(number)
                choice["prompt_token_ids"] = self._plan.orders[number].prompt_ids
        return choice

    def _delta(self, number: int, piece: Piece) -> Json:
        if self._plan.dialect is None:
            return {"content": piece.text}
        if piece.finish_reason is None:
            return {}
        said = self._fields(number, self._written[number].as_piece())
        for place, call in enumerate(said.get("tool_calls", [])):
            call["index"] = place
        return said

    def _fields(self, number: int, whole: Piece) -> Json:
        """Content, thought and calls of a message; its raw text where it is malformed."""
        request, dialect = self._request, self._plan.dialect
        assert isinstance(request, ChatRequest)
        assert dialect is not None
        text = dialect.message_text(whole.token_ids)
        for stop in request.stop:
            before, met, _ = text.partition(stop)
            text = before + met * request.include_stop_str_in_output
        action = dialect.parse_text(text)
        is_call = isinstance(action, ToolCalls)
        if isinstance(action, Malformed) or (is_call and request.tool_choice == "none"):
            return {"content": whole.text}
        said: Json = {"content": None if isinstance(action, ToolCalls) else action.text}
        if action.thought is not None:
            said["reasoning_content"] = action.thought
        if isinstance(action, ToolCalls):
            calls = action.calls if request.parallel_tool_calls else action.calls[:1]
            said["tool_calls"] = self._calls(number, calls)
        return said

    def _calls(self, number: int, calls: Sequence[ToolCall]) -> list[Json]:
        """Calls in OpenAI's format, each with a unique id."""
        told: list[Json] = []
        ids: set[str] = set()
        for place, call in enumerate(calls):
            call_id = call.call_id
            if not call_id or call_id in ids or len(call_id) > _MAX_CALL_ID:
                # Mistral's chat templates accept only ids of nine letters and digits
                named = f"{self._id}:{number}:{place}"
                call_id = hashlib.sha256(named.encode()).hexdigest()[:9]
            ids.add(call_id)
            arguments = json.dumps(call.arguments, ensure_ascii=False)
            function = {"name": call.name, "arguments": arguments}
            told.append({"id": call_id, "type": "function", "function": function})
        return told

    def _logprobs(self, number: int, piece: Piece) -> Json:
        tokens = [str(self._policy.tokenizer.decode([i])) for i in piece.token_ids]
        if not self._is_chat:
            return {"tokens": tokens, "token_logprobs": piece.logprobs, "top_logprobs": None}
        entries = [
            {"token": t, "logprob": p, "bytes": list(t.encode()), "top_logprobs": []}
            for t, p in zip(tokens, piece.logprobs, strict=True)
        ]
        return {"content": entries, "refusal": None}
