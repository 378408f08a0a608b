"""The agent texts as a table: one row each, with what the suite judges computed as columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Self

import pandas as pd

from espalier.knowledge.folding import NameIndex
from espalier.knowledge.graph import EntitySplits
from espalier.records import Action, AgentText, ArtifactError, Malformed

_CHOICE = re.compile(
    r"(?P<options>Option 1: .+) I will choose option (?P<taken>[1-9])\.", re.DOTALL
)
_VERDICT = re.compile(r" My decision is (Correct|Incorrect)\.")
_OPTION = re.compile(r"(?:^| )Option \d: ")
_THOUGHT = re.compile(r"\s*<think>[^<>]+</think>\s*")


Parse = Callable[[str], Action]


class HiddenNames:
    """Names that only dev and held-out entities bear."""

    def __init__(self, names: Collection[str]) -> None:
        self._index = NameIndex(names)

    @classmethod
    def load(cls, knowledge_dir: Path) -> Self:
        """Those of a knowledge artifact, without the names that no view can avoid.

        Raises:
            ArtifactError: a file of the artifact is missing or cannot be parsed.
        """
        path = knowledge_dir / "names.json"
        try:
            common = set(json.loads(path.read_text(encoding="utf-8"))["common_names"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{path}: cannot be read ({error}). Run ingest again.") from error
        splits = EntitySplits.load(knowledge_dir).splits
        secret = {"dev", "heldout"}
        return cls({name for name, held in splits.items() if held <= secret} - common)

    def count(self, text: str) -> int:
        """How often one of them stands in `text`."""
        return sum(1 for _ in self._index.found_in(text))


def text_columns(
    texts: Sequence[AgentText],
    train_task_ids: Collection[str],
    hidden: HiddenNames,
    parse: Parse,
) -> pd.DataFrame:
    """One row a text, in the order given; see `suites.TEXT_SCHEMA` for the columns.

    Args:
        texts: of the run.
        train_task_ids: tasks that may be written about.
        hidden: names that must not occur.
        parse: reads an action in the policy's dialect.
    """
    seen: dict[str, int] = {}
    copies = []
    for text in texts:
        copies.append(seen.get(text.words, 0))
        seen[text.words] = copies[-1] + 1
    return pd.DataFrame(
        {
            "row": range(len(texts)),
            "text_id": [text.text_id for text in texts],
            "is_train_task": [not t.task_id or t.task_id in train_task_ids for t in texts],
            "order_faults": [_order_faults(text) for text in texts],
            "grammar_faults": [_grammar_faults(text, parse) for text in texts],
            "hidden_names": [_hidden_names(text, hidden) for text in texts],
            "earlier_same_text": copies,
        }
    )


def _order_faults(text: AgentText) -> int:
    """Pieces out of the order assistant, tool, ..., assistant."""
    expected = ("assistant", "tool")
    misplaced = sum(m.role != expected[place % 2] for place, m in enumerate(text.pieces))
    return misplaced + (len(text.pieces) % 2 == 0)


def _hidden_names(text: AgentText, hidden: HiddenNames) -> int:
    return sum(hidden.count(message.content) for message in (*text.prompt, *text.pieces))


def _grammar_faults(text: AgentText, parse: Parse) -> int:
    """Assistant pieces that are not what a text of its kind is made of."""
    written = [message.content for message in text.pieces if message.role == "assistant"]
    if text.kind == "decision":
        return _decision_faults(written, parse)
    if text.kind == "reasoning":
        guesses, answers = written[:-1], written[-1:]
        faults = sum(_THOUGHT.fullmatch(guess) is None for guess in guesses)
        return faults + sum(isinstance(parse(answer), Malformed) for answer in answers)
    return sum(isinstance(parse(action), Malformed) for action in written)


def _decision_faults(written: Sequence[str], parse: Parse) -> int:
    """Choices that name an option that is not listed or no action, and a missing verdict."""
    if not written:
        return 1
    ending = _VERDICT.search(written[-1])
    last = written[-1][: ending.start()] if ending else written[-1]
    faults = int(ending is None)
    for choice in (*written[:-1], last):
        found = _CHOICE.fullmatch(choice)
        options = _OPTION.split(found["options"])[1:] if found else []
        listed = found is not None and int(found["taken"]) <= len(options)
        faults += not listed or any(isinstance(parse(o), Malformed) for o in options)
    return faults
