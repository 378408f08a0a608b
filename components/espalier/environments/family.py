"""A family: everything that a kind of task needs, in one object that the stages use.

    class Prices(Family[PricesConfig]):
        name, config = "prices", PricesConfig
        def tools(self): ...                            typed functions
        def tasks(self, split, count): ...              tasks with questions and gold answers
        def verify(self, task, answer): ...             the outcome of an answer

This is enough to train a given model. `StatefulFamily` is for tasks whose tools change something;
`SimpleFamily` has a teacher as well, from which the tiny policy learns. What else a family can
do is in `espalier.environments.mixins`. A family is found through the entry point group
`espalier.environments`, or by `module:Class` in a profile.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast, final

from espalier.config import (
    EnvironmentConfig,
    Profile,
    SplitsConfig,
    family_class,
    outcome_scale,
    outcome_span,
)
from espalier.dialects.dialect import Dialect
from espalier.environments.contract import Environments, EnvironmentsOver, Recalled
from espalier.environments.episode import EpisodeRules, TurnResults
from espalier.environments.funnel import Funnel
from espalier.environments.judged import JudgedOutcomes
from espalier.environments.mixins import (
    Demonstrate,
    FamilyQuestion,
    PlainQuestion,
    Teacher,
    TeachesReading,
    require_mixins,
)
from espalier.environments.reading import DemonstrationReading, ReadingMaterial
from espalier.environments.teaching import Script, ScriptTeacher
from espalier.environments.tools import Tool, refuse_ambiguous_tools
from espalier.records import (
    DataError,
    Draft,
    FinalAnswer,
    Message,
    Split,
    Task,
    TaskMetadata,
    ToolSpec,
    Tracker,
    Verifier,
    task_id_of,
)
from espalier.records.trajectory import Trajectory

C = TypeVar("C", bound=EnvironmentConfig)


class Family(ABC, Generic[C]):
    """Base class of families. One instance serves one stage of one run."""

    name: ClassVar[str]
    """The family's name in profiles and tasks."""
    config: ClassVar[type[EnvironmentConfig]] = EnvironmentConfig
    """Class of the section `[environment]` of the profile."""
    instructions: str = ""
    """System prompt for a given model; the tiny policy gets none."""
    ends_by_call: ClassVar[bool] = False
    """Whether a call may end an episode: `EpisodeRules.ending_tools` and `calls_are_answer`."""
    converses: ClassVar[bool] = False
    """Whether a user replies to the policy's messages: `EpisodeRules.reply`."""
    reads_symbols: ClassVar[bool] = False
    """Whether a single symbol can change a question or answer; otherwise texts are compared by
    words."""
    further_terms: ClassVar[frozenset[str]] = frozenset()
    """Names of reward terms of its episodes besides outcome and format."""
    headline: ClassVar[str] = "accuracy"
    """Name of the score in `official_scores` by which its public benchmarks are reported."""

    @classmethod
    def check(cls, profile: Profile) -> None:
        """Check that other sections of the profile fit the family, when the profile is parsed.

        Raises:
            ValueError: a key does not fit; the message names it.
        """

    @final
    @classmethod
    def check_options(cls, profile: Profile) -> None:
        """Check that the family has the mixins that keys of the profile need, and `check` it.

        Raises:
            ValueError: a key needs a mixin that the family lacks; the message names both.
        """
        require_mixins(cls, profile)
        cls.check(profile)

    @classmethod
    def outcome_span(cls, settings: EnvironmentConfig) -> tuple[float, float]:
        """Return the lowest and highest outcome of the verifier under these settings.

        An outcome outside this range is an error. `reward.outcome_scale = "unit"` divides by the
        width, and the other terms of the reward must not outweigh the outcome.
        """
        del settings
        return (0.0, 1.0)

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.settings = cast("C", profile.environment)
        """The family's own section of the profile."""
        self.memory: Recalled | None = None
        """Memory of its environments, set by `espalier.environments.memory.remembering`."""
        self._judges: JudgedOutcomes | None = None

    # ------------------------------------------------------------------ what every family defines

    @abstractmethod
    def tools(self) -> Sequence[Tool | Callable[..., object]]:
        """Return the tools the policy may call; a plain typed function becomes a `Tool`."""

    @abstractmethod
    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return up to `count` tasks of a split, the same ones for the same seed.

        No question may occur in two splits: `validate` refuses that.
        """

    @abstractmethod
    def verify(self, task: Task, answer: str | None) -> float:
        """Return the outcome of an answer alone: above 0 if it is right; None means no answer.

        An episode is scored by `EpisodeRules.verify`, which is this method unless `environments`
        says otherwise: families whose tools change something score the state that they left.
        """

    def questions(
        self, knowledge: Path, funnel: Funnel, tracker: Tracker
    ) -> dict[Split, Sequence[FamilyQuestion]]:
        """Return the tasks of every split as questions.

        Raises:
            DataError: a split would be empty.
        """
        del knowledge, funnel, tracker
        found = self.tasks_by_split()
        if empty := [split for split, tasks in found.items() if not tasks]:
            raise DataError(f"{self.name}: no task for {', '.join(empty)}")
        return {split: [PlainQuestion(task) for task in tasks] for split, tasks in found.items()}

    @final
    def tasks_by_split(self) -> dict[Split, Sequence[Task]]:
        """Return up to as many tasks of each split as `[synthesis]` of the profile sets."""
        config = self.profile.synthesis
        asked: dict[Split, int] = {
            "train": config.train_tasks, "dev": config.dev_tasks, "heldout": config.heldout_tasks,
        }  # fmt: skip
        return {split: self.tasks(split, count) for split, count in asked.items()}

    # ------------------------------------------------------------------------------- playing

    @property
    @final
    def built_tools(self) -> tuple[Tool, ...]:
        """The tools with their schemas.

        Raises:
            ToolSignatureError: two tools share a name or tag, or a tag has another meaning.
        """
        tools = tuple(tool if isinstance(tool, Tool) else Tool(tool) for tool in self.tools())
        refuse_ambiguous_tools([tool.spec for tool in tools])
        return tools

    @property
    @final
    def specs(self) -> tuple[ToolSpec, ...]:
        """Name, description and schema of each tool."""
        return tuple(tool.spec for tool in self.built_tools)

    def specs_of(self, task: Task) -> tuple[ToolSpec, ...]:
        """Return the tools described to the policy in a task; may differ from task to task."""
        del task
        return self.specs

    def of(self, task: Task) -> Family[Any]:
        """Return the family that judges a task: this one, except in a mixture."""
        del task
        return self

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open the environments of every view; their sandboxes close with the context.

        Args:
            knowledge: the artifact of `ingest`.

        Raises:
            ArtifactError: the artifact lacks what the family needs.
            SandboxError: the profile needs sandboxes, and none can be created.
        """
        del knowledge
        rules = self.rules(self.built_tools)
        yield lambda _view: self.environments_of(rules)

    def rules(self, tools: Sequence[Tool]) -> EpisodeRules:
        """Return episode rules with `tools` and the limits and rewards of the profile."""
        return EpisodeRules(
            tools=tools,
            verify=self._outcome,
            max_turns=self.profile.episode.max_turns,
            max_turn_calls=self.profile.episode.max_turn_calls,
            reward=self.profile.reward,
            outcome_span=outcome_span(self.profile),
            outcome_scale=outcome_scale(self.profile),
        )

    @final
    def environments_of(self, rules: EpisodeRules) -> Environments:
        """Return environments that share their tools."""
        return self.environments_by(rules.tools, lambda _task: rules)

    @final
    def environments_by(
        self, tools: Sequence[Tool], rules_of: Callable[[Task], EpisodeRules]
    ) -> Environments:
        """Return environments whose tools are created for each episode."""
        return Environments(
            family=self.name,
            tools=tuple(tool.spec for tool in tools),
            instructions=self.instructions,
            make=lambda task: self._with_judges(rules_of(task), task).environment(),
            derived_from=frozenset(
                name
                for base in type(self).__mro__
                if isinstance(name := vars(base).get("name"), str)
            ),
            memory=self.memory,
        )

    def _with_judges(self, rules: EpisodeRules, task: Task) -> EpisodeRules:
        """Return `rules` with judges as verifier if the task has no rule and the profile allows."""
        judges = self.profile.reward.judges
        if judges is None or judges.decides == "nothing":
            return rules
        if self._judges is None:
            self._judges = JudgedOutcomes(judges)
        return self._judges.applied(rules, task)

    def _outcome(self, task: Task, answer: str | None, _turns: TurnResults) -> float:
        outcome = float(self.verify(task, answer))
        if not math.isfinite(outcome):
            raise DataError(f"{self.name}: verify gave {outcome} for task {task.task_id}")
        return outcome

    # ------------------------------------------------------------------------------- data

    def ingest(self, draft: Draft, tracker: Tracker) -> None:
        """Write what the family's tasks are made from into the knowledge artifact.

        A family that does not read `[knowledge]` writes only where its tasks come from.
        """
        del tracker
        (draft.path / "attribution.txt").write_text(f"Tasks of {self.name}.\n", encoding="utf-8")

    # ------------------------------------------------------------------------------- reporting

    def report_groups(self, task: Task) -> Mapping[str, str]:
        """Return name of a grouping -> the task's group in it, for reports."""
        kind = task.extra.get("kind")
        groups = {"kind": str(kind)} if kind else {}
        steps = (
            {}
            if task.metadata.difficulty is None
            else {"difficulty": f"{task.metadata.difficulty:g}"}
        )
        return groups | steps

    @final
    def stratum(self, task: Task) -> str:
        """Return the label under which the dataset card counts demonstrations of the task."""
        return "-".join(self.report_groups(task).values())

    def answer_settings(self) -> Mapping[str, object]:
        """Return settings that answers depend on, besides the question and the episode's limits."""
        return self.settings.model_dump(mode="json", exclude={"name"})

    @final
    def documents_of(self, task: Task) -> tuple[str, ...]:
        """Return the ids of the documents that a task was made from."""
        found = task.extra.get("evidence")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    @final
    def names_of(self, task: Task) -> tuple[str, ...]:
        """Return the names of the entities that a task is about, its answer included."""
        found = task.extra.get("entities")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    def question_key(self, task: Task) -> str:
        """Return a key that is equal for rewordings of one question; empty if unknown."""
        return str(task.extra.get("query", ""))

    def answer_key(self, task: Task) -> Hashable:
        """Return a key that is equal for tasks that one answer solves.

        A check of gold answers tries the gold of one task in another only if their keys differ. A
        family scored by a state overrides this if several golds lead to the same state.
        """
        return task.verifier.gold

    def has_text_answer(self, task: Task) -> bool:
        """Return whether the gold is a text like the answer, so that F1 tells how near one is.

        Not so where an episode is scored by a state, by calls, or by programs.
        """
        del task
        return not self.ends_by_call

    # ------------------------------------------------------------------------------- benchmarks

    def official_scores(self, task: Task, trajectory: Trajectory) -> Mapping[str, float]:
        """Return the scores of one trajectory as the benchmark's authors compute them, by name.

        Benchmarks report their means. `headline` names one of them, which is 1 for a perfect
        answer. Lost trajectories are not passed to this method: they count as 0 in each score.
        """
        del task
        return {"accuracy": float(trajectory.is_right)}

    def gold_script(self, task: Task) -> Script:
        """Yield the actions of a policy that knows the gold answer, which must be scored as right.

        By default this is the gold answer in one message. A family whose episodes end differently
        overrides this method.
        """
        yield FinalAnswer(task.verifier.gold[0])

    def chat_task(self, question: str) -> Task:
        """Return the task for a question typed in `espalier chat`."""
        return make_task(
            self.name, question, gold=("",), split="heldout", source="chat", key=question
        )


class SimpleFamily(Family[C], Teacher, TeachesReading):
    """A family whose teacher follows a script; the tiny policy reads its demonstrations."""

    @abstractmethod
    def demonstrate(self, task: Task) -> Script:
        """Yield the teacher's actions; each `yield` returns what the tools answered."""

    @contextmanager
    def teacher(self, knowledge: Path, funnel: Funnel) -> Generator[Demonstrate]:
        """Open the environments of the training view and play `demonstrate` in them."""
        del funnel
        with self.environments(knowledge) as environments_over:
            teacher = ScriptTeacher(environments_over("train"))
            yield lambda question, _detour: teacher.demonstrate(
                question.task, partial(self.demonstrate, question.task)
            )

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Return demonstrations of training tasks, under prompts that ask nothing."""
        with self.environments(knowledge) as environments_over:
            teacher = ScriptTeacher(environments_over("train"))
            shown = [
                trajectory
                for task in train[:_READ_TASKS]
                if isinstance(
                    trajectory := teacher.demonstrate(task, partial(self.demonstrate, task)),
                    Trajectory,
                )
            ]
        return DemonstrationReading(shown, {task.task_id: task for task in train})


_READ_TASKS = 300
"""Number of training tasks whose demonstrations a default family reads from."""


def dealt_split(key: str, splits: SplitsConfig, *, heldout: bool = True) -> Split:
    """Return the split of a key, in the shares of `[splits]`; the same for every seed.

    A task generator that keeps only keys of the requested split has disjoint splits.

    Args:
        key: equal for tasks that must be in the same split.
        splits: shares of held-out and dev tasks.
        heldout: False if the held-out tasks come from elsewhere; their share is then 0.
    """
    heldout_share = splits.heldout_share if heldout else 0.0
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    if place < heldout_share:
        return "heldout"
    return "dev" if place < heldout_share + splits.dev_share else "train"


def make_task(  # noqa: PLR0913 (the parts of a task)
    family: str,
    question: str | tuple[Message, ...],
    *,
    gold: Sequence[str],
    split: Split,
    source: str,
    key: str,
    kind: str = "exact_match",
    arguments: Mapping[str, object] | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Task:
    """Return a task whose id is derived from its split and `key`.

    Args:
        family: name of the family.
        question: the only message of the prompt, or all messages.
        gold: accepted answers.
        split: split of the task.
        source: the generator or file that the task comes from.
        key: equal keys in a split are the same task.
        kind: kind of the verifier.
        arguments: arguments of the environment.
        metadata: further fields of `TaskMetadata`.
    """
    if isinstance(question, str):
        question = (Message(role="user", content=question),)
    return Task(
        task_id=task_id_of(split, key),
        prompt=question,
        environment=family,
        arguments=dict(arguments or {}),  # pyright: ignore[reportArgumentType] (JSON, checked)
        verifier=Verifier(kind=kind, gold=tuple(gold)),
        metadata=TaskMetadata(split=split, source=source, **(metadata or {})),  # pyright: ignore[reportArgumentType]
    )


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def family_of(profile: Profile) -> Family[Any]:
    """Return the family that `[environment]` names, for one stage of a run."""
    found = cast("type[Family[EnvironmentConfig]]", family_class(profile.environment.name))
    return found(profile)


def policy_dialect(family: Family[Any], tokenizer: PreTrainedTokenizerBase) -> Dialect:
    """Return the dialect of the profile's policy, with the family's tools.

    Raises:
        PolicyError: the tokenizer has no chat template.
    """
    return Dialect(
        tokenizer,
        family.specs,
        name=family.profile.policy.dialect,
        instructions=family.instructions,
    )
