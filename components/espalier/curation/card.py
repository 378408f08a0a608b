"""The dataset card: what is in it, where it comes from, what was left out and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_OWN = "The user's own documents."
_HEAD = """# Dataset card

Made by `validate` from synthetic tasks and texts. Every row leads back to its documents by
`lineage.jsonl`; every row that was left out stands in `curation.json` with its reason.
"""


def dataset_card(report: Mapping[str, Mapping[str, object]], attribution: str) -> str:
    """The card of a curated artifact as Markdown.

    Args:
        report: heading -> figure -> value, as in curation.json.
        attribution: whom the knowledge comes from, under which licence.
    """
    parts = [_HEAD]
    for heading, figures in report.items():
        rows = [(name, value) for name, value in figures.items() if not isinstance(value, list)]
        if rows:
            parts.append(f"\n## {heading.replace('_', ' ').capitalize()}\n\n{_table(rows)}")
    parts.append(f"\n## Sources\n\n{_cell(attribution) or _OWN}\n")
    return "".join(parts)


def _table(rows: Sequence[tuple[str, object]]) -> str:
    lines = ["| | |", "| --- | ---: |"]
    lines += [f"| {_cell(name.replace('_', ' '))} | {_cell(str(value))} |" for name, value in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text that cannot break out of its cell: names of rows may be anybody's."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
