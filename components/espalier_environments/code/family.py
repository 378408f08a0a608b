"""Programs that are judged by unit tests (HumanEval, arXiv:2107.03374; MBPP, arXiv:2108.07732).

The policy may run the visible tests, and answers with a program. Hidden tests judge it, in a
sandbox in which no program of a policy ran before.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Literal

from espalier.algorithms.shaping import Span
from espalier.config import EnvironmentConfig, Profile, require_composition
from espalier.environments.contract import Environments, EnvironmentsOver, sandbox_losses
from espalier.environments.episode import EpisodeRules, TurnResults
from espalier.environments.family import SimpleFamily
from espalier.environments.interpreter import PythonRuns, SeparateRuns, python_tool, shortened
from espalier.environments.mixins import HasBenchmarks
from espalier.environments.reading import ReadingMaterial
from espalier.environments.teaching import Script
from espalier.environments.tools import Tool, ToolOutput
from espalier.records import FinalAnswer, Split, Task, ToolCall, ToolCalls
from espalier.records.trajectory import Trajectory
from espalier.rewards.unit_tests import OUTCOME_SPANS, compile_term, unit_test_reward
from espalier.sandbox.choice import PoolThread, sandbox_pool
from espalier_environments.code.benchmarks import read_programming_tasks
from espalier_environments.code.config import CodeConfig
from espalier_environments.code.judging import Judgement, judge
from espalier_environments.code.matching import DATA_FLOW, SYNTAX, gold_matches
from espalier_environments.code.scratch import Pieces, ScratchPrograms
from espalier_environments.code.tasks import made_tasks
from espalier_environments.code.unit_tests import unit_tests_of

INSTRUCTIONS = (
    "Solve the programming task in Python. Answer with the whole program, imports included, and "
    "nothing else; it may stand in a block of ```python. Functions have the names that the task "
    "gives them. Hidden tests judge the program.\n"
)
_FENCE = re.compile(
    r"((?:[^`~]|`{1,2}+(?!`)|~{1,2}+(?!~))*+)(`{3,}+|~{3,}+)[ \t]*+([\w+#.-]*+)([^`]*+)"
)
"""A line with one fence: the text before it, its characters, the language, and what follows."""
_CODE_INDENT = 4
"""Columns; a line indented so much more than its block stands in a docstring."""
_LIST_MARKS = " -*+0123456789.)"
_LANGUAGES = frozenset({"", "py", "py3", "python", "python3"})
_DEFINED = re.compile(r"^(?:(?:async +)?def|class) +(\w+)", re.MULTILINE)
_ASSIGNED = re.compile(r"^(\w+) *+(?::[^=\n]*+)?=(?!=)", re.MULTILINE)
_IMPORTS = re.compile(r"^(?:from +[\w.]++ +)?import +(\([^()]*+\)|[^\n]++)", re.MULTILINE)
_BOUND = re.compile(r"\b(\w++)[ \t\r]*+(?:[,;#)\n]|\Z)")
"""The name that a part of an import binds: the last word of the part."""
_MOST_JUDGEMENTS = 4096


class Code(SimpleFamily[CodeConfig], HasBenchmarks):
    """The family of programming tasks judged by unit tests."""

    name = "code"
    config = CodeConfig
    instructions = INSTRUCTIONS
    splits_digits = True
    answers_from_evidence = False
    headline = "pass_rate"
    further_terms = frozenset({"compile", SYNTAX, DATA_FLOW})

    @classmethod
    def check(cls, profile: Profile) -> None:
        """Check that the other terms weigh less than the tests, and that made tasks have steps."""
        if not sum(profile.synthesis.chain_weights):
            raise ValueError("synthesis.chain_weights are all 0: programs have one to four steps")
        settings = profile.environment
        if not isinstance(settings, CodeConfig):
            return
        spans = {
            "compile": Span(-settings.compile_weight, settings.compile_weight),
            SYNTAX: Span(0.0, settings.syntax_weight),
            DATA_FLOW: Span(0.0, settings.data_flow_weight),
        }
        if sum(span.width for span in spans.values()) > profile.reward.outcome / 2:
            raise ValueError(
                f"environment.compile_weight={settings.compile_weight:g} (twice), syntax_weight="
                f"{settings.syntax_weight:g} and data_flow_weight={settings.data_flow_weight:g} "
                "pay for the looks of a program what should be paid for passing tests: together at "
                f"most half of reward.outcome={profile.reward.outcome:g}"
            )
        require_composition(profile, spans)

    @classmethod
    def outcome_span(cls, settings: EnvironmentConfig) -> tuple[float, float]:
        """Return the range of the rule in `environment.reward`."""
        rule = settings.reward if isinstance(settings, CodeConfig) else "all"
        return OUTCOME_SPANS[rule]

    # ------------------------------------------------------------------------------ playing

    def tools(self) -> Sequence[Tool]:
        """Return the schemas of the tools; `environments` binds them to sandboxes."""
        return self._tools_in(None)

    def _tools_in(self, sandboxes: PoolThread | None) -> tuple[Tool, ...]:
        async def run_tests(program: str, task: Task) -> ToolOutput:
            """Run the visible tests of the task on a complete program."""
            assert sandboxes is not None, "only the schema of this tool is asked for"
            return await sandboxes.run(self._run_visible(sandboxes, task, program))

        def python_runs() -> PythonRuns:
            assert sandboxes is not None, "only the schema of this tool is asked for"
            return SeparateRuns(sandboxes, self.settings.code_timeout_s)

        made: dict[str, Tool] = {
            "run_tests": Tool(run_tests, result_tag="tests", takes_code=True),
            "python": python_tool(python_runs, self.settings.max_observation_characters),
        }
        return tuple(made[name] for name in self.settings.tools)

    async def _run_visible(self, sandboxes: PoolThread, task: Task, program: str) -> ToolOutput:
        tests = unit_tests_of(task)
        if not tests.visible:
            return ToolOutput("this task has no visible tests", succeeded=False)
        with sandbox_losses():
            async with sandboxes.claim() as sandbox:
                found = await judge(
                    sandbox,
                    tests,
                    tests.visible,
                    program_in(program, tests.entry_point),
                    timeout_s=self.settings.test_timeout_s,
                )
        text = shortened(_told(found), self.settings.max_observation_characters)
        return ToolOutput(text, succeeded=found.report.all_passed)

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open a pool of sandboxes, and environments whose programs run in it."""
        del knowledge
        with sandbox_pool(self.settings.sandbox, self.profile.kubernetes) as sandboxes:
            environments = self.environments_in(sandboxes)
            yield lambda _view: environments

    def environments_in(self, sandboxes: PoolThread) -> Environments:
        """Return environments whose programs run in these sandboxes."""
        tools = self._tools_in(sandboxes)
        court = ProgramJudge(sandboxes, self.settings.test_timeout_s)
        return self.environments_by(tools, partial(self._rules_in, court, tools))

    def _rules_in(self, court: ProgramJudge, tools: Sequence[Tool], played: Task) -> EpisodeRules:
        """Return the rules of one episode, whose program is judged once for all terms."""
        judged: list[Judgement] = []

        async def outcome(task: Task, answer: str | None, _turns: TurnResults) -> float:
            if answer is None:
                return self.outcome_span(self.settings)[0]
            judged.append(await court.judgement(task, answer))
            return unit_test_reward(judged[-1].report, self.settings.reward)

        def terms(task: Task, answer: str | None, _turns: TurnResults) -> Mapping[str, float]:
            compiled = answer is not None and judged[-1].report.compiled
            weight = self.settings.compile_weight
            own: dict[str, float] = {}
            if weight:
                said = -weight if answer is None else compile_term(judged[-1].report, weight)
                own["compile"] = said

            weights = {
                SYNTAX: self.settings.syntax_weight,
                DATA_FLOW: self.settings.data_flow_weight,
            }
            if any(weights.values()):
                found = gold_matches(task, answer if compiled else None)
                for name, weight in weights.items():
                    if weight:
                        own[name] = weight * found[name].score
            return own

        def program(text: str) -> str:
            return program_in(text, unit_tests_of(played).entry_point)

        return replace(
            self.rules(tools),
            verify=outcome,
            further_terms=terms,
            read_answer=program,
        )

    def has_text_answer(self, task: Task) -> bool:
        """Return False: a program is run."""
        del task
        return False

    def verify(self, task: Task, answer: str | None) -> float:
        """Return the outcome of a program, judged in a sandbox that is started for it.

        Episodes share their sandboxes and do not use this method.
        """
        if answer is None:
            return self.outcome_span(self.settings)[0]
        with sandbox_pool(self.settings.sandbox, self.profile.kubernetes) as sandboxes:
            court = ProgramJudge(sandboxes, self.settings.test_timeout_s)
            program = program_in(answer, unit_tests_of(task).entry_point)
            judged = asyncio.run(court.judgement(task, program))
        return unit_test_reward(judged.report, self.settings.reward)

    # ------------------------------------------------------------------------------ tasks

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return small functions over lists."""
        return made_tasks(
            self.settings,
            self.profile.synthesis,
            self.profile.splits,
            split,
            count,
            seed=self.profile.seed,
            family=self.name,
        )

    def demonstrate(self, task: Task) -> Script:
        """Run the visible tests on the gold program, if the tool is enabled, and answer with it."""
        program = task.verifier.gold[0]
        if "run_tests" in self.settings.tools and unit_tests_of(task).visible:
            yield ToolCalls((ToolCall(name="run_tests", arguments={"program": program}),))
        yield FinalAnswer(program)

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Return scratch logs: programs without a task."""
        del knowledge
        questions = [task.question for task in train]
        return ScratchPrograms(questions, self.settings.kinds, self._pieces)

    def _pieces(self, program: str) -> Pieces:
        """Return an episode that ends with a program, as `demonstrate` plays it."""
        if "run_tests" not in self.settings.tools or not self.settings.visible_tests:
            return (FinalAnswer(program),)
        call = ToolCall(name="run_tests", arguments={"program": program})
        return (ToolCalls((call,)), _all_pass(self.settings.visible_tests), FinalAnswer(program))

    # ------------------------------------------------------------------------------ benchmarks

    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """Return the tasks of a HumanEval or MBPP file."""
        return read_programming_tasks(path, shown_tests=self.settings.shown_tests, family=self.name)

    def official_scores(self, task: Task, trajectory: Trajectory) -> Mapping[str, float]:
        """Return the share of programs that pass every test; over k trajectories this is pass@k."""
        del task
        return {"pass_rate": float(trajectory.is_right)}

    def answer_settings(self) -> Mapping[str, object]:
        """Return settings that observations and verdicts depend on."""
        elsewhere = {"name", "sandbox", "kinds", "shown_tests", "reward", "compile_weight"}
        elsewhere |= {"syntax_weight", "data_flow_weight"}
        return self.settings.model_dump(mode="json", exclude=elsewhere)


class ProgramJudge:
    """Judges programs by hidden tests, each in a judging sandbox that was reset before.

    Equal programs for one task are judged once, since most answers of a trained policy are equal. A
    program that ran out of time is judged again the next time.
    """

    def __init__(self, sandboxes: PoolThread, timeout_s: float) -> None:
        self._sandboxes = sandboxes
        self._timeout_s = timeout_s
        self._known: OrderedDict[bytes, Judgement] = OrderedDict()

    async def judgement(self, task: Task, program: str) -> Judgement:
        """Return how a program does in the task's hidden tests.

        Raises:
            EnvironmentLostError, ProgramBrokeSandboxError: as `sandbox_losses`.
        """
        return await self._sandboxes.run(self._judged(task, program))

    async def _judged(self, task: Task, program: str) -> Judgement:
        """Judge on the pool's loop, which is the only place where the cache is used."""
        text = f"{task.model_dump_json(include={'arguments'})}\0{program}"
        key = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
        if found := self._known.get(key):
            return found
        tests = unit_tests_of(task)
        with sandbox_losses():
            async with self._sandboxes.claim(judging=True) as sandbox:
                if found := self._known.get(key):  # judged while this one waited
                    return found
                found = await judge(
                    sandbox, tests, tests.hidden, program, timeout_s=self._timeout_s
                )
        if not found.timed_out:
            self._known[key] = found
            if len(self._known) > _MOST_JUDGEMENTS:
                self._known.popitem(last=False)
        return found


def program_in(text: str, wanted: str) -> str:
    """Return the program in a message.

    It is the last block of Python that defines `wanted`, or assigns it; else the last that imports
    it, the whole message if that defines it outside of blocks, the last block that defines
    anything, the last of all, or the whole message. A program is often followed by its tests, which
    may import it, by an example of its use, or by the same in another language.

    Args:
        text: the message.
        wanted: name of the function that the task asks for.
    """
    blocks = [dedent(block) for block in _python_blocks(text) if block.strip()]
    choices = (
        [one for one in blocks if wanted in _DEFINED.findall(one) + _ASSIGNED.findall(one)],
        [one for one in blocks if wanted in _imported_in(one)],
        [text] if wanted in _DEFINED.findall(text) else [],
        [one for one in blocks if _DEFINED.search(one)],
        blocks,
    )
    return next((chosen[-1] for chosen in choices if chosen), text)


def _imported_in(source: str) -> set[str]:
    return {name for names in _IMPORTS.findall(source) for name in _BOUND.findall(names)}


def _python_blocks(text: str) -> Iterator[str]:
    """Yield the blocks of Python between fences; the last one may be unterminated.

    A fence has three or more backticks or tildes, and may follow other text. Its block ends at a
    line that has only such a fence, unless it is indented as code is. Outside of strings between
    triple quotes it also ends with a line of code that ends with the fence, and where another block
    with a language begins.
    """
    opening: re.Match[str] | None = None
    body: list[str] = []
    is_in_string = False
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        role = _role(fence, opening) if fence else "code"
        if is_in_string and role in ("last", "next"):
            role = "code"
        if opening and role == "code":
            body.append(line)
            is_in_string ^= (line.count('"""') + line.count("'''")) % 2 == 1
            continue
        if opening and opening[3].lower() in _LANGUAGES:
            yield "\n".join([*body, fence[1] if fence and role == "last" else ""])
        opening = fence if role in ("first", "next") else None
        body, is_in_string = [], False
    if opening and opening[3].lower() in _LANGUAGES:
        yield "\n".join(body)


def _role(
    fence: re.Match[str], opening: re.Match[str] | None
) -> Literal["first", "code", "end", "last", "next"]:
    """Return what a line with a fence is to the block that `opening` began, if there is one."""
    if opening is None:
        return "first"
    is_bare = not (fence[3] or fence[4].strip())
    if not fence[2].startswith(opening[2]):
        return "code"
    if fence[1].strip():
        return "last" if is_bare else "code"
    if _indentation(fence) >= _indentation(opening) + _CODE_INDENT:
        return "code"
    if is_bare:
        return "end"
    return "next" if fence[3] else "code"


def _indentation(fence: re.Match[str]) -> int:
    before = fence[1].expandtabs(_CODE_INDENT)
    return len(before) - len(before.lstrip(_LIST_MARKS))


def _all_pass(number: int) -> str:
    return f"{number} of {number} tests pass"


def _told(found: Judgement) -> str:
    """Return what the policy reads about its visible tests."""
    report = found.report
    if report.all_passed:
        return _all_pass(len(report.verdicts))
    lines = [f"{report.num_passed} of {len(report.verdicts)} tests pass"]
    failed = zip(range(1, 1 + len(report.verdicts)), report.verdicts, found.messages, strict=True)
    lines += [
        f"test {number}: {message}" for number, verdict, message in failed if verdict != "passed"
    ]
    return "\n".join(lines)
