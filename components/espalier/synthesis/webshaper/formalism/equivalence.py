"""Whether two formalizations are the same question: up to the names of variables and the order.

An isomorphism of labelled graphs, searched by networkx (VF2++): 9 ms for a public row. The search
alone takes exponential time where many variables look alike (a star of 90 equal arms: more than
15 s, now 0.4 s), so that colours are refined first; refinement alone decides every tree.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import networkx as nx

from espalier.synthesis.webshaper.formalism.entries import Entry
from espalier.synthesis.webshaper.formalism.terms import Named, Term


def equivalent(first: Sequence[Entry], second: Sequence[Entry]) -> bool:
    """Whether some renaming of variables (and of the target) turns one into the other.

    The order of entries, of members of a set, and repeated entries do not matter.
    """
    one, other = _graph(first), _graph(second)
    if len(one) != len(other):
        return False
    both = nx.disjoint_union(one, other)
    nx.set_node_attributes(both, _settled_colours(both), "colour")
    halves = (both.subgraph(range(len(one))), both.subgraph(range(len(one), len(both))))
    return nx.vf2pp_is_isomorphic(*halves, node_label="colour")


def _graph(entries: Sequence[Entry]) -> nx.Graph[Hashable]:
    """Terms and entries as nodes; an entry is two, one for each end: its direction matters."""
    graph: nx.Graph[Hashable] = nx.Graph()
    for entry in {_in_order(entry) for entry in entries}:
        ends = [(entry, "subject"), (entry, "object")]
        graph.add_edge(*ends)
        for end, term in zip(ends, (entry.subject, entry.object), strict=True):
            # a constant is an end of its one entry: standing in two, it joins nothing
            node = (end, term) if isinstance(term, Named) else term
            graph.add_node(end, label=(end[1], entry.relation))
            graph.add_node(node, label=_label(term))
            graph.add_edge(end, node)
    return graph


def _settled_colours(graph: nx.Graph[int]) -> dict[int, int]:
    """Node -> colour: equal label, and neighbours of equal colours, until nothing more differs."""
    refined = _numbered({node: graph.nodes[node]["label"] for node in graph})
    found: dict[int, int] = {}
    while len(set(refined.values())) > len(set(found.values())):
        found = refined
        refined = _numbered(
            {node: (found[node], *sorted(found[other] for other in graph[node])) for node in graph}
        )
    return found


def _numbered(keys: Mapping[int, Hashable]) -> dict[int, int]:
    """Equal keys, equal numbers."""
    numbers: dict[Hashable, int] = {}
    return {node: numbers.setdefault(key, len(numbers)) for node, key in keys.items()}


def _label(term: Term) -> Hashable:
    return ("constant", *term.names) if isinstance(term, Named) else type(term).__name__


def _in_order(entry: Entry) -> Entry:
    """The entry with the members of its sets sorted."""
    ends = (
        Named(tuple(sorted(end.names))) if isinstance(end, Named) else end
        for end in (entry.subject, entry.object)
    )
    subject, target = ends
    return Entry(subject, entry.relation, target)
