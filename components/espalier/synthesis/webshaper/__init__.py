"""WebShaper's formalism: queries over knowledge projections, their rules and their generator."""

from espalier.synthesis.webshaper.evaluate import evaluate, trace
from espalier.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
    Union,
    canonical,
    hops,
    signature,
)

__all__ = [
    "Constant",
    "ConstantSet",
    "Intersection",
    "Projection",
    "Query",
    "Union",
    "canonical",
    "evaluate",
    "hops",
    "signature",
    "trace",
]
