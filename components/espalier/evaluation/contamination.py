"""Contamination: held-out tasks that share a question, entities or documents with training.

Texts are compared by digests of their folded words, so that the registry can keep what a version
was trained on without keeping the texts. A held-out task is contaminated by its

    question    equal to a training question after folding, or a rewording by the family's key
    entities    one of its names, other than hubs, occurs in a training task
    documents   all documents it was made from, other than shared ones, are in the training data
    runs        public files only: a share of its 8-word runs occurs in training questions

Hubs are entities that the tasks of all splits share.
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
    """Digests of all runs of `length` consecutive folded words; of the whole text if shorter."""
    found = words(text)
    count = max(1, len(found) - length + 1)
    return frozenset(_digest(" ".join(found[i : i + length])) for i in range(count))


class Prints(BaseModel):
    """Digests of the questions, keys, names, documents and word runs of a set of tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    questions: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    documents: frozenset[str] = frozenset()
    runs: dict[int, frozenset[str]] = {}
    """Number of words in a run -> digests of the runs."""

    @classmethod
    def of(cls, family: Family[Any], tasks: Iterable[Task], run_words: int) -> Self:
        """Return the digests of all these tasks together."""
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
        """Return the digests of bare questions, such as those of a user's demonstrations."""
        found = list(questions)
        runs = [word_runs(text, run_words) for text in found]
        return cls(
            family=family,
            questions=_folded(found),
            runs={run_words: frozenset[str]().union(*runs)},
        )


class Training(BaseModel):
    """Training data of a policy, as digests, as far as it is known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: tuple[str, ...] = ()
    """Content digests of the accepted tasks; the run's own come first."""
    prints: tuple[Prints, ...] = ()
    """Digests of their training and dev tasks."""
    unknown: tuple[str, ...] = ()
    """Gaps in this knowledge, in words; empty if there are none."""

    def __add__(self, other: Training) -> Training:
        """Union of both."""
        return Training(
            data=tuple(dict.fromkeys((*self.data, *other.data))),
            prints=(*self.prints, *other.prints),
            unknown=tuple(dict.fromkeys((*self.unknown, *other.unknown))),
        )

    @classmethod
    def not_known(cls, because: str) -> Self:
        """Training data that is unknown for the given reason."""
        return cls(unknown=(because,))


class SuitePrints(BaseModel):
    """Digests of each held-out task, without the names and documents that all splits share."""

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
        """Return the digests of a suite.

        Args:
            family: the family of the tasks.
            tasks: the held-out tasks.
            seen: training and dev tasks of the same draw. Splits share no entity but hubs, so a
                name that occurs in both is a hub.
            run_words: number of words in a run.
            is_public: whether word runs are compared too. They are not for questions that a family
                makes, which are worded alike in every split.
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
    """Reasons why further tasks may be contaminated, in words; empty if all were compared."""
    compared: bool = True
    """Whether any training data was known to compare with."""

    @property
    def state(self) -> str:
        """`checked`, `partly` (further tasks may be contaminated) or `unknown` (none compared)."""
        if not self.unknown:
            return "checked"
        return "partly" if self.compared else "unknown"

    @property
    def counts(self) -> dict[str, int]:
        """Number of contaminated tasks by kind."""
        return dict(sorted(Counter(self.tasks.values()).items()))

    def as_dict(self, num_tasks: int) -> dict[str, object]:
        """Entry of results.json for a suite of `num_tasks` tasks."""
        return {
            "state": self.state,
            "contaminated": len(self.tasks),
            "of": num_tasks,
            "by": self.counts,
            "unknown": list(self.unknown),
        }

    def said(self, num_tasks: int) -> str:
        """One line for a terminal or a report, for a suite of `num_tasks` tasks."""
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
    """Compare every task of a suite with a policy's training data."""
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
        unknown += (f"runs of {config.run_words} words are not recorded with its training data",)
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


_RUN_SHARE = 0.7
"""PaLM's share (arXiv:2204.02311, sec. 8)."""


def _shared(task: Prints, seen: _Seen, config: ContaminationConfig, *, is_public: bool) -> str:
    if task.questions & seen.questions or task.keys & seen.keys:
        return "question"
    if task.names & seen.names:
        return "entities"
    if task.documents and task.documents <= seen.documents:
        return "documents"
    runs = task.runs.get(config.run_words, frozenset())
    if is_public and runs and len(runs & seen.runs) >= _RUN_SHARE * len(runs):
        return "runs"
    return ""


def require_uncontaminated(
    found: Contamination, config: ContaminationConfig, *, suite: str, model: str, num_tasks: int
) -> None:
    """Check that the profile allows this contamination.

    Raises:
        DataError: it does not; the message has the counts, and the key that allows it.
    """
    if config.contaminated == "refuse" and found.tasks:
        raise DataError(
            f"{suite}: {model}: {found.said(num_tasks)}. Judge it on another suite, "
            'or set evaluation.contamination.contaminated = "exclude"'
        )
    if config.unknown == "refuse" and found.unknown:
        raise DataError(
            f"{suite}: the training data of {model} is not fully known: "
            f"{'; '.join(found.unknown)}. Name the folder of its run, or set "
            'evaluation.contamination.unknown = "allow"'
        )
