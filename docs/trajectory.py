"""The worked trajectory of docs/concepts.md: one episode, played by the library and printed.

The policy's messages are dictated, so that the page does not depend on a training run; all the rest
is what happens in training: the environment answers, the tokenizer encodes, GRPO gives credit.
"""

from __future__ import annotations

import asyncio
from functools import cache

import torch

from espalier.algorithms.advantages import Grpo
from espalier.algorithms.batch import CreditBatch
from espalier.config import EpisodeConfig, Profile
from espalier.dialects import SYNTAXES
from espalier.dialects.dialect import Dialect
from espalier.environments import make_task
from espalier.policy.embedded import train_tokenizer
from espalier.records import FinalAnswer, Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.episode import EpisodeContext, ToolRunner, run_episode
from espalier_search.search_qa import SearchQA
from espalier_search.search_qa.family import search_environments
from espalier_search.synthesis.search_wording import search_call
from tests.fakes.scripted_engine import ScriptedEngine

DOCUMENTS = {
    "lyon": "Lyon | country: France",
    "france": "France | capital: Paris | currency: Euro",
}
QUESTION = "What is the currency of the country of Lyon?"
ATTEMPTS = (
    (
        search_call("country , currency", "Lyon country"),
        search_call("currency", "France currency"),
        FinalAnswer("Euro", "answer"),
    ),
    (search_call("country , currency", "Lyon country"), FinalAnswer("Paris", "answer")),
    (FinalAnswer("Euro", "answer"),),
    "<search> Lyon </search>",  # without the thought that the grammar asks for
)
"""What the policy writes in each of the four attempts of the group."""


class _TwoDocuments:
    def observation(self, query: str) -> str:
        """The document whose name the query begins with."""
        return DOCUMENTS.get(query.split()[0].lower(), "no results")


@cache
def dialect() -> Dialect:
    """The tag dialect over a tokenizer that is trained on the few words of this page."""
    texts = [*DOCUMENTS.values(), QUESTION, "search answer country , currency no results"] * 20
    tools = SearchQA(Profile()).specs
    return Dialect(train_tokenizer(texts, 400, SYNTAXES["tags"], tools), tools)


def task() -> Task:
    """The question, with its proven answer."""
    return make_task(
        "search_qa", QUESTION, gold=("Euro",), split="train", source="docs", key="lyon"
    )


@cache
def group() -> tuple[Trajectory, ...]:
    """Four attempts at one task, as a step of training samples them."""
    return tuple(asyncio.run(_played(attempt)) for attempt in ATTEMPTS)


async def _played(attempt: object) -> Trajectory:
    actions = [attempt] if isinstance(attempt, str) else list(attempt)  # pyright: ignore[reportArgumentType] (a tuple)
    written = [
        dialect().text_ids(one) if isinstance(one, str) else dialect().action_ids(one)
        for one in actions
    ]
    context = EpisodeContext(
        engine=ScriptedEngine(dialect(), written),
        dialect=dialect(),
        environments=search_environments(_TwoDocuments(), SearchQA(Profile())),
        tools=ToolRunner(workers=0, timeout_s=5.0),
        limits=EpisodeConfig(),
    )
    return (await run_episode(task(), Sampling(temperature=1.0, seed=0), context)).trajectory


def printed() -> str:
    """Messages, tokens with their masks, and the group's credit, as the page shows them."""
    first = group()[0]
    advantages = _advantages()
    return "\n\n".join(
        [
            "The messages of the first attempt:",
            _fenced(_messages(first)),
            "Its tokens. `P` was read as the prompt, `A` was sampled by the policy, `O` was read "
            "as the answer of a tool. `log-prob` is the sampler's, `advantage` comes from the "
            "group below:",
            _fenced(_tokens(first, advantages[0])),
            "The group of four attempts, and what GRPO makes of their rewards:",
            _fenced(_group(advantages)),
        ]
    )


def _messages(shown: Trajectory) -> list[str]:
    texts = {
        turn.action_start: dialect().text(shown.token_ids[turn.action_start : turn.action_end])
        for turn in shown.turns
    }
    written = iter(texts.values())
    return [
        f"{message.role:<10} "
        + (next(written).strip() if message.role == "assistant" else message.content)
        for message in shown.messages
    ]


def _tokens(shown: Trajectory, advantage: float) -> list[str]:
    lines = [
        f"{'token':<14} {'id':>4}  {'':<2} {'action_mask':>11} {'log-prob':>9} {'advantage':>9}"
    ]
    prompt = shown.turns[0].action_start
    rows = zip(shown.token_ids, shown.action_mask, shown.behavior_logprobs, strict=True)
    for place, (token_id, mask, logprob) in enumerate(rows):
        kind = "P" if place < prompt else "A" if mask else "O"
        text = dialect().text([token_id]).strip() or "(space)"
        lines.append(
            f"{text:<14} {token_id:>4}  {kind:<2} {mask:>11} {logprob:>9.1f} "
            f"{advantage * mask:>9.3f}"
        )
    return lines


def _advantages() -> list[float]:
    """GRPO's credit of each trajectory, with one column for all of its tokens."""
    rewards_B1 = torch.tensor([[shown.total_reward] for shown in group()])
    batch = CreditBatch(
        rewards_BT=rewards_B1,
        action_mask_BT=torch.ones_like(rewards_B1, dtype=torch.bool),
        groups_B=torch.zeros(len(group()), dtype=torch.int64),
    )
    return Grpo().credit(batch).advantages_BT[:, 0].tolist()


def _group(advantages: list[float]) -> list[str]:
    lines = [f"attempt  {'ended as':<12} {'answer':<7} outcome  format  reward  advantage"]
    for number, (shown, advantage) in enumerate(zip(group(), advantages, strict=True), start=1):
        lines.append(
            f"{number:>7}  {shown.finish_reason:<12} {shown.answer or '-':<7} "
            f"{shown.reward['outcome']:>7.1f} {shown.reward['format']:>7.1f} "
            f"{shown.total_reward:>7.1f} {advantage:>10.3f}"
        )
    return lines


def _fenced(lines: list[str]) -> str:
    return "\n".join(["```text", *lines, "```"])
