"""A structured request to a model, and the strict parsing of its answer.

Nothing in a reply is trusted. Apart from stripping a code fence and a leading block of thoughts,
nothing is repaired: an answer is parsed whole and strictly, or refused with a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, NoReturn, Protocol, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from espalier.records import json_digest

Reason = Literal["refused", "filtered", "truncated", "empty", "broken_json", "wrong_shape"]
"""In order: the model declined, content filter, token limit, no text, not JSON, not of the type."""

AnswerT = TypeVar("AnswerT", bound=BaseModel)

_FENCE = "```"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")
_MAX_DETAIL = 200


@dataclass(frozen=True, slots=True)
class ModelRefusal:
    """The reason why a request has no answer."""

    reason: Reason
    detail: str = ""


def _one_text_without_tags(text: str) -> str:
    """Collapse white space; refuse control characters and angle brackets, hence any tag."""
    if _CONTROL.search(text):
        raise ValueError("it holds control characters")
    if "<" in text or ">" in text:
        raise ValueError("it holds angle brackets")
    return " ".join(text.split())


PlainText = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2000, strip_whitespace=True),
    AfterValidator(_one_text_without_tags),
]
"""Text that can safely be put into a message: not blank, limited in length, without tags."""


class ReplyUsage(BaseModel, frozen=True):
    """Token counts of a reply, as the server reports them."""

    prompt_tokens: int = Field(ge=0, le=10**9)
    completion_tokens: int = Field(ge=0, le=10**9)


class _Message(BaseModel, frozen=True):
    content: str | None = None
    refusal: str | None = None


class _ReplyChoice(BaseModel, frozen=True):
    finish_reason: str | None = None
    message: _Message


class _Reply(BaseModel, frozen=True):
    choices: tuple[_ReplyChoice, ...] = Field(min_length=1)


def parsed_answer(body: bytes, answer: type[AnswerT]) -> AnswerT | ModelRefusal:
    """Parse the body of a chat completion; never raises, whatever the body holds.

    Args:
        body: the body of an HTTP response with status 200.
        answer: the type the message's JSON must match strictly, without extra keys.
    """
    try:
        choice = _Reply.model_validate_json(body, strict=True).choices[0]
    except ValidationError as error:
        return ModelRefusal("broken_json", f"no chat completion: {_first(error)}")
    if choice.message.refusal:
        return ModelRefusal("refused", _cut(choice.message.refusal))
    if choice.finish_reason == "content_filter":
        return ModelRefusal("filtered")
    if choice.finish_reason == "length":
        return ModelRefusal("truncated")
    if choice.finish_reason != "stop":
        return ModelRefusal("wrong_shape", f"finish_reason {_cut(str(choice.finish_reason))!r}")
    return _answer_in(choice.message.content or "", answer)


def usage_of(body: bytes) -> ReplyUsage | None:
    """Return the token counts of a chat completion; None if missing or implausible."""
    try:
        return _ReplyWithUsage.model_validate_json(body, strict=True).usage
    except ValidationError:
        return None


class _ReplyWithUsage(BaseModel, frozen=True):
    usage: ReplyUsage


def _answer_in(content: str, answer: type[AnswerT]) -> AnswerT | ModelRefusal:
    text = content
    if content.lstrip().startswith("<think>"):
        _, ended, behind = content.partition("</think>")
        text = behind if ended else content
    text = _unfenced(text.strip())
    if not text:
        return ModelRefusal("empty")
    try:
        json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_number)
        return answer.model_validate_json(text, strict=True)
    except ValidationError as error:
        return ModelRefusal("wrong_shape", _first(error))
    except (ValueError, RecursionError) as error:
        return ModelRefusal("broken_json", _cut(str(error)))


def _unfenced(text: str) -> str:
    """Return the content of a block of code, if the text is one; a pattern is quadratic here."""
    if len(text) < 2 * len(_FENCE) or not (text.startswith(_FENCE) and text.endswith(_FENCE)):
        return text
    body = text[len(_FENCE) : -len(_FENCE)].removeprefix("json")
    is_block = "\n" in body[: len(body) - len(body.lstrip())]
    return body.strip() if is_block else text


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse repeated keys; json and pydantic would silently take the last one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is repeated")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _first(error: ValidationError) -> str:
    fault = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    return _cut(f"{place}: {fault['msg']}" if place else fault["msg"])


def _cut(text: str) -> str:
    return " ".join(text.split())[:_MAX_DETAIL]


class StrictModel(BaseModel):
    """A frozen model that refuses unknown keys: base of what requests tell and of their answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[AnswerT]):
    """One structured question to a model.

    `material` is sent to a server as JSON; a model that is not a server reads the object itself.
    """

    call: str
    """Call name in the ledger, such as "plan_first_action"."""
    instructions: str
    material: BaseModel
    answer: type[AnswerT]
    sample: int = 0
    """Number of the sample; each sample of a request has its own answer."""
    without_policy: BaseModel | None = None
    """The material without what a policy wrote or caused, which tells whose text a server refuses;
    None if the material has nothing of a policy."""

    def messages(self) -> list[dict[str, str]]:
        """Return the chat messages of the request."""
        schema = json.dumps(self.answer.model_json_schema(), ensure_ascii=False, sort_keys=True)
        system = (
            f"{self.instructions}\n\nReply with one JSON object of this schema and nothing else:\n"
            f"{schema}"
        )
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": self.material.model_dump_json()},
        ]

    def key(self, settings: Mapping[str, object]) -> str:
        """Return a digest of everything the answer depends on, the model's `settings` included."""
        content = {"messages": self.messages(), "sample": self.sample, "settings": dict(settings)}
        return json_digest(content)


class Model(Protocol):
    """Answers structured requests: a server, vLLM in this process, or an embedded teacher."""

    async def answer(self, request: Request[AnswerT]) -> AnswerT | ModelRefusal:
        """Return the answer, or the reason why there is none; a refusal is not an error.

        Raises:
            EngineError: the model takes no more requests (server unreachable, budget spent).
        """
        ...
