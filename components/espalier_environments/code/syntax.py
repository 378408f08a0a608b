"""Syntax trees of untrusted sources, within bounds.

Walking a tree, as `ast.unparse` does, takes a Python call per level: a thousand nested operators
end it with a RecursionError. Such a source is refused here instead.
"""

from __future__ import annotations

import ast

MAX_CHARACTERS = 100_000
MAX_DEPTH = 100
"""Levels of a tree. Programs written by people have about 20; each `elif` is one level below its
`if`."""


def bounded_tree(source: str) -> ast.Module:
    """Return the syntax tree of a source.

    Raises:
        SyntaxError: the source is not Python, or beyond the bounds.
    """
    if len(source) > MAX_CHARACTERS:
        raise SyntaxError(f"more than {MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(source)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or "too deep to be parsed") from error
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return tree
    raise SyntaxError(f"more than {MAX_DEPTH} levels")
