"""Documents: what a search can find, as a title and short lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from espalier.knowledge.graph import Split, read_rows


@dataclass(frozen=True, slots=True)
class Document:
    """A title and its lines; an entity's lines read "label: object; object"."""

    document_id: str
    title: str
    lines: tuple[str, ...]
    split: Split


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
