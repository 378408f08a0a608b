"""What a family can do beside its tasks, tools and scores: optional mixins, one for each.

    class Prices(Family[PricesConfig]): ...                     is trained from a given model
    class Prices(Family[PricesConfig], HasBenchmarks): ...      reads a public file as well

Callers ask `isinstance(family, Mixin)`. A profile with a key that needs a mixin which its family
lacks is refused when it is loaded (`Family.check_options`).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from espalier.config import ClosedBook, Profile
from espalier.environments.contract import Environments, EnvironmentsOver
from espalier.environments.demonstrations import Rejected
from espalier.environments.funnel import Funnel
from espalier.environments.hindsight import Hindsight
from espalier.environments.proposals import TaskProposer
from espalier.environments.reading import ReadingMaterial
from espalier.records import AgentText, DataError, ProfileError, Split, Task, Tracker
from espalier.records.knowledge import EntitySplits
from espalier.records.trajectory import Trajectory


class FamilyQuestion(Protocol):
    """A task, and whatever else the family's teacher needs."""

    @property
    def task(self) -> Task:
        """The task that the policy gets."""
        ...


Demonstrate = Callable[[FamilyQuestion, str], Trajectory | Rejected]
"""Maps a question and a kind of detour (empty for none) to a trajectory."""
Renaming = Callable[[Task, Trajectory, random.Random], tuple[Task, Trajectory]]
"""Maps a task and its demonstration to the same two with other names."""
TaskRenaming = Callable[[Task, random.Random], Task]
"""Maps a task to the same task in a world with other names."""


@dataclass(frozen=True, slots=True)
class PlainQuestion:
    """A question that consists of its task only."""

    task: Task


class AgentTexts(NamedTuple):
    """Texts of agent behaviour besides the demonstrations, and the cost of generating them."""

    texts: list[AgentText]
    negatives: list[AgentText]
    teacher: dict[str, object]
    """Call -> usage; empty if no model was used."""


class Teacher(ABC):
    """Demonstrates training tasks, for `synthesize` and the warm start."""

    detours: ClassVar[tuple[str, ...]] = ()
    """Kinds of mistakes that the teacher can make and correct."""
    answers_from_evidence: ClassVar[bool] = True
    """Whether a tool must have shown the answer before the teacher gives it."""

    @abstractmethod
    def teacher(self, knowledge: Path, funnel: Funnel) -> AbstractContextManager[Demonstrate]:
        """Return a context whose function demonstrates questions."""


def has_demonstrations(family: type[object], profile: Profile) -> bool:
    """Return whether a teacher demonstrates, or the user does (`warm_start.demonstrations`)."""
    return issubclass(family, Teacher) or profile.warm_start.demonstrations is not None


class TeachesReading(ABC):
    """Gives the tiny policy something to learn to read from, before it sees a question."""

    splits_digits: bool = False
    """Whether the tiny policy's tokenizer splits numbers into digits."""

    @abstractmethod
    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Return what the tiny policy learns to read from.

        Args:
            knowledge: the artifact of `ingest`; nothing but what training may see is read.
            train: training tasks.
        """


class MakesQuestions(ABC):
    """Makes its tasks from the knowledge artifact, all splits at once; stands before `Family`."""

    name: ClassVar[str]

    @abstractmethod
    def questions(
        self, knowledge: Path, funnel: Funnel, tracker: Tracker
    ) -> dict[Split, Sequence[FamilyQuestion]]:
        """Return the questions of every split, in random order.

        Raises:
            DataError: a split would be empty.
        """

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Refuse: without the knowledge artifact there are no tasks.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"{self.name}: {count} tasks of {split} are made from the knowledge, by `questions`"
        )


class Renames(ABC):
    """Exchanges the names in tasks and demonstrations, so that no name is learned by heart."""

    @abstractmethod
    def renaming(self, knowledge: Path, share: float) -> Renaming | None:
        """Return the exchange of names for `warm_start.renamed_share`; None if unsupported.

        Args:
            knowledge: the artifact of `ingest`; nothing but what training may see is read.
            share: of the names that are exchanged, 0-1.
        """

    @abstractmethod
    def task_renaming(self, knowledge: Path, share: float) -> TaskRenaming | None:
        """Return the exchange of names for `training.renamed_share`; None if unsupported.

        The arguments are those of `renaming`.
        """


class KnowsEntities:
    """Knows the entities that its tasks are about."""

    def entity_splits(self, knowledge: Path) -> EntitySplits:
        """Return entities whose names must not be shared between splits; none by default."""
        del knowledge
        return EntitySplits.none()

    def hub_kinds(self, knowledge: Path) -> list[str]:
        """Return the kinds of entities that every split shares."""
        del knowledge
        return []

    def fact(self, task: Task) -> str:
        """Return a key that is equal for tasks that ask for the same thing in other words.

        With `[knowledge]` of the user's own, warm start and reinforcement learning share no fact.
        """
        return task.task_id


def entity_splits_of(family: object, knowledge: Path) -> EntitySplits:
    """Return the entities whose names must not be shared; none if the family knows no entities."""
    if isinstance(family, KnowsEntities):
        return family.entity_splits(knowledge)
    return EntitySplits.none()


def fact_of_task(family: object, task: Task) -> str:
    """Return the task's fact; a family that knows no entities asks a new one with each task."""
    return family.fact(task) if isinstance(family, KnowsEntities) else task.task_id


class WritesAgentTexts(ABC):
    """Generates the texts that `[agent_texts]` configures."""

    @abstractmethod
    def agent_texts(
        self,
        knowledge: Path,
        questions: Mapping[Split, Sequence[FamilyQuestion]],
        demonstrations: Sequence[Trajectory],
        funnel: Funnel,
        tracker: Tracker,
    ) -> AgentTexts:
        """Return plans, reasoning, decisions and negatives, if `[agent_texts]` configures them."""


class ProposesTasks(ABC):
    """Proposes training tasks between the phases of training, for `[self_play]`."""

    profile: Profile
    self_play: ClassVar[frozenset[str]] = frozenset()
    """Names of the `[self_play]` methods that can propose its tasks."""

    @abstractmethod
    def proposer(self, knowledge: Path, accepted: Path) -> TaskProposer:
        """Return the generator of new training tasks between the phases of training.

        Raises:
            ProfileError: the family does not support the configured self-play.
        """
        del knowledge, accepted
        raise ProfileError(
            f'self_play.name = "{self.profile.self_play.name}" poses no tasks of '
            f'environment.name = "{self.profile.environment.name}"; set it to "off"'
        )


class RelabelsFailures(ABC):
    """Finds the tasks that failed trajectories solved, for `[warm_start.hindsight]`."""

    @abstractmethod
    def hindsight(self, knowledge: Path, accepted: Path) -> Hindsight:
        """Return what finds the tasks that failed trajectories solved.

        Args:
            knowledge: the artifact of `ingest`.
            accepted: the artifact of `validate`, with the tasks of every split.
        """


class LooksAnswersUp(ABC):
    """Has tools that look answers up, so that answers from memory are judged beside them.

    Answers also count as grounded or not, depending on what the tools returned.
    """

    closed_book: ClassVar[ClosedBook]
    """The prompt under which a policy answers from memory, without tools."""


class SearchesAddedLines(ABC):
    """Its tools may search texts to which `ingest` added lines: it is judged without these as well.

    `evaluate` asks the questions that ask for such lines a second time, over the texts as they are
    written.
    """

    @abstractmethod
    def asks_for_added_lines(self, task: Task) -> bool:
        """Return whether the answer may stand in a line that `ingest` added."""

    @abstractmethod
    def environments_as_written(self, knowledge: Path) -> AbstractContextManager[Environments]:
        """Open the environments of held-out questions over texts without added lines.

        Args:
            knowledge: the artifact of `ingest`.
        """


class MakesCanaries(ABC):
    """Knows answers that are never right, so that training can ask whether its verifier is fooled.

    A canary is a dev question with such an answer in the place of its own. No attempt finds it, so
    one that counts as right shows that the verifier takes wrong answers.
    """

    @abstractmethod
    def unfindable_answer(self, rng: random.Random) -> str:
        """Return a random answer, of the form of right ones, which no text or tool shows."""


class HasBenchmarks(ABC):
    """Reads the tasks of a public set, which `evaluate` asks beside the family's own."""

    @abstractmethod
    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """Return the tasks of a file or folder in a public format, in its order.

        They belong to the split `heldout`, and are never trained on. The module
        `espalier.environments.benchmarks` reads files of JSON rows.

        Raises:
            DataError: a row is malformed; the message names file and row.
        """

    @contextmanager
    def benchmark_environments(self, path: Path, knowledge: Path) -> Generator[Environments]:
        """Open the environments of the tasks in `path`.

        Args:
            path: the path given to `read_benchmark`; some formats also hold data for the tools.
            knowledge: the artifact of `ingest`.
        """
        del path
        with self.environments(knowledge) as environments_over:
            yield environments_over("full")

    if TYPE_CHECKING:  # of the family that it is mixed into

        def environments(self, knowledge: Path) -> AbstractContextManager[EnvironmentsOver]:
            """Open the environments of every view."""
            ...


class InstallsPackages(ABC):
    """Needs packages in a virtual environment of their own: `espalier environments add`."""

    @classmethod
    @abstractmethod
    def install_packages(cls) -> str:
        """Install them, and return what was done, in a sentence."""


def no_public_format(path: Path, family: str) -> str:
    """Return the message for a public file that a family without `HasBenchmarks` is to read."""
    return (
        f"{path}: the family {family} reads no public format (`HasBenchmarks`). Leave `tasks` out, "
        "to play the family's own held-out tasks"
    )


def require_mixins(family: type[object], profile: Profile) -> None:
    """Check that a family has the mixins that keys of the profile need.

    Raises:
        ValueError: it lacks one; the message names the key and the mixin.
    """
    name, warm_start = profile.environment.name, profile.warm_start
    asked = profile.agent_texts.pretraining_texts or profile.agent_texts.negatives
    if asked and not issubclass(family, WritesAgentTexts):
        raise ValueError(
            f'agent_texts are written from documents, and environment.name = "{name}" has none '
            "(its class lacks WritesAgentTexts); leave them at 0"
        )
    if warm_start.hindsight is not None and not issubclass(family, RelabelsFailures):
        raise ValueError(
            f'warm_start.hindsight: environment.name = "{name}" cannot say which task a failed '
            "attempt solved (its class lacks RelabelsFailures); leave the section out"
        )
    posing = profile.self_play.name
    posed = family.self_play if issubclass(family, ProposesTasks) else frozenset[str]()
    if posing != "off" and posing not in posed:
        raise ValueError(
            f'self_play.name = "{posing}" poses no tasks of environment.name = "{name}"; choose '
            'another, or "off"'
        )
    require_reading(family, profile)
    if has_demonstrations(family, profile):
        return
    learned = {
        "warm_start.hindsight": warm_start.hindsight,
        "warm_start.preferences": warm_start.preferences,
        "episode.memory": profile.episode.memory,
    }
    if keys := [key for key, section in learned.items() if section is not None]:
        raise ValueError(
            f'{keys[0]} builds on demonstrations, and environment.name = "{name}" has no teacher '
            "(its class lacks Teacher); name a file of warm_start.demonstrations, or leave it out"
        )


def require_reading(family: type[object], profile: Profile) -> None:
    """Check that the tiny policy has something to learn to read from, if it is trained.

    Raises:
        ValueError: no model is given, and the family lacks `TeachesReading`.
    """
    is_made = profile.policy.model is None and profile.policy.start == "base"
    if is_made and not issubclass(family, TeachesReading):
        raise ValueError(
            f'environment.name = "{profile.environment.name}" has nothing that the tiny policy '
            "could learn to read from (its class lacks TeachesReading): name a model as "
            "policy.model, or derive the class from SimpleFamily"
        )
