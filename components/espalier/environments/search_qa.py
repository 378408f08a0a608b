"""Question answering with a search tool, in the tags of Search-R1.

One action is `<think> ... </think> <search> QUERY </search>` or
`<think> ... </think> <answer> ANSWER </answer>`; a search provokes an observation, which the
policy reads between `<information>` and `</information>` (Jin et al. 2025, arXiv:2503.09516).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from espalier.artifacts import PolicyError
from espalier.config import RewardConfig
from espalier.environments.actions import Answer, Malformed
from espalier.environments.environment import Step
from espalier.environments.episode import Episode
from espalier.knowledge.search import NO_RESULTS
from espalier.policy.grammar import Grammar
from espalier.rewards import exact_match
from espalier.rollout.trajectory import FinishReason, ToolCall
from espalier.tasks import Task

SEARCH_GRAMMAR = Grammar(
    call_tags=("<search>", "</search>"),
    observation_tags=("<information>", "</information>"),
    instructions=(
        "Answer the question. First reason inside <think> and </think>. Then either search by "
        "writing <search> query </search>, whose result comes back between <information> and "
        "</information>, or give the final answer, only the name, as <answer> name </answer>. You "
        "may search several times.\n"
    ),
)


class Searcher(Protocol):
    """What the environment needs of a search tool."""

    def observation(self, query: str) -> str:
        """What the agent reads after searching for `query`."""
        ...


@dataclass(frozen=True, slots=True)
class Search:
    """A well-formed call of the search tool."""

    query: str

    @property
    def argument(self) -> str:
        """See `Call`."""
        return self.query


_ACTION = re.compile(
    r"\s*<think>(?P<think>[^<>]*)</think>\s*<(?P<tag>search|answer)>(?P<body>[^<>]*)</(?P=tag)>\s*"
)


def parse_action(text: str) -> Search | Answer | Malformed:
    """Parse one policy message; never raises, whatever the policy wrote."""
    match = _ACTION.fullmatch(text)
    if match is None:
        return Malformed("not one think block followed by one search or answer block")
    body = " ".join(match["body"].split())
    if not body:
        return Malformed(f"empty {match['tag']} block")
    return Search(body) if match["tag"] == "search" else Answer(body)


class SearchQA(Episode):
    """One episode of question answering."""

    def __init__(
        self, task: Task, search: Searcher, *, max_turns: int, reward: RewardConfig
    ) -> None:
        super().__init__(max_turns=max_turns, reward=reward)
        self._task = task
        self._search = search

    def step(self, action: str) -> Step:
        """Play one policy message."""
        match parse_action(action):
            case Search(query):
                result = self._search.observation(query)
                found = result != NO_RESULTS
                return self._called(
                    ToolCall(name="search", argument=query, result=result, succeeded=found)
                )
            case Answer(text):
                return self._answered(text)
            case Malformed():
                return self._finish(FinishReason.PARSE_ERROR)

    def score(self) -> dict[str, float]:
        """Reward terms: `outcome` (exact match) and `format` (ended with a well-formed answer)."""
        return self._terms(exact_match(self.answer, self._task.verifier.gold))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQAs:
    """Makes the environments of question answering; an `Environments`."""

    search: Searcher
    max_turns: int
    reward: RewardConfig

    @property
    def grammar(self) -> Grammar:
        """See `Environments`."""
        return SEARCH_GRAMMAR

    def __call__(self, task: Task) -> SearchQA:
        """See `Environments`.

        Raises:
            PolicyError: the task is of another family.
        """
        if task.environment != "search_qa":
            raise PolicyError(
                f"task {task.task_id}: no environment named {task.environment!r}; known: search_qa"
            )
        return SearchQA(task, self.search, max_turns=self.max_turns, reward=self.reward)
