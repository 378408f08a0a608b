"""A family: everything that a kind of task brings, in one object that the stages ask.

    class Prices(SimpleFamily[PricesConfig]):
        name, config = "prices", PricesConfig
        def tools(self): ...                            typed functions
        def tasks(self, split, count): ...              what is asked
        def verify(self, task, answer): ...             whether it was answered
        def demonstrate(self, task): ...                how a teacher solves it, action by action

That much trains an agent. A family whose questions need a knowledge artifact, or a teacher of
another kind, derives from `Family` and answers what the stages ask by itself. A family is found by
the entry point group `espalier.environments`, or by `module:Class` in a profile.
"""

from __future__ import annotations

import hashlib
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast

from espalier.config import (
    ClosedBook,
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
from espalier.environments.hindsight import Hindsight
from espalier.environments.judged import JudgedOutcomes
from espalier.environments.reading import DemonstrationReading, ReadingMaterial
from espalier.environments.teaching import Script, ScriptTeacher
from espalier.environments.tools import Tool, refuse_ambiguous_tools
from espalier.knowledge.graph import EntitySplits
from espalier.records import (
    AgentText,
    DataError,
    Draft,
    FinalAnswer,
    Message,
    ProfileError,
    Split,
    Task,
    TaskMetadata,
    ToolSpec,
    Tracker,
    Verifier,
    task_id_of,
)
from espalier.records.trajectory import Trajectory
from espalier.synthesis.demonstrations import Rejected
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.self_play import TaskProposer

C = TypeVar("C", bound=EnvironmentConfig)


class FamilyQuestion(Protocol):
    """A task, and what the family's teacher needs in addition."""

    @property
    def task(self) -> Task:
        """What is asked."""
        ...


Demonstrate = Callable[[FamilyQuestion, str], Trajectory | Rejected]
"""A question and kind of detour (empty for none) to a trajectory."""
Renaming = Callable[[Task, Trajectory, random.Random], tuple[Task, Trajectory]]
"""A task and its demonstration to the same two with other names."""
TaskRenaming = Callable[[Task, random.Random], Task]
"""A task to the same task in a world of other names."""


@dataclass(frozen=True, slots=True)
class PlainQuestion:
    """A task alone."""

    task: Task


class AgentTexts(NamedTuple):
    """Texts of agent behaviour beside the demonstrations, and what asking for them cost."""

    texts: list[AgentText]
    negatives: list[AgentText]
    teacher: dict[str, object]
    """Call -> usage; empty where no model was asked."""


class Family(ABC, Generic[C]):
    """Base class of families. One instance serves one stage of one run."""

    name: ClassVar[str]
    """Name in profiles and tasks."""
    config: ClassVar[type[EnvironmentConfig]] = EnvironmentConfig
    """Class of the profile's section `[environment]`."""
    instructions: str = ""
    """System prompt for a given model; the embedded policy is shown none."""
    splits_digits: bool = False
    """Whether the embedded policy's tokenizer splits numbers into digits."""
    detours: ClassVar[tuple[str, ...]] = ()
    """Kinds of mistakes that its teacher can make and correct."""
    self_play: ClassVar[frozenset[str]] = frozenset()
    """Names of `[self_play]` that can propose its tasks."""
    reads_knowledge: ClassVar[bool] = False
    """Whether `ingest` reads `[knowledge]` for it."""
    writes_agent_texts: ClassVar[bool] = False
    """Whether it can make what `[agent_texts]` asks for."""
    answers_from_evidence: ClassVar[bool] = True
    """Whether a tool must have shown the answer before a teacher gives it."""
    ends_by_call: ClassVar[bool] = False
    """Whether a call may end an episode: `EpisodeRules.ending_tools` and `calls_are_answer`."""
    converses: ClassVar[bool] = False
    """Whether a user replies to what the policy says: `EpisodeRules.reply`."""
    reads_symbols: ClassVar[bool] = False
    """Whether a sign can make another question or answer; else texts are compared by words."""
    further_terms: ClassVar[frozenset[str]] = frozenset()
    """Names of what its episodes pay beside outcome and format."""
    relabels_failures: ClassVar[bool] = False
    """Whether `hindsight` names the tasks that failed attempts solved."""
    closed_book: ClassVar[ClosedBook | None] = None
    """For a family whose tools look answers up: what a policy reads where it answers from memory,
    without them. Its answers also count as grounded or not, by what the tools had returned."""
    headline: ClassVar[str] = "accuracy"
    """The one of `official_scores` that its public benchmarks are quoted by."""

    @classmethod
    def check(cls, profile: Profile) -> None:
        """Check that other sections of the profile fit the family, as the profile is read.

        Raises:
            ValueError: naming the key that does not.
        """

    @classmethod
    def outcome_span(cls, settings: EnvironmentConfig) -> tuple[float, float]:
        """Least and most that its verifier returns under these settings, for an episode.

        An outcome outside is an error. `reward.outcome_scale = "unit"` divides by the width, and
        the terms beside the outcome must not be able to change more than it.
        """
        del settings
        return (0.0, 1.0)

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.settings = cast("C", profile.environment)
        """Its own section of the profile."""
        self.memory: Recalled | None = None
        """Of its environments; see `espalier.environments.memory.remembering`."""
        self._judges: JudgedOutcomes | None = None

    # ------------------------------------------------------------------ what every family defines

    @abstractmethod
    def tools(self) -> Sequence[Tool | Callable[..., object]]:
        """What the policy may call; a plain typed function becomes a `Tool`."""

    @abstractmethod
    def verify(self, task: Task, answer: str | None) -> float:
        """The outcome of an answer: above 0 where it is right; None where none was given."""

    @abstractmethod
    def questions(
        self, knowledge: Path, funnel: Funnel, tracker: Tracker
    ) -> dict[Split, Sequence[FamilyQuestion]]:
        """The questions of every split, in random order.

        Raises:
            DataError: a split would stay empty.
        """

    @abstractmethod
    def teacher(self, knowledge: Path, funnel: Funnel) -> AbstractContextManager[Demonstrate]:
        """A context in which questions can be demonstrated."""

    def fact(self, task: Task) -> str:
        """Equal for tasks that ask for the same thing in other words.

        Of own knowledge the warm start and reinforcement learning share none.
        """
        return task.task_id

    def renaming(self, knowledge: Path, share: float) -> Renaming | None:
        """Exchanges names in demonstrations for `warm_start.renamed_share`; None if it cannot.

        Args:
            knowledge: the artifact of `ingest`; nothing but what training may see is read.
            share: of the names that are exchanged, 0-1.
        """
        del knowledge, share
        return None

    def task_renaming(self, knowledge: Path, share: float) -> TaskRenaming | None:
        """Exchanges names in training's episodes for `training.renamed_share`; None if it cannot.

        See `renaming` for the arguments.
        """
        del knowledge, share
        return None

    @abstractmethod
    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """What the embedded policy learns to read from, before it sees a question.

        Args:
            knowledge: the artifact of `ingest`; nothing but what training may see is read.
            train: training tasks.
        """

    # ------------------------------------------------------------------------------- playing

    @property
    def built_tools(self) -> tuple[Tool, ...]:
        """The tools, with their schemas.

        Raises:
            ToolSignatureError: two tools of one name or tag, or a tag with another meaning.
        """
        tools = tuple(tool if isinstance(tool, Tool) else Tool(tool) for tool in self.tools())
        refuse_ambiguous_tools([tool.spec for tool in tools])
        return tools

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """Name, description and schema of each tool."""
        return tuple(tool.spec for tool in self.built_tools)

    def specs_of(self, task: Task) -> tuple[ToolSpec, ...]:
        """The tools that a policy reads of in a task; a family may give each task its own."""
        del task
        return self.specs

    def of(self, task: Task) -> Family[Any]:
        """The family of a task, which says how it is judged: this one, but in a mixture."""
        del task
        return self

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """A context with the environments of every view; their sandboxes are closed at its end.

        Args:
            knowledge: the artifact of `ingest`.

        Raises:
            ArtifactError: that artifact lacks what the family needs.
            SandboxError: the profile asks for sandboxes, and none can be had.
        """
        del knowledge
        rules = self.rules(self.built_tools)
        yield lambda _view: self.environments_of(rules)

    def rules(self, tools: Sequence[Tool]) -> EpisodeRules:
        """The profile's limits and rewards around `tools`."""
        return EpisodeRules(
            tools=tools,
            verify=self._outcome,
            max_turns=self.profile.episode.max_turns,
            max_turn_calls=self.profile.episode.max_turn_calls,
            reward=self.profile.reward,
            outcome_span=outcome_span(self.profile),
            outcome_scale=outcome_scale(self.profile),
        )

    def environments_of(self, rules: EpisodeRules) -> Environments:
        """Environments that share their tools."""
        return self.environments_by(rules.tools, lambda _task: rules)

    def environments_by(
        self, tools: Sequence[Tool], rules_of: Callable[[Task], EpisodeRules]
    ) -> Environments:
        """Environments whose tools are made for each episode."""
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
        """`rules`, with judges for a task without a rule, where the profile lets them decide."""
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

        A family that reads no `[knowledge]` writes nothing but where its tasks come from.
        """
        del tracker
        (draft.path / "attribution.txt").write_text(f"Tasks of {self.name}.\n", encoding="utf-8")

    def agent_texts(
        self,
        knowledge: Path,
        questions: Mapping[Split, Sequence[FamilyQuestion]],
        demonstrations: Sequence[Trajectory],
        funnel: Funnel,
        tracker: Tracker,
    ) -> AgentTexts:
        """Plans, reasoning, decisions and negatives, where `[agent_texts]` asks for them."""
        del knowledge, questions, demonstrations, funnel, tracker
        return AgentTexts([], [], {})

    def entity_splits(self, knowledge: Path) -> EntitySplits:
        """Entities whose names must not be shared between splits; none by default."""
        del knowledge
        return EntitySplits.none()

    def hub_kinds(self, knowledge: Path) -> list[str]:
        """Kinds of entities that every split shares."""
        del knowledge
        return []

    # ------------------------------------------------------------------------------- reporting

    def report_groups(self, task: Task) -> Mapping[str, str]:
        """Name of a grouping -> the group that the task is in, as reports show them."""
        kind = task.extra.get("kind")
        groups = {"kind": str(kind)} if kind else {}
        steps = (
            {}
            if task.metadata.difficulty is None
            else {"difficulty": f"{task.metadata.difficulty:g}"}
        )
        return groups | steps

    def stratum(self, task: Task) -> str:
        """Label under which demonstrations are counted in the dataset card."""
        return "-".join(self.report_groups(task).values())

    def answer_settings(self) -> Mapping[str, object]:
        """Settings that answers depend on, beside the question and the episode's limits."""
        return self.settings.model_dump(mode="json", exclude={"name"})

    def documents_of(self, task: Task) -> tuple[str, ...]:
        """Ids of the documents that a task was made from."""
        found = task.extra.get("evidence")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    def names_of(self, task: Task) -> tuple[str, ...]:
        """Names of the entities that a task is about, its answer included."""
        found = task.extra.get("entities")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    def question_key(self, task: Task) -> str:
        """A key that is equal for rewordings of one question; empty if unknown."""
        return str(task.extra.get("query", ""))

    # ------------------------------------------------------------------------------- benchmarks

    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """The tasks of a file or folder in the format of the family's public benchmarks.

        They are of the split `heldout`, and none is trained on. See
        `espalier.environments.benchmarks` for files of JSON rows.

        Raises:
            DataError: naming the file and the row that is no such task; or the family has no public
                format.
        """
        raise DataError(
            f"{path}: the family {self.name} reads no public format. Leave the suite's `tasks` "
            "unset, to ask the family's own held-out tasks"
        )

    @contextmanager
    def benchmark_environments(self, path: Path, knowledge: Path) -> Generator[Environments]:
        """A context with the environments of the tasks in `path`.

        Args:
            path: what `read_benchmark` read; some formats bring what their tasks are played over.
            knowledge: the artifact of `ingest`.
        """
        del path
        with self.environments(knowledge) as environments_over:
            yield environments_over("full")

    def official_scores(self, task: Task, trajectory: Trajectory) -> Mapping[str, float]:
        """The scores of one attempt as the authors of the benchmark compute them, by name.

        Benchmarks report their means. `headline` names one of them, which is 1 where nothing is
        left to be desired. An attempt that was lost from outside is not asked about: it counts as 0
        in each.
        """
        del task
        return {"accuracy": float(trajectory.is_right)}

    def gold_script(self, task: Task) -> Script:
        """What a policy that knows the gold answer does; its attempt must be scored as right.

        The canonical answer, in one message. A family whose tasks end otherwise says how.
        """
        yield FinalAnswer(task.verifier.gold[0])

    # ------------------------------------------------------------------------------- self-play

    def proposer(self, knowledge: Path, accepted: Path) -> TaskProposer:
        """Makes new training tasks between the phases of training.

        Raises:
            ProfileError: the family has no self-play of that name.
        """
        del knowledge, accepted
        raise ProfileError(
            f'self_play.name = "{self.profile.self_play.name}" poses no tasks of '
            f'environment.name = "{self.name}"; set it to "off"'
        )

    def hindsight(self, knowledge: Path, accepted: Path) -> Hindsight:
        """Names the training tasks that failed attempts solved, for `[warm_start.hindsight]`.

        Args:
            knowledge: the artifact of `ingest`.
            accepted: that of `validate`, with the tasks of every split.

        Raises:
            ProfileError: the family cannot (`relabels_failures` is False).
        """
        del knowledge, accepted
        raise ProfileError(
            f'[warm_start.hindsight] relabels no failures of environment.name = "{self.name}"; '
            "leave it out"
        )

    def chat_task(self, question: str) -> Task:
        """The task of a question typed in `espalier chat`."""
        return make_task(
            self.name, question, gold=("",), split="heldout", source="chat", key=question
        )


class SimpleFamily(Family[C]):
    """A family whose tasks come from a function, and whose teacher follows a script."""

    @abstractmethod
    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Up to `count` tasks of a split, the same ones under the same seed.

        No question may stand in two splits: `validate` refuses that.
        """

    @abstractmethod
    def demonstrate(self, task: Task) -> Script:
        """A generator of the teacher's actions; each `yield` returns what the tools answered."""

    def questions(
        self, knowledge: Path, funnel: Funnel, tracker: Tracker
    ) -> dict[Split, Sequence[FamilyQuestion]]:
        """See `Family`."""
        del knowledge, funnel, tracker
        found = self.tasks_by_split()
        if empty := [split for split, tasks in found.items() if not tasks]:
            raise DataError(f"{self.name}: no task for {', '.join(empty)}")
        return {split: [PlainQuestion(task) for task in tasks] for split, tasks in found.items()}

    def tasks_by_split(self) -> dict[Split, Sequence[Task]]:
        """Up to as many tasks of each split as `synthesis` of the profile asks for."""
        config = self.profile.synthesis
        asked: dict[Split, int] = {
            "train": config.train_tasks, "dev": config.dev_tasks, "heldout": config.heldout_tasks,
        }  # fmt: skip
        return {split: self.tasks(split, count) for split, count in asked.items()}

    @contextmanager
    def teacher(self, knowledge: Path, funnel: Funnel) -> Generator[Demonstrate]:
        """See `Family`."""
        del funnel
        with self.environments(knowledge) as environments_over:
            teacher = ScriptTeacher(environments_over("train"))
            yield lambda question, _detour: teacher.demonstrate(
                question.task, partial(self.demonstrate, question.task)
            )

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Demonstrations of training tasks, under prompts that ask nothing."""
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
"""Training tasks whose demonstrations a default family reads from."""


def dealt_split(key: str, splits: SplitsConfig, *, heldout: bool = True) -> Split:
    """The split that a key is dealt to, in the shares of `[splits]`; the same for every seed.

    A task generator that keeps only the keys dealt to the requested split has disjoint splits.

    Args:
        key: equal for tasks that must not be in two splits.
        splits: shares of held-out and dev.
        heldout: False where the held-out tasks come from elsewhere; their share is 0 then.
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
    """A task with an id of its own, derived from its split and `key`.

    Args:
        family: name of the family.
        question: the one message of the prompt, or all of them.
        gold: accepted answers.
        split: of the task.
        source: which generator or file it comes from.
        key: equal keys of a split are the same task.
        kind: of the verifier.
        arguments: of its environment.
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
    """The family that `[environment]` names, for one stage of a run."""
    found = cast("type[Family[EnvironmentConfig]]", family_class(profile.environment.name))
    return found(profile)


def policy_dialect(family: Family[Any], tokenizer: PreTrainedTokenizerBase) -> Dialect:
    """The dialect of the profile's policy, with the family's tools.

    Raises:
        PolicyError: the tokenizer has no chat template.
    """
    return Dialect(
        tokenizer,
        family.specs,
        name=family.profile.policy.dialect,
        instructions=family.instructions,
    )
