"""Profile sections of the data side: search, splits, synthesis, validation, curation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

T = TypeVar("T")

_DEMONSTRATIONS = 1000


def _each_once(names: tuple[T, ...]) -> tuple[T, ...]:
    if not names or len(set(names)) < len(names):
        raise ValueError("give at least one, and none twice")
    return names


EachOnce = Annotated[tuple[T, ...], AfterValidator(_each_once)]
"""A non-empty tuple without duplicates."""


def _each(value: object) -> Iterator[object]:
    """Yield the scalars of a profile's value: of its lists and tables, and theirs."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left += cast("Mapping[object, object]", one).values()
        elif isinstance(one, list | tuple):
            left += cast("Sequence[object]", one)
        else:
            yield one


def _kinds(annotation: object) -> Iterator[object]:
    """Yield an annotation and those within it: of `tuple[int, ...]` it yields `int` too."""
    yield annotation
    for part in get_args(annotation):
        yield from _kinds(part)


class Section(BaseModel):
    """A table of the profile: immutable, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _numbers_are_no_switches(cls, values: object) -> object:
        """Refuse true and false where a number is expected: pydantic reads them as 1 and 0."""
        if isinstance(values, Mapping):
            for name, value in cast("Mapping[str, object]", values).items():
                switch = next((one for one in _each(value) if isinstance(one, bool)), None)
                field = None if switch is None else cls.model_fields.get(name)
                kinds = set[object]() if field is None else set(_kinds(field.annotation))
                if kinds & {int, float} and bool not in kinds:
                    raise ValueError(f"{name}: write a number, not {str(switch).lower()}")
        return cast("object", values)


class SplitsConfig(Section):
    """Shares of the entities that training never sees."""

    heldout_share: float = Field(default=0.25, gt=0, lt=0.8)
    """Share of the entities that occur only in held-out questions."""
    dev_share: float = Field(default=0.10, gt=0, lt=0.5)
    """Share of the entities that occur only in dev questions."""

    @model_validator(mode="after")
    def _something_is_left_to_train_on(self) -> Self:
        if self.heldout_share + self.dev_share > 0.8:
            raise ValueError(
                f"splits.heldout_share={self.heldout_share} and splits.dev_share={self.dev_share} "
                "leave less than 0.2 of the entities to train on; lower one of them"
            )
        return self


class SearchConfig(Section):
    """The agent's search tool."""

    top_k: int = Field(default=1, ge=1, le=10)
    """Number of documents that a search returns."""
    snippet_lines: int = Field(default=2, ge=1)
    """Number of lines that a result shows of a document: those that match the query best."""
    max_observation_words: int = Field(default=48, ge=4)
    """Longest search result, words; the rest is cut."""


class ExpansionConfig(Section):
    """Questions that grow layer by layer from seeds by random walks (WebShaper)."""

    share: float = Field(default=0.0, ge=0, le=1)
    """Share of a split's formal questions that are grown; 0 draws them all by signature."""
    layers: int = Field(default=2, ge=1, le=4)
    """Number of rounds in which the newest constants become variables with a sub-question."""
    max_searches: int = Field(default=5, ge=2, le=8)
    """Most searches that answer a grown question; the answer takes one turn more."""
    max_actions: int = Field(default=12, ge=2)
    """Most calls of the expander at one constant, which then stays as it is."""


class InvertedConfig(Section):
    """Inverted questions: several facts that together fit only one entity (BrowseComp's form)."""

    share: float = Field(default=0.0, ge=0, le=1)
    """Share of a split's formal questions that are inverted; 0 makes none."""
    max_clues: int = Field(default=4, ge=2, le=6)
    """Most facts of a question; it has at least two, and each is needed."""
    min_holders: int = Field(default=3, ge=2)
    """Entities for which a fact of the question must be true, at least, so that no fact alone gives
    the answer away."""
    max_lines: int = Field(default=5, ge=2)
    """Most lines of documents that prove the answer."""


class SynthesisConfig(Section):
    """Questions from formal queries, and teacher trajectories that answer some of them."""

    train_tasks: int = Field(default=6000, ge=1)
    """Number of training questions."""
    dev_tasks: int = Field(default=500, ge=1)
    """Number of dev questions, which choose the best weights. If there are as many as the dev
    questions of the warm start and of RL together, the two share none."""
    heldout_tasks: int = Field(default=1000, ge=1)
    """Number of held-out questions: the suite of the final comparison."""
    trajectories: int = Field(default=_DEMONSTRATIONS, ge=1)
    """Number of the teacher's demonstrations, each of a different training question; not more than
    `train_tasks`, also by default."""
    demonstrated_share: float = Field(default=0.5, gt=0, lt=1, exclude_if=lambda it: it == 0.5)
    """Own knowledge: largest share of the training facts that are demonstrated. The warm start
    learns from these, and reinforcement learning from the others."""
    demonstration_temperature: float = Field(default=1, ge=1, exclude_if=lambda it: it == 1)
    """Flattens the mix of demonstrated question kinds: the share of a kind is proportional to its
    share of the held-out questions to the power of 1 / temperature; above 1, rare kinds gain."""
    made_questions: int = Field(default=3, ge=0, exclude_if=lambda it: it == 3)
    """Own question pairs: most further training questions for each training pair, made from the
    documents with the wording of the pairs; 0 makes none."""
    chain_weights: tuple[float, float, float, float] = (0.15, 0.40, 0.30, 0.05)
    """Weights of chain questions of 1, 2, 3 and 4 hops."""
    intersection_weight: float = Field(default=0.06, ge=0)
    """Weight of questions whose answers meet both of two conditions."""
    union_weight: float = Field(default=0.04, ge=0)
    """Weight of questions whose answers meet either of two conditions."""
    detour_share: float = Field(default=0.15, ge=0, le=1)
    """Share of teacher trajectories with a detour (bad query, empty result, wrong document)."""
    solver: Literal["routes", "teacher"] = "routes"
    """Source of demonstrations: "routes" follows the known query of a question; "teacher" lets the
    model of [teacher] attempt the worded question, and keeps an attempt that passes its checks."""
    rollouts: int = Field(default=5, ge=1)
    """Attempts of the teacher at one question (WebShaper, arXiv:2507.15061)."""
    expansion: ExpansionConfig = ExpansionConfig()
    inverted: InvertedConfig = InvertedConfig()

    @model_validator(mode="before")
    @classmethod
    def _no_more_demonstrations_than_tasks(cls, content: object) -> object:
        if not isinstance(content, dict):
            return content
        section = cast("dict[str, object]", content)
        tasks = section.get("train_tasks")
        if "trajectories" in section or not isinstance(tasks, int) or tasks < 1:
            return section
        return section | {"trajectories": min(tasks, _DEMONSTRATIONS)}

    @model_validator(mode="after")
    def _weights_ask_for_something(self) -> Self:
        if min(self.chain_weights) < 0:
            raise ValueError("synthesis.chain_weights must not be negative")
        if sum(self.chain_weights) + self.intersection_weight + self.union_weight <= 0:
            raise ValueError("synthesis: all weights are 0, so no question can be drawn")
        if self.expansion.share + self.inverted.share > 1:
            raise ValueError(
                f"synthesis.expansion.share={self.expansion.share} and synthesis.inverted.share="
                f"{self.inverted.share} are shares of the same questions; lower one of them"
            )
        if self.trajectories > self.train_tasks:
            raise ValueError(
                f"synthesis.trajectories={self.trajectories} exceeds synthesis.train_tasks="
                f"{self.train_tasks}: each teacher trajectory needs a different training question"
            )
        return self


class ValidationConfig(Section):
    """Bounds of the Great Expectations suites."""

    max_question_words: int = Field(default=80, ge=1)
    """Longest accepted question, words."""
    max_turns: int = Field(default=12, ge=1)
    """Longest accepted trajectory, turns."""
    min_action_share: float = Field(default=0.15, ge=0, le=1)
    """Least share of the characters after the prompt that the policy writes."""
    max_action_share: float = Field(default=0.95, ge=0, le=1)
    """Largest share of these; a trajectory above it has nearly no observations."""
    max_dropped_share: float = Field(default=0.05, ge=0, le=1)
    """Largest share of rows that may be dropped for failing non-critical row-wise expectations."""


class CurationConfig(Section):
    """Filters over training questions and agent texts; dev and held-out tasks stay as they are."""

    enabled: bool = False
    """Whether training rows are filtered at all."""
    near_duplicate: float = Field(default=0.8, gt=0, le=1)
    """Similarity to an earlier row (Jaccard of 3-word runs) from which a row is dropped."""
    benchmarks: dict[str, Path] = Field(default_factory=dict[str, Path])
    """Name -> file of a benchmark that must not be trained on: .txt (one text per line) or .jsonl
    (every string of a row is a text). A row is dropped if it shares a run of 13 words with one."""
    min_words: int = Field(default=3, ge=1)
    """Shorter rows are dropped."""
    max_words: int = Field(default=2000, ge=1)
    """Longer rows are dropped."""
    weights: dict[str, float] = Field(default_factory=dict[str, float])
    """Kind of agent text -> its weight in the mix; all texts of other kinds are kept."""

    @model_validator(mode="after")
    def _bounds_leave_something(self) -> Self:
        if self.min_words > self.max_words:
            raise ValueError(
                f"curation.min_words={self.min_words} exceeds max_words={self.max_words}"
            )
        known = {"planning", "reasoning", "decision"}
        if unknown := sorted(self.weights.keys() - known):
            raise ValueError(f"curation.weights: no kind {unknown[0]!r}; there are {sorted(known)}")
        if any(not 0 < weight < float("inf") for weight in self.weights.values()):
            raise ValueError(
                "curation.weights must be positive; to leave a kind out, set its number in "
                "[agent_texts] to 0"
            )
        return self
