"""The task that a program and its cases make, with one of program, input and output left out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from espalier.environments.executed import Asked, Case, case_arguments
from espalier.environments.python_math import PYTHON_GRAMMAR
from espalier.synthesis.absolute_zero.proposals import Proposal
from espalier.tasks import Message, Task, TaskMetadata, Verifier

SOURCE = "absolute_zero"
FAMILIES: dict[Asked, str] = {
    "output": "deduction",
    "input": "abduction",
    "program": "induction",
}
SHOWN_CASES = 3
"""Of an induction; as many again prove the answer."""


def num_inputs(asked: Asked) -> int:
    """How many cases such a task takes."""
    return 2 * SHOWN_CASES if asked == "program" else 1


def triple_task(proposal: Proposal, cases: Sequence[Case], asked: Asked) -> Task | str:
    """The task, or why the cases make none."""
    first, family = cases[0], FAMILIES[asked]
    if any(case.output == case.arguments for case in cases):
        return "output_is_input"
    arguments = {"asked": asked, "cases": case_arguments(cases)}
    match asked:
        case "output":
            question = f"{proposal.program}\nwhat does f({first.arguments}) return ?"
            gold = first.output
        case "input":
            question = f"{proposal.program}\nfind an input for which f returns {first.output} ."
            arguments["program"], gold = proposal.program, first.arguments
        case "program":
            if not proposal.expression:
                return "no_single_expression"
            if len({case.output for case in cases}) < len(cases):
                return "outputs_repeat"
            told = " , ".join(f"f({c.arguments}) is {c.output}" for c in cases[:SHOWN_CASES])
            question = f"{told} .\nwrite f as one Python expression in {proposal.parameters} ."
            arguments["cases"] = case_arguments(cases[SHOWN_CASES:])
            arguments["parameters"], gold = proposal.parameters, proposal.expression
    if any(tag in question for tag in PYTHON_GRAMMAR.tags):
        return "writes_a_tag"
    text = f"{family}\t{question}"
    digest = hashlib.sha256(f"train\t{text}".encode()).hexdigest()
    return Task(
        task_id=f"train-{digest[:12]}",
        prompt=(Message(role="user", content=question),),
        environment="python_math",
        arguments=arguments,
        verifier=Verifier(kind="execution", gold=(gold,)),
        metadata=TaskMetadata(
            family=family,
            split="train",
            hops=max(1, proposal.steps),
            source=SOURCE,
            query=text,
            signature=f"{family} > {proposal.kind}",
        ),
    )
