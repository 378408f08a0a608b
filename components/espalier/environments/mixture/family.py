"""Several families as one: each task is generated, taught, played and judged by its own family.

With a mixture, every step learns from groups of all families, so that a policy does not learn one
family at the cost of another.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

from espalier.config import EnvironmentConfig, Profile, family_class
from espalier.config.reward import require_composition
from espalier.environments.contract import Environment, Environments, EnvironmentsOver, View
from espalier.environments.demonstrations import Rejected
from espalier.environments.family import Family, family_of
from espalier.environments.funnel import Funnel
from espalier.environments.mixins import (
    Demonstrate,
    FamilyQuestion,
    KnowsEntities,
    MakesQuestions,
    Renames,
    Renaming,
    TaskRenaming,
    Teacher,
    TeachesReading,
    require_reading,
)
from espalier.environments.mixture.config import MixtureConfig
from espalier.environments.reading import Log, ReadingMaterial
from espalier.environments.teaching import Script
from espalier.environments.tools import Tool
from espalier.records import DataError, Draft, Split, Task, Tracker
from espalier.records.knowledge import EntitySplits
from espalier.records.message import ToolSpec
from espalier.records.trajectory import Trajectory


class Mixture(
    MakesQuestions,
    Family[MixtureConfig],
    Teacher,
    TeachesReading,
    Renames,
    KnowsEntities,
):
    """The family that consists of other families."""

    name = "mixture"
    config = MixtureConfig
    answers_from_evidence = False
    ends_by_call = True
    converses = True
    reads_symbols = True

    @classmethod
    def check(cls, profile: Profile) -> None:
        """Check that members fit the other sections, and that their outcomes outweigh other terms.

        An error names the member.
        """
        settings = profile.environment
        assert isinstance(settings, MixtureConfig)
        for name, own in settings.profiles(profile).items():
            try:
                require_reading(cast("type[object]", family_class(name)), own)
                family_class(name).check(own)
                require_composition(own)
            except ValueError as error:
                raise ValueError(f"environment.members: {name}: {error}") from error

    @classmethod
    def outcome_span(cls, settings: EnvironmentConfig) -> tuple[float, float]:
        """Return the widest range of the members; each member scales and checks by its own."""
        assert isinstance(settings, MixtureConfig)
        spans = [
            family_class(member.environment.name).outcome_span(member.environment)
            for member in settings.members
        ]
        return min(low for low, _ in spans), max(high for _, high in spans)

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        own = self.settings.profiles(profile)
        self.members: dict[str, Family[Any]] = {name: family_of(own[name]) for name in own}
        """Name -> member."""
        members = self.members.values()
        self.splits_digits = any(
            isinstance(member, TeachesReading) and member.splits_digits for member in members
        )
        self.instructions = "".join(
            f"{member.name}: {member.instructions}" for member in members if member.instructions
        )

    def of(self, task: Task) -> Family[Any]:
        """Return the member that a task belongs to.

        Raises:
            DataError: the task belongs to no member.
        """
        if task.environment not in self.members:
            raise DataError(
                f"task {task.task_id} is of {task.environment}, and the mixture has "
                f"{', '.join(self.members)}"
            )
        return self.members[task.environment]

    # ------------------------------------------------------------------------------ playing

    def tools(self) -> Sequence[Tool]:
        """Return the tools of all members; of two with the same name the first."""
        found: dict[str, Tool] = {}
        for member in self.members.values():
            for tool in member.built_tools:
                found.setdefault(tool.spec.name, tool)
        return tuple(found.values())

    def specs_of(self, task: Task) -> tuple[ToolSpec, ...]:
        """Return the tools described to the policy in a task of a member."""
        return self.of(task).specs_of(task)

    def verify(self, task: Task, answer: str | None) -> float:
        """Return the outcome by the task's own family."""
        return self.of(task).verify(task, answer)

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open the environments of all members, whose sandboxes exist at the same time."""
        with ExitStack() as opened:
            members = {
                name: opened.enter_context(member.environments(knowledge / name))
                for name, member in self.members.items()
            }

            def over(view: View) -> Environments:
                playing = {name: environments(view) for name, environments in members.items()}

                def make(task: Task) -> Environment:
                    return playing[task.environment](task)

                return Environments(
                    family=self.name,
                    tools=self.specs,
                    instructions=self.instructions,
                    make=make,
                    derived_from=frozenset(playing),
                    memory=self.memory,
                )

            yield over

    # ------------------------------------------------------------------------------ data

    def ingest(self, draft: Draft, tracker: Tracker) -> None:
        """Let each member ingest into a folder of its name."""
        sources: list[str] = []
        for name, member in self.members.items():
            own = Draft(draft.path / name)
            own.path.mkdir()
            member.ingest(own, tracker)
            draft.rows |= {f"{name}.{what}": count for what, count in own.rows.items()}
            said = (own.path / "attribution.txt").read_text(encoding="utf-8")
            sources.append(f"{name}: {said}")
        (draft.path / "attribution.txt").write_text("".join(sources), encoding="utf-8")

    def questions(
        self, knowledge: Path, funnel: Funnel, tracker: Tracker
    ) -> dict[Split, Sequence[FamilyQuestion]]:
        """Return the questions of all members, shuffled."""
        found: dict[Split, list[FamilyQuestion]] = {"train": [], "dev": [], "heldout": []}
        for name, member in self.members.items():
            for split, asked in member.questions(knowledge / name, funnel, tracker).items():
                found[split] += asked
        for split, questions in found.items():
            random.Random(f"mixture:{self.profile.seed}:{split}").shuffle(questions)
        return dict(found)

    @contextmanager
    def teacher(self, knowledge: Path, funnel: Funnel) -> Generator[Demonstrate]:
        """Open the teachers of those members that have one."""
        with ExitStack() as opened:
            teachers = {
                name: opened.enter_context(member.teacher(knowledge / name, funnel))
                for name, member in self.members.items()
                if isinstance(member, Teacher)
            }

            def demonstrate(question: FamilyQuestion, detour: str) -> Trajectory | Rejected:
                teacher = teachers.get(question.task.environment)
                return teacher(question, detour) if teacher else Rejected("no_teacher")

            yield demonstrate

    def renaming(self, knowledge: Path, share: float) -> Renaming | None:
        """Return the members' renamings; demonstrations of members without one are unchanged."""
        found = {
            name: renaming
            for name, member in self.members.items()
            if isinstance(member, Renames)
            and (renaming := member.renaming(knowledge / name, share)) is not None
        }

        def renamed(
            task: Task, trajectory: Trajectory, rng: random.Random
        ) -> tuple[Task, Trajectory]:
            own = found.get(task.environment)
            return own(task, trajectory, rng) if own else (task, trajectory)

        return renamed if found else None

    def task_renaming(self, knowledge: Path, share: float) -> TaskRenaming | None:
        """Return the members' renamings; tasks of members without one are unchanged."""
        found = {
            name: renaming
            for name, member in self.members.items()
            if isinstance(member, Renames)
            and (renaming := member.task_renaming(knowledge / name, share)) is not None
        }

        def renamed(task: Task, rng: random.Random) -> Task:
            own = found.get(task.environment)
            return own(task, rng) if own else task

        return renamed if found else None

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Return logs of the members that have any, drawn by their weights."""
        weights = {one.environment.name: one.weight for one in self.settings.members}
        found = {
            name: member.reading_material(
                knowledge / name, [task for task in train if task.environment == name]
            )
            for name, member in self.members.items()
            if isinstance(member, TeachesReading)
        }
        return _MixedReading(list(found.values()), [weights[name] for name in found])

    def entity_splits(self, knowledge: Path) -> EntitySplits:
        """Return the entity splits of the one member that has any."""
        none = EntitySplits.none()
        members = self.members.items()
        found = (
            member.entity_splits(knowledge / name)
            for name, member in members
            if isinstance(member, KnowsEntities)
        )
        return next((splits for splits in found if splits != none), none)

    def hub_kinds(self, knowledge: Path) -> list[str]:
        """Return the hub kinds of all members."""
        return [
            kind
            for name, member in self.members.items()
            if isinstance(member, KnowsEntities)
            for kind in member.hub_kinds(knowledge / name)
        ]

    def chat_task(self, question: str) -> Task:
        """Return a task of the first member."""
        return next(iter(self.members.values())).chat_task(question)

    # ------------------------------------------------------------------------------ by task

    def report_groups(self, task: Task) -> Mapping[str, str]:
        """Return the member as "family", and the member's own groups under its name."""
        own = self.of(task).report_groups(task).items()
        return {"family": task.environment} | {
            grouping: f"{task.environment}: {group}" for grouping, group in own
        }

    def question_key(self, task: Task) -> str:
        """Return the member's key for rewordings, prefixed with its name; empty if unknown."""
        key = self.of(task).question_key(task)
        return f"{task.environment}: {key}" if key else ""

    def answer_key(self, task: Task) -> Hashable:
        """Return the member's key with its name."""
        return task.environment, self.of(task).answer_key(task)

    def has_text_answer(self, task: Task) -> bool:
        """Return what the task's own family says."""
        return self.of(task).has_text_answer(task)

    def gold_script(self, task: Task) -> Script:
        """Return the gold script of the task's own family."""
        return self.of(task).gold_script(task)


class _MixedReading:
    """Reading material of several families, drawn by weight."""

    def __init__(self, materials: Sequence[ReadingMaterial], weights: Sequence[float]) -> None:
        self._materials, self._weights = materials, weights

    def write(self, rng: random.Random) -> Log:
        """Return one log of a random member."""
        (material,) = rng.choices(self._materials, self._weights)
        return material.write(rng)

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield the texts of all members."""
        for material in self._materials:
            yield from material.texts(rng)
