"""Programs that a model proposes: screened here, run in a sandbox, and never trusted."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from espalier.completions import ModelRefusal, Request, all_answers
from espalier.config import EndpointConfig
from espalier.environments.proposals import ProposalRequest
from espalier.records import Task
from espalier_environments.python_math.absolute_zero.programs import (
    ALLOWED_MODULES,
    Proposal,
    screened,
)
from espalier_environments.python_math.absolute_zero.proposer import (
    SHOWN_CASES,
    TaskDraft,
    num_inputs,
)
from espalier_environments.python_math.execution import UnknownPart

INSTRUCTIONS = (
    "Propose Python programs whose behaviour takes thought to foresee, unlike the references. Each "
    "defines one function f of one to four parameters that returns numbers, texts, lists or "
    "dictionaries of them, the same ones every time; it prints nothing, reads nothing, and imports "
    f"nothing but {', '.join(sorted(ALLOWED_MODULES))}. Give {2 * SHOWN_CASES} different inputs "
    'with each, as the arguments stand in a call, such as "3, [1, 2]".'
)
_PROPOSALS = 4
"""Number of programs that one request asks for."""
_REFERENCES = 6
_MAX_INPUT_CHARACTERS = 200


class _RequestPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReferencesInput(_RequestPart):
    """Earlier tasks, as references for the model."""

    references: tuple[str, ...]
    wanted: int


class ProposedProgram(_RequestPart):
    """A program, and arguments to call it with."""

    program: Annotated[str, Field(min_length=1, max_length=4000)]
    inputs: tuple[Annotated[str, Field(max_length=_MAX_INPUT_CHARACTERS)], ...] = Field(
        min_length=1, max_length=64
    )


class ProposedPrograms(_RequestPart):
    """The answer to one request."""

    programs: tuple[ProposedProgram, ...] = Field(max_length=4 * _PROPOSALS)


class TeacherDrafts:
    """Drafts of programs proposed by the model behind an endpoint."""

    def __init__(self, asked: Sequence[UnknownPart], endpoint: EndpointConfig) -> None:
        self._asked = asked
        self._endpoint = endpoint

    def __call__(self, order: ProposalRequest) -> list[TaskDraft | str]:
        """Return drafts for the requested number of tasks, or reasons for refusal.

        Raises:
            EngineError: the server cannot be used.
        """
        found: list[TaskDraft | str] = []
        rng = random.Random(f"{order.seed}:asked")
        for answer in all_answers(self._endpoint, _requests(order)):
            if isinstance(answer, ModelRefusal):
                found.append(f"answer_{answer.reason}")
            else:
                found += [draft_of(one, rng.choice(self._asked)) for one in answer.programs]
        return found


def _requests(order: ProposalRequest) -> Iterator[Request[ProposedPrograms]]:
    rng = random.Random(order.seed)
    earlier = [task for task in order.known if task.verifier.kind == "execution"]
    for number in range(-(-order.num_tasks // _PROPOSALS)):
        shown: list[Task] = rng.sample(earlier, min(_REFERENCES, len(earlier)))
        references = tuple(task.question for task in shown)
        yield Request(
            call="propose_programs",
            instructions=INSTRUCTIONS,
            material=ReferencesInput(references=references, wanted=_PROPOSALS),
            answer=ProposedPrograms,
            sample=number,
        )


def draft_of(proposed: ProposedProgram, asked: UnknownPart) -> TaskDraft | str:
    """Return the draft that leaves `asked` out, or why the proposal cannot make one."""
    found = screened(proposed.program)
    if isinstance(found, str):
        return found
    inputs = tuple(dict.fromkeys(" ".join(text.split()) for text in proposed.inputs))
    if len(inputs) < num_inputs(asked):
        return "too_few_inputs"
    proposal = Proposal(
        program=found.program,
        parameters=found.parameters,
        inputs=inputs[: num_inputs(asked)],
        expression=found.expression,
        steps=found.steps,
        kind=" > ".join(["statement"] * found.steps),
    )
    return TaskDraft(proposal, asked)
