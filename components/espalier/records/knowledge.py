"""The knowledge graph as it is stored: entities, relations, triples, documents, entity splits."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from espalier.records import ArtifactError
from espalier.records.folding import folded_name

EntitySplit = Literal["train", "dev", "heldout", "hub"]


@dataclass(frozen=True, slots=True)
class Entity:
    """A named thing that questions are about or that answers them."""

    entity_id: str
    name: str
    kind: str
    hub: bool
    """Whether all splits share it, like a currency or time zone of many countries."""
    split: EntitySplit
    askable: bool
    """Whether a question may contain it or have it as answer: unique after folding, short,
    with a letter or digit."""
    document_id: str
    """Empty if the entity has no document."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A directed relation; a document that consists of triples lists it as "label: object"."""

    name: str
    label: str
    subject_kind: str
    object_kind: str
    functional: bool
    """Whether every subject has at most one object."""
    phrasings: tuple[str, ...]
    """Noun phrases around "{x}", such as "the capital of {x}"; they can be nested."""


class Triple(NamedTuple):
    """One edge, by entity ids."""

    subject: str
    relation: str
    object: str


class KnowledgeGraph:
    """Entities by id, relations by name, and triples indexed in both directions."""

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
        """Return the ids of the relation's objects for a subject, in the order of its document."""
        return tuple(self._objects.get((relation, subject_id), ()))

    def subjects(self, relation: str, object_id: str) -> tuple[str, ...]:
        """Return the ids of the relation's subjects for an object."""
        return tuple(self._subjects.get((relation, object_id), ()))

    def triples(self) -> Iterator[Triple]:
        """Iterate over all triples, in the order of the source."""
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
            ArtifactError: a file is missing or cannot be parsed.
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
    """Return the rows of a parquet file of a knowledge artifact.

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


@dataclass(frozen=True, slots=True)
class Document:
    """A title and its lines: sentences of a text, or triples as "label: object; object"."""

    document_id: str
    title: str
    lines: tuple[str, ...]
    split: EntitySplit


def save_documents(documents: Iterable[Document], path: Path) -> None:
    """Write documents as parquet, in the given order."""
    rows = [asdict(document) for document in documents]
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), path)


def load_documents(path: Path) -> list[Document]:
    """Read what `save_documents` wrote.

    Raises:
        ArtifactError: the file is missing, truncated or not parquet.
    """
    return [Document(**{**row, "lines": tuple(row["lines"])}) for row in read_rows(path)]


_SCHEMA = pa.schema(
    [
        ("document_id", pa.string()),
        ("title", pa.string()),
        ("lines", pa.list_(pa.string())),
        ("split", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class EntitySplits:
    """Names of entities and the splits they may occur in, as stored in a knowledge artifact."""

    splits: Mapping[str, frozenset[str]]
    """Folded name -> splits of all entities with that name."""
    hubs: frozenset[str]
    """Folded names of hubs, which all splits share."""
    hub_kinds: Mapping[str, int] = field(default_factory=dict)
    """Kind of entity -> number of its hubs; reported as exempt from splits."""

    @classmethod
    def none(cls) -> Self:
        """Return empty splits, for tasks that name no entities."""
        return cls({}, frozenset())

    @classmethod
    def load(cls, knowledge_dir: Path) -> Self:
        """Read them from `entities.parquet`.

        Raises:
            ArtifactError: the file is missing, truncated, or lacks a column.
        """
        path = knowledge_dir / "entities.parquet"
        splits: dict[str, set[str]] = defaultdict(set)
        hubs: set[str] = set()
        hub_kinds: Counter[str] = Counter()
        try:
            for row in read_rows(path):
                name = folded_name(str(row["name"]))
                splits[name].add(str(row["split"]))
                if row["hub"]:
                    hubs.add(name)
                    hub_kinds[str(row["kind"])] += 1
        except KeyError as error:
            raise ArtifactError(f"{path}: has no column {error}. Run ingest again.") from error
        frozen = {name: frozenset(found) for name, found in splits.items()}
        return cls(frozen, frozenset(hubs), dict(sorted(hub_kinds.items())))
