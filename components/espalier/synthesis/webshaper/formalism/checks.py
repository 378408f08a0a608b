"""The checker: every fault of a formalization, each kind apart.

Entries are judged one by one. `WHOLE_ROW_KINDS` (target, connection, cycles, leaves) are judged
only where every entry can be read: a missing entry would otherwise look like a hole in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from espalier.synthesis.webshaper.formalism.entries import Entry, Fault, read
from espalier.synthesis.webshaper.formalism.kinds import Kind
from espalier.synthesis.webshaper.formalism.terms import Named, Target, print_term
from espalier.synthesis.webshaper.formalism.topology import Node, Topology


def check(rows: object) -> tuple[Fault, ...]:
    """Every fault of `rows`; none for a formalization that nested projections can answer."""
    reading = read(rows)
    if reading.faults:
        return (*reading.faults, *_edge_faults(reading.entries))
    return check_entries(tuple(reading.entries.values()))


def check_entries(entries: tuple[Entry, ...]) -> tuple[Fault, ...]:
    """Every fault of entries that were read."""
    return (*_edge_faults(dict(enumerate(entries))), *_whole_faults(entries))


def _edge_faults(entries: Mapping[int, Entry]) -> Iterator[Fault]:
    """Faults of single entries, under their places in the row."""
    seen: set[Entry] = set()
    for number, entry in entries.items():
        ends = (entry.subject, entry.object)
        text = " - ".join(print_term(end) for end in ends)
        if all(isinstance(end, Named) for end in ends):
            yield Fault(Kind.CONSTANT_CONSTANT_EDGE, number, text)
        elif entry.subject == entry.object:
            yield Fault(Kind.ENTRY_ABOUT_ITSELF, number, text)
        elif any(isinstance(end, Named) for end in ends) and any(
            isinstance(end, Target) for end in ends
        ):
            yield Fault(Kind.CONSTANT_BESIDE_TARGET, number, text)
        if entry in seen:
            yield Fault(Kind.REPEATED_ENTRY, number, text)
        seen.add(entry)


def _whole_faults(entries: tuple[Entry, ...]) -> Iterator[Fault]:
    topology = Topology(entries)
    targets = topology.targets
    if not targets:
        yield Fault(Kind.NO_TARGET)
    elif len(targets) > 1:
        yield Fault(Kind.SEVERAL_TARGETS, found=", ".join(map(print_term, targets)))
    parts = topology.components()
    for part in parts if len(parts) > 1 else ():
        if not any(isinstance(node, Target) for node in part):
            yield Fault(Kind.DISCONNECTED, found=print_term(min(part, key=print_term)))
    for cycle in topology.cycles():
        yield Fault(Kind.CYCLE, found=_walked(cycle))
    for node in topology.leaves():
        yield Fault(Kind.LEAF_VARIABLE, found=print_term(node))


def _walked(cycle: list[Node]) -> str:
    return " - ".join(print_term(node) for node in (*cycle, cycle[0]))
