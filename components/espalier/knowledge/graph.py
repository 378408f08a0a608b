"""The knowledge graph: typed entities, directed relations, and the triples that join them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from espalier.records import ArtifactError

Split = Literal["train", "dev", "heldout", "hub"]
SPLITS: tuple[Split, ...] = ("train", "dev", "heldout", "hub")


@dataclass(frozen=True, slots=True)
class Entity:
    """A thing with a name that questions ask about, or that answers them."""

    entity_id: str
    name: str
    kind: str
    hub: bool
    """Shared by every split: a currency or a time zone says nothing about one country alone."""
    split: Split
    askable: bool
    """Unique after folding, short and speakable: can stand in a question or be its answer."""
    document_id: str
    """Empty where the entity has no document."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A directed relation, readable in the subject's document as "label: object; object"."""

    name: str
    label: str
    subject_kind: str
    object_kind: str
    functional: bool
    """Every subject has at most one object."""
    phrasings: tuple[str, ...]
    """Noun phrases around "{x}", such as "the capital of {x}"; they nest."""


class Triple(NamedTuple):
    """One edge, by entity ids."""

    subject: str
    relation: str
    object: str


class KnowledgeGraph:
    """Entities by id, relations by name, and both directions of every triple."""

    def __init__(
        self, entities: Iterable[Entity], relations: Iterable[Relation], triples: Iterable[Triple]
    ) -> None:
        self.entities = {entity.entity_id: entity for entity in entities}
        self.relations = {relation.name: relation for relation in relations}
        self._objects: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._subjects: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._triples: list[Triple] = []
        for triple in dict.fromkeys(triples):
            self._triples.append(triple)
            self._objects[triple.relation, triple.subject].append(triple.object)
            self._subjects[triple.relation, triple.object].append(triple.subject)

    def objects(self, relation: str, subject_id: str) -> tuple[str, ...]:
        """Ids of what `subject_id` has as its `relation`, in the order of the document line."""
        return tuple(self._objects.get((relation, subject_id), ()))

    def subjects(self, relation: str, object_id: str) -> tuple[str, ...]:
        """Ids of those that have `object_id` as their `relation`."""
        return tuple(self._subjects.get((relation, object_id), ()))

    def triples(self) -> Iterator[Triple]:
        """Every triple, in the order of the source."""
        return iter(self._triples)

    def save(self, directory: Path) -> None:
        """Write entities.parquet, relations.json and triples.parquet into `directory`."""
        rows = [asdict(entity) for entity in self.entities.values()]
        pq.write_table(pa.Table.from_pylist(rows, _ENTITY_SCHEMA), directory / "entities.parquet")
        triples = [triple._asdict() for triple in self._triples]
        pq.write_table(pa.Table.from_pylist(triples, _TRIPLE_SCHEMA), directory / "triples.parquet")
        relations = [asdict(relation) for relation in self.relations.values()]
        text = json.dumps(relations, indent=1, sort_keys=True, ensure_ascii=False)
        (directory / "relations.json").write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ArtifactError: a file that is missing or cannot be parsed.
        """
        entities = [Entity(**row) for row in read_rows(directory / "entities.parquet")]
        triples = [Triple(**row) for row in read_rows(directory / "triples.parquet")]
        path = directory / "relations.json"
        try:
            tables = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path}: cannot be read ({error}). Run ingest again.") from error
        relations = [Relation(**{**row, "phrasings": tuple(row["phrasings"])}) for row in tables]
        return cls(entities, relations, triples)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a parquet file of a knowledge artifact.

    Raises:
        ArtifactError: the file is missing, truncated or not parquet.
    """
    try:
        return pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ArtifactError(f"{path}: cannot be read ({error}). Run ingest again.") from error


_ENTITY_SCHEMA = pa.schema(
    [
        ("entity_id", pa.string()),
        ("name", pa.string()),
        ("kind", pa.string()),
        ("hub", pa.bool_()),
        ("split", pa.string()),
        ("askable", pa.bool_()),
        ("document_id", pa.string()),
    ]
)
_TRIPLE_SCHEMA = pa.schema(
    [("subject", pa.string()), ("relation", pa.string()), ("object", pa.string())]
)
