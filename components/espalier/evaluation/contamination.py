"""What a policy was trained on, against what it is asked: shared questions, entities, documents.

Texts are compared by digests of their folded words, so that what a version was trained on can be
kept with it in the registry without the texts:

    question    equal after folding, or a key of the family's says that one rewords the other
    entities    a name that the held-out task is about, hubs apart, stood in a training task
    documents   each document that the task was made from, shared ones apart, was trained on
    runs        for public files: a share of its runs of 8 words stands in training questions
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from espalier.config import ContaminationConfig
from espalier.environments import Family
from espalier.records import DataError, Task
from espalier.records.folding import folded_name, words


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _folded(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(_digest(folded) for text in texts if (folded := folded_name(text)))


def word_runs(text: str, length: int) -> frozenset[str]:
    """Digests of all runs of `length` folded words; of the whole text if it is shorter."""
    found = words(text)
    count = max(1, len(found) - length + 1)
    return frozenset(_digest(" ".join(found[i : i + length])) for i in range(count))


class Prints(BaseModel):
    """Digests of what tasks hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    questions: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    documents: frozenset[str] = frozenset()
    runs: dict[int, frozenset[str]] = {}
    """Words in a run -> digests of the runs."""

    @classmethod
    def of(cls, family: Family[Any], tasks: Iterable[Task], run_words: int) -> Self:
        """Return the prints of all these tasks together."""
        found = list(tasks)
        runs = [word_runs(task.question, run_words) for task in found]
        return cls(
            family=family.name,
            questions=_folded(task.question for task in found),
            keys=frozenset(_digest(key) for task in found if (key := family.question_key(task))),
            names=_folded(name for task in found for name in family.names_of(task)),
            documents=frozenset(_digest(one) for t in found for one in family.documents_of(t)),
            runs={run_words: frozenset().union(*runs)},
        )

    @classmethod
    def of_questions(cls, family: str, questions: Iterable[str], run_words: int) -> Self:
        """Return the prints of questions alone, as a user's own demonstrations hold them."""
        found = list(questions)
        runs = [word_runs(text, run_words) for text in found]
        return cls(
            family=family,
            questions=_folded(found),
            runs={run_words: frozenset[str]().union(*runs)},
        )


class Training(BaseModel):
    """What a policy was trained on, as far as it is known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: tuple[str, ...] = ()
    """Content digests of the accepted tasks, those of the run itself first."""
    prints: tuple[Prints, ...] = ()
    """Prints of their training and dev tasks."""
    unknown: tuple[str, ...] = ()
    """What cannot be said, in words; empty where all is known."""

    def __add__(self, other: Training) -> Training:
        """What either was trained on."""
        return Training(
            data=tuple(dict.fromkeys((*self.data, *other.data))),
            prints=(*self.prints, *other.prints),
            unknown=tuple(dict.fromkeys((*self.unknown, *other.unknown))),
        )

    @classmethod
    def not_known(cls, because: str) -> Self:
        """Nothing is known, for this reason."""
        return cls(unknown=(because,))


class SuitePrints(BaseModel):
    """Digests of each held-out task, hubs and what all splits share apart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: dict[str, Prints]
    """task_id -> digests."""
    is_public: bool = False

    @classmethod
    def of(
        cls,
        family: Family[Any],
        tasks: Sequence[Task],
        seen: Sequence[Task],
        run_words: int,
        *,
        is_public: bool = False,
    ) -> Self:
        """Return the prints of a suite.

        Args:
            family: of the tasks.
            tasks: held-out.
            seen: training and dev tasks of the same draw. Their splits share no entity but hubs:
                whatever stands in both is one.
            run_words: words in a run.
            is_public: whether runs of words are compared as well. Questions that a family makes
                are worded alike in every split.
        """
        hubs = Prints.of(family, seen, run_words)
        found: dict[str, Prints] = {}
        for task in tasks:
            one = Prints.of(family, [task], run_words)
            found[task.task_id] = one.model_copy(
                update={
                    "names": one.names - hubs.names,
                    "documents": one.documents - hubs.documents,
                }
            )
        return cls(tasks=found, is_public=is_public)


@dataclass(frozen=True, slots=True)
class Contamination:
    """Tasks of a suite that a policy was trained on, and what could not be compared."""

    tasks: Mapping[str, str]
    """task_id -> `question`, `entities`, `documents` or `runs`."""
    unknown: tuple[str, ...]
    """Why it cannot be said of the others, in words; empty where it can."""
    compared: bool = True
    """Whether there was anything to compare with."""

    @property
    def state(self) -> str:
        """`checked`; `partly`: there may be more than was found; `unknown`: nothing is known."""
        if not self.unknown:
            return "checked"
        return "partly" if self.compared else "unknown"

    @property
    def counts(self) -> dict[str, int]:
        """Tasks by what they share."""
        return dict(sorted(Counter(self.tasks.values()).items()))

    def as_dict(self, num_tasks: int) -> dict[str, object]:
        """For results, of a suite of so many tasks."""
        return {
            "state": self.state,
            "contaminated": len(self.tasks),
            "of": num_tasks,
            "by": self.counts,
            "unknown": list(self.unknown),
        }

    def said(self, num_tasks: int) -> str:
        """In words, for a terminal and a report."""
        kinds = ", ".join(f"{count} by {kind}" for kind, count in self.counts.items())
        unknown = "; ".join(self.unknown)
        if not self.compared:
            return f"not known: {unknown}"
        found = f"trained on {len(self.tasks)} of {num_tasks} tasks" + (
            f" ({kinds})" if kinds else ""
        )
        return f"{found}; not known: {unknown}" if unknown else found


def contamination(
    training: Training, suite: SuitePrints, config: ContaminationConfig
) -> Contamination:
    """Compare every task of a suite with what a policy was trained on."""
    families = {task.family for task in suite.tasks.values()}
    own = [prints for prints in training.prints if prints.family in families]
    seen = _Seen(
        questions=_union(prints.questions for prints in training.prints),
        keys=_union(prints.keys for prints in own),
        names=_union(prints.names for prints in own),
        documents=_union(prints.documents for prints in own),
        runs=_union(prints.runs.get(config.run_words, frozenset()) for prints in training.prints),
    )
    shared = (
        (task_id, _shared(task, seen, config, is_public=suite.is_public))
        for task_id, task in suite.tasks.items()
    )
    unknown = training.unknown
    if suite.is_public and any(config.run_words not in p.runs for p in training.prints):
        unknown += (f"runs of {config.run_words} words were not kept with what it trained on",)
    found = {task_id: kind for task_id, kind in shared if kind}
    return Contamination(found, unknown, compared=bool(training.prints))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    questions: frozenset[str]
    keys: frozenset[str]
    names: frozenset[str]
    documents: frozenset[str]
    runs: frozenset[str]


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)


def _shared(task: Prints, seen: _Seen, config: ContaminationConfig, *, is_public: bool) -> str:
    if task.questions & seen.questions or task.keys & seen.keys:
        return "question"
    if task.names & seen.names:
        return "entities"
    if task.documents and task.documents <= seen.documents:
        return "documents"
    runs = task.runs.get(config.run_words, frozenset())
    if is_public and runs and len(runs & seen.runs) >= config.run_share * len(runs):
        return "runs"
    return ""


def require_uncontaminated(
    found: Contamination, config: ContaminationConfig, *, suite: str, model: str, num_tasks: int
) -> None:
    """End here where the profile refuses what was found.

    Raises:
        DataError: with what was found, and the key that allows it.
    """
    if config.contaminated == "refuse" and found.tasks:
        raise DataError(
            f"{suite}: {model}: {found.said(num_tasks)}. Judge it on another suite, "
            'or set evaluation.contamination.contaminated = "exclude"'
        )
    if config.unknown == "refuse" and found.unknown:
        raise DataError(
            f"{suite}: of {model} it is not known what it was trained on: "
            f"{'; '.join(found.unknown)}. Name the folder of its run, or set "
            'evaluation.contamination.unknown = "allow"'
        )
