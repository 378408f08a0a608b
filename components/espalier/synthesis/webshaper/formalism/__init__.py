"""WebShaper's notation: entries [X, relation, S], parsed, checked, answered and compared.

kinds        the kinds of fault, and what each means
terms        V@variable, C@constant, ?target: parsed and printed
entries      rows to entries and back; what cannot be read is a fault with its place
topology     entries as a graph: parts, cycles, leaves
checks       every fault of a row, each kind apart
answers      evaluation on a knowledge graph: projections, R-Union, intersection
equivalence  the same question up to renaming
structure    depth, branching, constants
queries      to and from the trees that the generator draws
"""

from espalier.synthesis.webshaper.formalism.answers import answers
from espalier.synthesis.webshaper.formalism.checks import check
from espalier.synthesis.webshaper.formalism.entries import (
    Entry,
    Fault,
    FormalismError,
    parse,
    printed,
)
from espalier.synthesis.webshaper.formalism.equivalence import equivalent
from espalier.synthesis.webshaper.formalism.kinds import EXPLANATIONS, Kind
from espalier.synthesis.webshaper.formalism.queries import entries_of, query_of
from espalier.synthesis.webshaper.formalism.structure import Structure, structure_of

__all__ = [
    "EXPLANATIONS",
    "Entry",
    "Fault",
    "FormalismError",
    "Kind",
    "Structure",
    "answers",
    "check",
    "entries_of",
    "equivalent",
    "parse",
    "printed",
    "query_of",
    "structure_of",
]
