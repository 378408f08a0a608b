"""A structured call: what is told, what is asked, and the type that must come back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol

from pydantic import BaseModel, ConfigDict

from espalier.completions.answers import AnswerT, Refusal
from espalier.records import json_digest


class StrictModel(BaseModel):
    """A frozen model that refuses unknown keys: base of what requests tell and of their answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[AnswerT]):
    """One question to a model.

    `material` is sent to a server as JSON; a model that is no server reads it as it is.
    """

    call: str
    """Name under which the ledger sums up its cost, such as "plan_first_action"."""
    instructions: str
    material: BaseModel
    answer: type[AnswerT]
    sample: int = 0
    """Tells draws of one request apart: each has an answer of its own."""

    def messages(self) -> list[dict[str, str]]:
        """The chat messages of the request."""
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
        """Digest of everything that the answer depends on, `settings` of the model included."""
        content = {"messages": self.messages(), "sample": self.sample, "settings": dict(settings)}
        return json_digest(content)


class Model(Protocol):
    """Answers structured requests; the endpoint and the embedded teacher are two siblings."""

    async def answer(self, request: Request[AnswerT]) -> AnswerT | Refusal:
        """The answer, or why there is none; a refusal is data and no error.

        Raises:
            EngineError: the model cannot be asked any more (server away, budget spent).
        """
        ...
