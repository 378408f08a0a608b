"""Higher-order action synthesis (AgentFounder, arXiv:2509.13310): trajectories as decisions.

At every step of a right or wrong trajectory, a model proposes alternatives, which are not executed
but shuffled together with the action taken. The text is a sequence of such choices with the real
observations, and ends with the real outcome:

    user       Name the time zone used in Duaca.
    assistant  Option 1: <think> country </think> <search> Duaca country </search>
               Option 2: <think> time zone </think> <search> Duaca time zone </search>
               I will choose option 2.
    tool       Duaca | time zone: America/Caracas
    assistant  Option 1: ... I will choose option 1. My decision is Correct.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Iterable
from typing import Literal

from espalier.completions import Model, ModelRefusal, in_order
from espalier.environments.funnel import Funnel
from espalier.records import AgentText, FinalAnswer, Message, Task
from espalier.records.trajectory import Trajectory
from espalier_search.synthesis.agent_texts.calls import (
    Candidate,
    StepInput,
    alternatives_request,
    plain_text,
)
from espalier_search.synthesis.search_wording import WriteAction, search_call
from espalier_search.synthesis.task_making import evidence_of

HEADING = "decisions"


class Decider:
    """Turns trajectories into decision texts."""

    def __init__(
        self,
        model: Model,
        alternatives: int,
        funnel: Funnel,
        write: WriteAction,
        *,
        seed: int,
        in_flight: int,
    ) -> None:
        """Create a decider.

        Args:
            model: proposes the alternatives.
            alternatives: number of alternatives to request at each step.
            funnel: counts kept and refused texts.
            write: writes actions in the policy's dialect.
            seed: seed of the run.
            in_flight: attempts worked on at a time.
        """
        self._model = model
        self._write = write
        self._alternatives = alternatives
        self._funnel = funnel
        self._seed = seed
        self._in_flight = in_flight

    async def texts(self, attempts: Iterable[tuple[Task, Trajectory]]) -> AsyncGenerator[AgentText]:
        """The decision texts of the attempts, in their order."""
        async for text in in_order(self._decision_text, attempts, in_flight=self._in_flight):
            if text is not None:
                yield text

    async def _decision_text(self, attempt: tuple[Task, Trajectory]) -> AgentText | None:
        task, trajectory = attempt
        rng = random.Random(f"{self._seed}/{trajectory.group_id}/decision")
        pieces: list[Message] = []
        seen: list[str] = []
        for message in trajectory.messages[len(task.prompt) :]:
            if message.role != "assistant":
                seen.append(message.content)
                pieces.append(message)
                continue
            choice = await self._choice(task, tuple(seen), message, rng)
            if choice is None:
                return None
            pieces.append(Message(role="assistant", content=choice))
        if not pieces or pieces[-1].role != "assistant":
            self._funnel.count(HEADING, "never_answered")
            return None
        is_right = trajectory.reward.get("outcome", 0.0) > 0
        verdict = "Correct" if is_right else "Incorrect"
        ending = f"{pieces[-1].content} My decision is {verdict}."
        pieces[-1] = Message(role="assistant", content=ending)
        self._funnel.count(HEADING, f"kept_{verdict.lower()}")
        return AgentText(
            text_id=f"decision-{trajectory.group_id.replace('/', '-')}",
            kind="decision",
            style=verdict.lower(),
            prompt=task.prompt,
            pieces=tuple(pieces),
            task_id=task.task_id,
            sources=evidence_of(task),
        )

    async def _choice(
        self, task: Task, seen: tuple[str, ...], action: Message, rng: random.Random
    ) -> str | None:
        """The options in random order and the one taken; None if there is no alternative."""
        taken = _candidate(action)
        if taken is None:
            self._funnel.count(HEADING, "malformed_action")
            return None
        told = StepInput(question=task.question, seen=seen, taken=taken, count=self._alternatives)
        answer = await self._model.answer(alternatives_request(told))
        others = () if isinstance(answer, ModelRefusal) else answer.candidates[: self._alternatives]
        # apart from their thoughts, the actions differ
        done = (taken.action, taken.text.casefold())
        others = tuple(
            other
            for other in dict.fromkeys(others)
            if (other.action, other.text.casefold()) != done
        )
        if not others:
            self._funnel.count(HEADING, "no_alternative")
            return None
        options = [taken, *others]
        rng.shuffle(options)
        said: list[str] = []
        for number, option in enumerate(options, start=1):
            if option.action == "search":
                written = self._write(search_call(option.thought, option.text))
            else:
                written = self._write(FinalAnswer(option.text, option.thought))
            said.append(f"Option {number}: {written}")
        return f"{' '.join(said)} I will choose option {options.index(taken) + 1}."


def _candidate(action: Message) -> Candidate | None:
    """The action taken; None if its thought or text is not plain text."""
    thought = plain_text(action.thought or "")
    if action.tool_calls:
        text = plain_text(str(action.tool_calls[0].arguments.get("query", "")))
        kind: Literal["search", "answer"] = "search"
    else:
        text, kind = plain_text(action.content), "answer"
    return Candidate(thought=thought, action=kind, text=text) if thought and text else None
