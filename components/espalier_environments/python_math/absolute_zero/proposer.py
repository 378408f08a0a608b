"""Proposes deductions, abductions and inductions whose answers were proven in a sandbox.

Each task is made of a program and its cases, with one of program, input and output left out.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from espalier.config import KubernetesConfig
from espalier.dialects import SYNTAXES
from espalier.environments.interpreter import PythonRuns, SeparateRuns
from espalier.environments.proposals import ProposalRequest, ProposedTasks, weight_of
from espalier.records import JsonObject, Message, Task, TaskMetadata, ToolSpec, Verifier, task_id_of
from espalier.sandbox.choice import sandbox_pool
from espalier_environments.python_math.absolute_zero.programs import (
    MAX_STEPS,
    Proposal,
    chain_proposals,
)
from espalier_environments.python_math.config import PythonMathConfig
from espalier_environments.python_math.execution import Case, UnknownPart, case_arguments, executed

SOURCE = "absolute_zero"
KINDS: dict[UnknownPart, str] = {
    "output": "deduction",
    "input": "abduction",
    "program": "induction",
}
SHOWN_CASES = 3
"""Number of cases that an induction shows; as many again prove the answer."""


_TOOL = ToolSpec(name="python", call_tag="code", result_tag="interpreter")
_CONTROLS = tuple(
    text
    for syntax in SYNTAXES.values()
    for text in syntax.markers([_TOOL])
    if not text.isspace()  # a program contains line breaks
)
"""Markers of every dialect, none of which a question may contain."""


def num_inputs(asked: UnknownPart) -> int:
    """Return the number of cases that a task of this kind needs."""
    return 2 * SHOWN_CASES if asked == "program" else 1


def triple_task(proposal: Proposal, cases: Sequence[Case], asked: UnknownPart) -> Task | str:
    """Return the task, or why the cases cannot make one."""
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
            shown = " , ".join(f"f({c.arguments}) is {c.output}" for c in cases[:SHOWN_CASES])
            question = f"{shown} .\nwrite f as one Python expression in {proposal.parameters} ."
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


_PROPOSALS_PER_TASK = 2
"""Programs run per requested task: some repeat others, or return their input."""


Found = list[Case] | str
"""The cases of a draft that ran, or the reason why there are none."""


class TaskDraft(NamedTuple):
    """A proposal, and the part that its task leaves out."""

    proposal: Proposal
    asked: UnknownPart


Drafts = Callable[[ProposalRequest], list[TaskDraft | str]]
"""Proposes programs; a text in place of a draft says why it was refused."""


class TripleProposer:
    """Runs proposed programs in its own sandboxes and makes tasks from them."""

    def __init__(
        self, drafts: Drafts, environment: PythonMathConfig, cluster: KubernetesConfig
    ) -> None:
        """Store the settings; sandboxes start with each call of `propose`.

        Args:
            drafts: proposes programs.
            environment: settings of the sandboxes, the same as for the policy's programs.
            cluster: the cluster of the sandboxes, if they are pods.
        """
        self._drafts = drafts
        self._environment = environment
        self._cluster = cluster

    def propose(self, order: ProposalRequest) -> ProposedTasks:
        """Return new tasks, and counts of what was refused.

        Raises:
            EngineError: the proposing model cannot be used.
            SandboxError: no sandbox can be created.
        """
        drafts = self._drafts(order)
        with sandbox_pool(self._environment.sandbox, self._cluster) as sandboxes:
            runs = SeparateRuns(sandboxes, self._environment.code_timeout_s)
            return tasks_from(drafts, asyncio.run(all_executed(drafts, runs)), order)


class ChainDrafts:
    """Drafts programs from calculations; kinds with higher rewards are drawn more often."""

    def __init__(self, asked: Sequence[UnknownPart]) -> None:
        self._kinds: list[tuple[UnknownPart, int]] = [
            (one, steps) for one in asked for steps in range(1, MAX_STEPS + 1)
        ]

    def __call__(self, order: ProposalRequest) -> list[TaskDraft | str]:
        """Return drafts for the requested number of tasks, with some spare."""
        rng = random.Random(order.seed)

        # each kind is drawn by the rewards that its tasks earned
        earned: dict[tuple[str, int], list[float]] = defaultdict(list)
        for signature, reward in order.earned.items():
            kind, *changes = signature.split(" > ")
            earned[kind, len(changes)].append(reward)
        weights = [weight_of(earned[KINDS[asked], steps]) for asked, steps in self._kinds]

        sources: dict[tuple[UnknownPart, int], Iterator[Proposal]] = {}
        found: list[TaskDraft | str] = []
        for _ in range(_PROPOSALS_PER_TASK * order.num_tasks):
            asked, steps = drawn = rng.choices(self._kinds, weights)[0]
            if drawn not in sources:
                draw = random.Random(rng.getrandbits(48))
                sources[drawn] = chain_proposals(steps, num_inputs(asked), draw)
            if (proposal := next(sources[drawn], None)) is not None:
                found.append(TaskDraft(proposal, asked))
        return found


async def all_executed(drafts: Sequence[TaskDraft | str], runs: PythonRuns) -> list[Found]:
    """Return the cases of every draft, or why it has none; as concurrent as the sandboxes allow."""

    async def found(draft: TaskDraft | str) -> Found:
        if isinstance(draft, str):
            return draft
        return await executed(draft.proposal.program, draft.proposal.inputs, runs)

    return await asyncio.gather(*map(found, drafts))


def tasks_from(
    drafts: Sequence[TaskDraft | str], results: Sequence[Found], order: ProposalRequest
) -> ProposedTasks:
    """Return at most `order.num_tasks` tasks of the drafts that ran, in order; count refusals."""
    refused: Counter[str] = Counter()
    asked_before = {str(task.extra.get("query", "")) for task in order.known}
    tasks: list[Task] = []
    for draft, cases in zip(drafts, results, strict=True):
        if len(tasks) == order.num_tasks:
            break
        if isinstance(draft, str):
            found = draft
        elif isinstance(cases, str):
            found = cases
        else:
            found = triple_task(draft.proposal, cases, draft.asked)
        if isinstance(found, str):
            refused[found] += 1
        elif str(found.extra["query"]) in asked_before:
            refused["asked_before"] += 1
        else:
            asked_before.add(str(found.extra["query"]))
            tasks.append(found)
    return ProposedTasks(tasks, refused)
