"""Shopping (WebShop, Yao et al. 2022, arXiv:2207.01206).

The policy searches a catalogue, opens products, chooses options and buys one. The purchase is
scored against the goal that its instruction was written for.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from espalier.algorithms.shaping import Span
from espalier.config import Profile, WebRLConfig, require_composition
from espalier.environments.benchmarks import benchmark_tasks
from espalier.environments.contract import Environments, EnvironmentsOver
from espalier.environments.episode import EpisodeRules, TurnResults
from espalier.environments.evolution import TaskEvolution, refuse_teacher_proposals
from espalier.environments.family import SimpleFamily
from espalier.environments.funnel import Funnel
from espalier.environments.hindsight import Hindsight
from espalier.environments.mixins import (
    FamilyQuestion,
    HasBenchmarks,
    PlainQuestion,
    ProposesTasks,
    RelabelsFailures,
)
from espalier.environments.proposals import TaskProposer
from espalier.environments.reading import ReadingMaterial
from espalier.environments.teaching import Script, ScriptTeacher
from espalier.environments.tools import Tool
from espalier.records import DataError, Draft, Split, Task, Tracker
from espalier.records.trajectory import Trajectory
from espalier_environments.shop.catalogue import Catalogue, Product
from espalier_environments.shop.config import ShopConfig
from espalier_environments.shop.evolution import ShopVariations
from espalier_environments.shop.goals import (
    goal_of,
    goal_task,
    read_purchase,
    score_of,
    written_score,
)
from espalier_environments.shop.hindsight import ShopHindsight
from espalier_environments.shop.made_catalogue import (
    drawn_goal,
    made_goals,
    make_products,
    split_of,
)
from espalier_environments.shop.reading import VisitReading
from espalier_environments.shop.teaching import gold_script, shop_for
from espalier_environments.shop.tools import BUY, ScoredVisit, shop_tools, tools_of
from espalier_environments.shop.webshop_files import PublicShop, load_webshop

INSTRUCTIONS = (
    "Buy what the user asks for in a web shop. Search, open a product by clicking on its id, "
    "choose its options by clicking on them, and buy it. What is not asked for does not matter.\n"
)


class Shop(SimpleFamily[ShopConfig], HasBenchmarks, ProposesTasks, RelabelsFailures):
    """The family of shopping tasks."""

    name = "shop"
    config = ShopConfig
    instructions = INSTRUCTIONS
    splits_digits = True
    answers_from_evidence = False
    ends_by_call = True
    headline = "score"
    self_play = frozenset({"webrl"})
    further_terms = frozenset({"score"})

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self._copied: tuple[Path, Catalogue] | None = None
        """The last knowledge artifact and the catalogue loaded from it."""

    @classmethod
    def check(cls, profile: Profile) -> None:
        """Check that the outcome outweighs the score's term, and that no teacher varies goals."""
        refuse_teacher_proposals(profile, "goals")
        config = profile.environment
        assert isinstance(config, ShopConfig), "the section of this family"
        span = Span(0.0, config.score_reward)
        require_composition(profile, {"environment.score_reward": span})

    def tools(self) -> Sequence[Tool]:
        """Return the tools' schemas; `environments` binds them to an episode's visit."""
        return shop_tools()

    # ------------------------------------------------------------------------------ tasks

    def ingest(self, draft: Draft, tracker: Tracker) -> None:
        """Copy WebShop's files into the artifact; a generated catalogue needs no files.

        Raises:
            DataError: a file is missing or malformed.
        """
        del tracker
        source = "A catalogue made by espalier."
        if self.settings.catalogue is not None:
            self._load(self.settings.catalogue)
            (draft.path / _COPIED).mkdir()
            for path in sorted(self.settings.catalogue.glob("items_*.json")):
                shutil.copy(path, draft.path / _COPIED)
            source = f"Products and goals of {self.settings.catalogue.name}, in WebShop's format."
        (draft.path / "attribution.txt").write_text(f"{source}\n", encoding="utf-8")

    def questions(
        self, knowledge: Path, funnel: Funnel, tracker: Tracker
    ) -> dict[Split, Sequence[FamilyQuestion]]:
        """Return goals in the generated catalogue, or in the user's."""
        if self.settings.catalogue is None:
            return super().questions(knowledge, funnel, tracker)
        shop = self._load(knowledge / _COPIED)
        asked = self.profile.synthesis
        counts: dict[Split, int] = {
            "train": asked.train_tasks, "dev": asked.dev_tasks, "heldout": asked.heldout_tasks,
        }  # fmt: skip
        found: dict[Split, Sequence[FamilyQuestion]] = {}
        for split, count in counts.items():
            distinct: dict[str, Task] = {}
            for goal in shop.goals_of(split, self.profile.splits):
                task = goal_task(goal, family=self.name, split=split, source="webshop")
                distinct[task.task_id] = task
            found[split] = [PlainQuestion(task) for task in list(distinct.values())[:count]]
        if empty := [split for split, tasks in found.items() if not tasks]:
            raise DataError(f"{self.settings.catalogue}: no goal for {', '.join(empty)}")
        return found

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return goals for the split's products in the generated catalogue."""
        made = self.settings.made
        goals = made_goals(self._made.products, made, self.profile.splits, split)
        asked = [goal for _, goal in zip(range(count), goals, strict=False)]
        random.Random(f"shop order {made.seed} {split}").shuffle(asked)
        return [
            goal_task(goal, family=self.name, split=split, source="made catalogue")
            for goal in asked
        ]

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Return visits for goals that are in no task; for a user's catalogue, demonstrations."""
        if self.settings.catalogue is not None:
            return super().reading_material(knowledge, train)
        made = self.settings.made
        own = [
            product
            for product in self._made.products
            if split_of(product, self.profile.splits) == "train"
        ]

        def draw_task(rng: random.Random) -> Task:
            goal = drawn_goal(rng, rng.choice(own), made)
            return goal_task(goal, family=self.name, split="train", source="reading")

        teacher = ScriptTeacher(self._environments_over(self._made))

        def demonstrate(task: Task) -> Trajectory | None:
            shown = teacher.demonstrate(task, partial(self.demonstrate, task))
            return shown if isinstance(shown, Trajectory) else None

        return VisitReading(own, self.settings.page_size, draw_task, demonstrate)

    @cached_property
    def _made(self) -> Catalogue:
        return Catalogue(make_products(self.settings.made), max_results=self.settings.max_results)

    def _load(self, path: Path) -> PublicShop:
        return load_webshop(path, max_results=self.settings.max_results)

    def _catalogue(self, knowledge: Path) -> Catalogue:
        if self.settings.catalogue is None:
            return self._made
        if self._copied is None or self._copied[0] != knowledge:
            self._copied = (knowledge, self._load(knowledge / _COPIED).catalogue)
        return self._copied[1]

    @property
    def _opened(self) -> Catalogue:
        """The catalogue of the open environments, or the profile's before any is open."""
        given = self.settings.catalogue
        if given is None:
            return self._made
        return self._copied[1] if self._copied is not None else self._load(given).catalogue

    # ------------------------------------------------------------------------------ playing

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open environments over the generated or the ingested catalogue."""
        environments = self._environments_over(self._catalogue(knowledge))
        yield lambda _view: environments

    @contextmanager
    def benchmark_environments(self, path: Path, knowledge: Path) -> Generator[Environments]:
        """Open environments over the products next to the file of goals."""
        del knowledge
        yield self._environments_over(self._load(path).catalogue)

    def _environments_over(self, catalogue: Catalogue) -> Environments:
        return self.environments_by(self.tools(), lambda task: self._rules_of(task, catalogue))

    def _rules_of(self, task: Task, catalogue: Catalogue) -> EpisodeRules:
        """Return the rules of one episode, which is one visit to the shop."""
        visit = ScoredVisit(catalogue, goal_of(task), page_size=self.settings.page_size)

        def bought(_task: Task, _answer: str | None, _turns: TurnResults) -> float:
            return float(visit.score == 1)

        def partly(_task: Task, _answer: str | None, _turns: TurnResults) -> Mapping[str, float]:
            return {"score": self.settings.score_reward * visit.score}

        def written(text: str) -> str:
            return text if visit.is_over else ""

        return replace(
            self.rules(tools_of(visit)),
            verify=bought,
            further_terms=partly,
            ending_tools=frozenset({BUY}),
            # a message without a call buys nothing: it is not an answer and gets no format reward
            read_answer=written,
        )

    def verify(self, task: Task, answer: str | None) -> float:
        """Return 1 if an answer is a purchase in the profile's catalogue with a score of 1.

        Episodes are scored by what was bought in them, and do not use this method.
        """
        if answer is None:
            return 0.0
        purchase = read_purchase(answer, self._opened)
        return 0.0 if purchase is None else float(score_of(purchase, goal_of(task)).score == 1)

    # ------------------------------------------------------------------------------ new goals

    def proposer(self, knowledge: Path, accepted: Path) -> TaskProposer:
        """Return WebRL's evolution of failed goals."""
        if not isinstance(self.profile.self_play, WebRLConfig):
            return super().proposer(knowledge, accepted)
        is_of_training, made = self._is_of_training(knowledge), self.settings.made
        variations = ShopVariations(
            list(filter(is_of_training, self._catalogue(knowledge).products)),
            max_options=made.max_options if self.settings.catalogue is None else _MOST_OPTIONS,
            family=self.name,
        )
        return TaskEvolution(variations.varied)

    def hindsight(self, knowledge: Path, accepted: Path) -> Hindsight:
        """Return what turns a purchase into the goal that it meets."""
        del accepted
        return ShopHindsight(
            self._catalogue(knowledge), self._is_of_training(knowledge), family=self.name
        )

    def _is_of_training(self, knowledge: Path) -> Callable[[Product], bool]:
        """Return a predicate: whether a product has no dev or held-out goal."""
        splits = self.profile.splits
        if self.settings.catalogue is None:
            return lambda product: split_of(product, splits) == "train"
        shop = self._load(knowledge / _COPIED)
        others = {goal.asin for split in _JUDGED for goal in shop.goals_of(split, splits)}
        return lambda product: product.asin not in others

    # ------------------------------------------------------------------------------ benchmarks

    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """Return goals in WebShop's format: the test split of people's goals, or generated ones."""
        shop = self._load(path)
        goals = shop.goals_of("heldout", self.profile.splits) if shop.is_official else shop.goals
        tasks = [
            goal_task(goal, family=self.name, split="heldout", source="webshop") for goal in goals
        ]
        return benchmark_tasks(path, tasks)

    def official_scores(self, task: Task, trajectory: Trajectory) -> Mapping[str, float]:
        """Return WebShop's score of the purchase, 0 without one, and whether it is 1."""
        del task
        last = trajectory.tool_results[-1:]
        was_bought = any(one.call.name == BUY and one.succeeded for one in last)
        bought = trajectory.answer if was_bought else None
        score = written_score(bought) if bought is not None else 0.0
        return {"score": score, "success_rate": float(score == 1)}

    def gold_script(self, task: Task) -> Script:
        """Buy the product that the goal was made from."""
        return gold_script(task)

    def demonstrate(self, task: Task) -> Script:
        """Open promising results, until one is right."""
        return shop_for(task, self._opened)


_JUDGED: tuple[Split, ...] = ("dev", "heldout")
_MOST_OPTIONS = 3
"""Most options that a new goal in a user's catalogue asks for."""
_COPIED = "catalogue"
"""Folder of the knowledge artifact with the user's files."""
