"""Poses deductions, abductions and inductions whose answers a sandbox has proven."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from espalier.config import KubernetesConfig
from espalier.environments.python_math.absolute_zero.executing import executed
from espalier.environments.python_math.absolute_zero.proposals import (
    MAX_STEPS,
    Proposal,
    chain_proposals,
)
from espalier.environments.python_math.absolute_zero.wording import KINDS, num_inputs, triple_task
from espalier.environments.python_math.config import PythonMathConfig
from espalier.environments.python_math.executed import Asked, Case
from espalier.environments.python_math.python_runs import PythonRuns, SeparateRuns
from espalier.records import Task
from espalier.sandbox.choice import sandbox_pool
from espalier.synthesis.self_play import Order, Posed, weight_of

_PROPOSALS_PER_TASK = 2
"""Programs that are run for each task that is asked for: some repeat, or return what they got."""


Found = list[Case] | str
"""What came of running a draft; a text says why nothing did."""


class Draft(NamedTuple):
    """A proposal, and what its task leaves out."""

    proposal: Proposal
    asked: Asked


Drafts = Callable[[Order], list[Draft | str]]
"""Whoever proposes programs; a text says why a proposal is none."""


class TriplePoser:
    """Runs proposed programs in sandboxes of its own, for as long as a phase is posed."""

    def __init__(
        self, drafts: Drafts, environment: PythonMathConfig, cluster: KubernetesConfig
    ) -> None:
        """Start nothing yet.

        Args:
            drafts: whoever proposes programs.
            environment: where the policy's programs run; these run in the like of it.
            cluster: where sandboxes are, if they are pods.
        """
        self._drafts = drafts
        self._environment = environment
        self._cluster = cluster

    def pose(self, order: Order) -> Posed:
        """See `PosesTasks`.

        Raises:
            EngineError: a model proposes, and it cannot be asked.
            SandboxError: there are no sandboxes.
        """
        drafts = self._drafts(order)
        with sandbox_pool(self._environment.sandbox, self._cluster) as sandboxes:
            runs = SeparateRuns(sandboxes, self._environment.code_timeout_s)
            return posed_from(drafts, asyncio.run(all_executed(drafts, runs)), order)


class ChainDrafts:
    """Programs that are chains of operations, those of a kind more often that earned more."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        self._kinds: list[tuple[Asked, int]] = [
            (one, steps) for one in asked for steps in range(1, MAX_STEPS + 1)
        ]

    def __call__(self, order: Order) -> list[Draft | str]:
        """See `Drafts`."""
        rng = random.Random(order.seed)
        weights = _weights(order, self._kinds)
        sources: dict[tuple[Asked, int], Iterator[Proposal]] = {}
        found: list[Draft | str] = []
        for _ in range(_PROPOSALS_PER_TASK * order.num_tasks):
            asked, steps = kind = rng.choices(self._kinds, weights)[0]
            if kind not in sources:
                draw = random.Random(rng.getrandbits(48))
                sources[kind] = chain_proposals(steps, num_inputs(asked), draw)
            if (proposal := next(sources[kind], None)) is not None:
                found.append(Draft(proposal, asked))
        return found


async def all_executed(drafts: Sequence[Draft | str], runs: PythonRuns) -> list[Found]:
    """The cases of every draft, or why it has none; as many at a time as there are sandboxes."""

    async def found(draft: Draft | str) -> Found:
        if isinstance(draft, str):
            return draft
        return await executed(draft.proposal.program, draft.proposal.inputs, runs)

    return await asyncio.gather(*map(found, drafts))


def posed_from(drafts: Sequence[Draft | str], results: Sequence[Found], order: Order) -> Posed:
    """The first tasks of the drafts that came out, as many as the order counts."""
    refused: Counter[str] = Counter()
    asked_before = {str(task.extra.get("query", "")) for task in order.known}
    tasks: list[Task] = []
    for draft, cases in zip(drafts, results, strict=True):
        if len(tasks) == order.num_tasks:
            break
        found = _task(draft, cases)
        if isinstance(found, str):
            refused[found] += 1
        elif str(found.extra["query"]) in asked_before:
            refused["asked_before"] += 1
        else:
            asked_before.add(str(found.extra["query"]))
            tasks.append(found)
    return Posed(tasks, refused)


def _task(draft: Draft | str, cases: Found) -> Task | str:
    if isinstance(draft, str):
        return draft
    return cases if isinstance(cases, str) else triple_task(draft.proposal, cases, draft.asked)


def _weights(order: Order, kinds: Sequence[tuple[Asked, int]]) -> list[float]:
    """Of each kind, by what its tasks earned; the programs of a kind differ in their operations."""
    earned: dict[tuple[str, int], list[float]] = defaultdict(list)
    for signature, reward in order.earned.items():
        kind, *steps = signature.split(" > ")
        earned[kind, len(steps)].append(reward)
    return [weight_of(earned[KINDS[asked], steps]) for asked, steps in kinds]
