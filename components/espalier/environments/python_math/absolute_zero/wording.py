"""The task that a program and its cases make, with one of program, input and output left out."""

from __future__ import annotations

from collections.abc import Sequence

from espalier.dialects import SYNTAXES
from espalier.environments.python_math.absolute_zero.proposals import Proposal
from espalier.environments.python_math.executed import Asked, Case, case_arguments
from espalier.records import JsonObject, Message, Task, TaskMetadata, ToolSpec, Verifier, task_id_of

SOURCE = "absolute_zero"
KINDS: dict[Asked, str] = {
    "output": "deduction",
    "input": "abduction",
    "program": "induction",
}
SHOWN_CASES = 3
"""Of an induction; as many again prove the answer."""


_TOOL = ToolSpec(name="python", call_tag="code", result_tag="interpreter")
_CONTROLS = tuple(text for syntax in SYNTAXES.values() for text in syntax.markers([_TOOL]))
"""What a question must not spell, in any dialect."""


def num_inputs(asked: Asked) -> int:
    """How many cases such a task takes."""
    return 2 * SHOWN_CASES if asked == "program" else 1


def triple_task(proposal: Proposal, cases: Sequence[Case], asked: Asked) -> Task | str:
    """The task, or why the cases make none."""
    first, kind = cases[0], KINDS[asked]
    if any(case.output == case.arguments for case in cases):
        return "output_is_input"
    arguments: JsonObject = {"asked": asked, "cases": case_arguments(cases)}
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
    if any(tag in question for tag in _CONTROLS):
        return "writes_a_tag"
    text = f"{kind}\t{question}"
    return Task(
        task_id=task_id_of("train", text),
        prompt=(Message(role="user", content=question),),
        environment="python_math",
        arguments=arguments,
        verifier=Verifier(kind="execution", gold=(gold,)),
        metadata=TaskMetadata(
            split="train",
            source=SOURCE,
            pattern=f"{kind} > {proposal.kind}",
            difficulty=max(1, proposal.steps),
            extra={"kind": kind, "hops": max(1, proposal.steps), "query": text},
        ),
    )
