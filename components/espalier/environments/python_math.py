r"""Mathematics with a Python interpreter, in the tags of ReTool.

One action is free reasoning, in `<think>` tags or not, and then `<code> PROGRAM </code>` or
`<answer> ANSWER </answer>`, where the answer may stand in \boxed{}. A program is run in a sandbox,
and what it prints is read between `<interpreter>` and `</interpreter>` (Feng et al. 2025,
arXiv:2504.11536).
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from espalier.artifacts import PolicyError
from espalier.config import PythonMathConfig, RewardConfig
from espalier.environments.actions import Answer, Malformed
from espalier.environments.environment import Step
from espalier.environments.episode import Episode
from espalier.environments.executed import is_proven
from espalier.environments.python_runs import PythonRuns, SeparateRuns, SessionRuns
from espalier.policy.grammar import Grammar
from espalier.rewards import final_answer, is_right, retool_reward
from espalier.rollout.trajectory import FinishReason, ToolCall
from espalier.sandbox import ExecResult, SandboxRefused
from espalier.sandbox.pool_thread import PoolThread
from espalier.tasks import Task

PYTHON_GRAMMAR = Grammar(
    call_tags=("<code>", "</code>"),
    observation_tags=("<interpreter>", "</interpreter>"),
    instructions=(
        "Solve the problem. First reason inside <think> and </think>. Then either write a complete "
        "Python program as <code> program </code>, whose printed output comes back between "
        "<interpreter> and </interpreter>, or give the final answer as "
        "<answer> \\boxed{answer} </answer>. You may run several programs.\n"
    ),
    digits_apart=True,
)
NOTHING_PRINTED = "(nothing printed)"
_CUT = " ... "
_FENCE = "```"


@dataclass(frozen=True, slots=True)
class Program:
    """A well-formed call of the interpreter."""

    code: str

    @property
    def argument(self) -> str:
        """See `Call`."""
        return self.code


def parse_action(text: str) -> Program | Answer | Malformed:
    """Parse one policy message; never raises, whatever the policy wrote."""
    if any(tag in text for tag in PYTHON_GRAMMAR.observation_tags):
        return Malformed("writes what the interpreter would say itself")
    found = [(text.find(tag), tag) for tag in PYTHON_GRAMMAR.kind_tags if tag in text]
    if not found:
        return Malformed("neither a code block nor an answer block")
    start, opening = min(found)
    closing = opening.replace("<", "</")
    body, closed, rest = text[start + len(opening) :].rpartition(closing)
    if not closed or rest.strip():
        return Malformed(f"no {closing} at its end")
    if opening == PYTHON_GRAMMAR.kind_tags[0]:
        code = _unfenced(body)
        return Program(code) if code else Malformed("empty code block")
    answer = final_answer(" ".join(body.split()))
    return Answer(answer) if answer else Malformed("empty answer block")


def _unfenced(body: str) -> str:
    """The program without a Markdown fence around it, and without common indentation."""
    text = body.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE) and "\n" in text:
        body = text.partition("\n")[2].removesuffix(_FENCE)
    return textwrap.dedent(body.strip("\n")).strip()


def observed(result: ExecResult, max_characters: int) -> str:
    """What the policy reads of a program's end: its output, and the limit that ended it."""
    text = result.text.strip()
    if result.timed_out:
        text += "\nTimeoutError: the program took too long"
    elif result.killed_by is not None:
        text += f"\nKilled: limit of {result.killed_by.replace('_', ' ')}"
    return shortened(text.strip() or NOTHING_PRINTED, max_characters)


def shortened(text: str, max_characters: int) -> str:
    """At most so many characters of `text`, from both ends: a traceback says at its end why."""
    if len(text) <= max_characters:
        return text
    kept = max_characters - len(_CUT)
    return text[: kept // 2] + _CUT + text[len(text) - (kept - kept // 2) :]


class PythonMath(Episode):
    """One episode of mathematics."""

    def __init__(
        self,
        task: Task,
        runs: PythonRuns,
        *,
        max_turns: int,
        config: PythonMathConfig,
        reward: RewardConfig,
        checks: PythonRuns | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, reward=reward)
        self._task = task
        self._runs = runs
        self._checks = checks or runs
        """Prove the answer where that takes a program; none of the policy's is in their way."""
        self._config = config

    async def step(self, action: str) -> Step:
        """Play one policy message."""
        match parse_action(action):
            case Program(code):
                return self._called(await self._run(code))
            case Answer(text):
                return self._answered(text)
            case Malformed():
                return self._finish(FinishReason.PARSE_ERROR)

    async def score(self) -> dict[str, float]:
        """Reward terms: `outcome` (ReTool's, by the task's verifier) and `format` (it answered)."""
        correct = await self._is_right()
        outcome = retool_reward(
            correct=correct,
            num_messages=2 + 2 * len(self.tool_calls),
            credit_per_message=self._config.credit_per_message,
        )
        return self._terms(outcome)

    async def _is_right(self) -> bool:
        verifier = self._task.verifier
        if verifier.kind == "execution":
            return await is_proven(self._task, self.answer, self._checks)
        # in a thread: comparing may take seconds, and other episodes go on meanwhile
        return await asyncio.to_thread(is_right, self.answer, verifier)

    async def _run(self, code: str) -> ToolCall:
        try:
            result = await self._runs.run(code)
        except SandboxRefused as refused:
            observation, succeeded = f"Refused: {refused}", False
        else:
            observation = observed(result, self._config.max_observation_characters)
            succeeded = result.succeeded
        return ToolCall(name="python", argument=code, result=observation, succeeded=succeeded)

    def _finish(self, reason: FinishReason) -> Step:
        self._runs.end()
        return super()._finish(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonMaths:
    """Makes the environments of mathematics; an `Environments`."""

    sandboxes: PoolThread
    config: PythonMathConfig
    max_turns: int
    reward: RewardConfig

    @property
    def grammar(self) -> Grammar:
        """See `Environments`."""
        return PYTHON_GRAMMAR

    def __call__(self, task: Task) -> PythonMath:
        """See `Environments`.

        Raises:
            PolicyError: the task is of another family.
        """
        if task.environment != self.config.name:
            raise PolicyError(
                f"task {task.task_id}: no environment named {task.environment!r}; known: "
                f"{self.config.name}"
            )
        make: Callable[[PoolThread, float], PythonRuns] = (
            SessionRuns if self.config.session == "stateful" else SeparateRuns
        )
        return PythonMath(
            task,
            make(self.sandboxes, self.config.code_timeout_s),
            max_turns=self.max_turns,
            config=self.config,
            reward=self.reward,
            checks=SeparateRuns(self.sandboxes, self.config.code_timeout_s),
        )
