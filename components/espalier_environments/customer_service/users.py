"""The user that the policy talks to: one who follows a script, or one played by a model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

from espalier.completions import (
    EndpointModel,
    ModelRefusal,
    PlainText,
    RefusedTextError,
    Request,
    StrictModel,
)
from espalier.config import EndpointConfig
from espalier.environments.contract import EnvironmentLostError, UnreadableTextError

T = TypeVar("T")

_CUES = {
    "name": ("name", "who are you", "identity"),
    "email": ("email", "e-mail"),
    "zip": ("zip", "postal"),
    "user_id": ("user id", "customer id", "account"),
    "order": ("order id", "order number", "which order"),
    "reservation": ("reservation id", "reservation number", "which reservation"),
    "reason": ("reason", "why"),
    "payment": ("payment", "refund", "which card"),
    "address": ("address",),
    "cabin": ("cabin", "class"),
    "insurance": ("insurance",),
    "item": ("which item", "which product"),
}
"""Fact -> words of the agent that ask for it."""
_QUESTION = ("?", "please provide", "please tell", "yes/no", "(yes", "could you", "let me know")
_CONFIRMING = ("yes/no", "yes or no", "(yes", "proceed", "go ahead")


class ScriptedUser:
    """A user who answers questions, agrees to proposals, and leaves when nothing is asked.

    The user is deterministic and does not see the database: its replies do not reveal to the agent
    whether its actions were right.
    """

    def __init__(self, facts: Mapping[str, str], *, reminders: int) -> None:
        """Store the `facts` that the user knows, by the names of `_CUES`."""
        self._facts = facts
        self._reminders = reminders

    def reply(self, said: str) -> str | None:
        """Return the reply to the agent's message; None if the user leaves."""
        heard = said.lower()
        if any(cue in heard for cue in _CONFIRMING):
            return "yes ."
        if any(cue in heard for cue in _QUESTION):
            return self._told(heard) or "yes ."
        if self._reminders:
            self._reminders -= 1
            return "is everything done that i asked for ?"
        return None

    def _told(self, heard: str) -> str:
        """Return the facts that the agent asks for and does not state itself."""
        told = [
            value
            for fact, value in self._facts.items()
            if value.lower() not in heard and any(cue in heard for cue in _CUES.get(fact, ()))
        ]
        return f"{' , '.join(told)} ." if told else ""


class _Line(StrictModel):
    """One message of a conversation."""

    speaker: Literal["agent", "user"]
    text: str


class _Situation(StrictModel):
    """What a model that plays a user reads."""

    instruction: str
    conversation: tuple[_Line, ...]


class _NextLine(StrictModel):
    """What the user says next."""

    text: PlainText
    leaves: bool


_PLAY = (
    "Play a customer who writes to a company's service agent. `instruction` says who the customer "
    "is, what they want and how they behave; `conversation` is what was said so far. Write the "
    "customer's next message, in one line and in your own words: answer what the agent asked, tell "
    "no more of the instruction than this step needs, and invent nothing that it does not say; "
    "where it does not say what is asked, the customer does not know it. Set `leaves` to true, and "
    "say goodbye, once all that the instruction wants is done or finally refused, or the agent "
    "hands the customer over to somebody else; otherwise set it to false."
)


class ModelThread:
    """A model on the event loop of its own thread: one ledger and one limit for all episodes.

    Each rollout runs on its own event loop, but a client belongs to a single loop.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="espalier-users", daemon=True
        )

    def __enter__(self) -> Self:
        """Start the thread and open the model.

        Raises:
            EngineError: the settings name no server, or the key cannot be read.
        """
        self.model = EndpointModel(self._config)
        self._thread.start()
        self._post(self.model.__aenter__()).result()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self._post(self.model.__aexit__(None, None, None)).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _post(self, work: Coroutine[Any, Any, T]) -> Any:  # noqa: ANN401 (a future of T)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def next_line(self, instruction: str, said: Sequence[_Line]) -> _NextLine | ModelRefusal:
        """Return the user's next message, or why there is none.

        Raises:
            UnreadableTextError: the server refuses what the agent wrote, or the model has no
                readable answer because of it.
            EngineError: the server is unreachable, or the cost limit is reached.
        """
        request = Request(
            call="play_user",
            instructions=_PLAY,
            material=_Situation(instruction=instruction, conversation=tuple(said)),
            answer=_NextLine,
            without_policy=_Situation(
                instruction=instruction,
                conversation=tuple(line for line in said if line.speaker == "user"),
            ),
        )
        try:
            line = await asyncio.wrap_future(self._post(self.model.answer(request)))
        except RefusedTextError as refused:
            raise UnreadableTextError(f"the simulated user: {refused}") from refused
        if isinstance(line, ModelRefusal) and await asyncio.wrap_future(
            self._post(self.model.reads_without_policy(request))
        ):
            raise UnreadableTextError(f"the simulated user: {line.reason} {line.detail}".strip())
        return line


class EndpointUser:
    """A user played by a model."""

    def __init__(self, models: ModelThread, instruction: str, opening: str) -> None:
        self._models = models
        self._instruction = instruction
        self._said = [_Line(speaker="user", text=opening)]

    async def reply(self, said: str) -> str | None:
        """Return the reply to the agent's message; None if the user leaves.

        Raises:
            EnvironmentLostError: the model gives no readable answer; nothing is scored.
            UnreadableTextError, EngineError: as `ModelThread.next_line`.
        """
        self._said.append(_Line(speaker="agent", text=said))
        line = await self._models.next_line(self._instruction, self._said)
        if isinstance(line, ModelRefusal):
            raise EnvironmentLostError(f"the simulated user: {line.reason} {line.detail}".strip())
        self._said.append(_Line(speaker="user", text=line.text))
        return None if line.leaves else line.text
