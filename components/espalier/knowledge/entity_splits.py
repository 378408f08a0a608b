"""Which splits a name may occur in, by a knowledge artifact."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from espalier.knowledge.folding import folded_name
from espalier.knowledge.graph import read_rows
from espalier.records import ArtifactError


@dataclass(frozen=True, slots=True)
class EntitySplits:
    """Names of entities, and the splits that they belong to."""

    splits: Mapping[str, frozenset[str]]
    """Folded name -> splits of every entity so named."""
    hubs: frozenset[str]
    """Folded names of hubs: values that every split shares."""
    hub_kinds: Mapping[str, int] = field(default_factory=dict)
    """Exempt kind -> number of its hubs; the report names them."""

    @classmethod
    def none(cls) -> Self:
        """Of tasks that name no entities."""
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
