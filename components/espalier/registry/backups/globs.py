"""Globs over names of objects, as `espalier backup create --exclude` takes them.

A name is what follows s3://BUCKET/PREFIX/, and a glob is matched with all of it.

    *         any characters of one folder's or object's name, none included
    **        any characters, / as well; `**/` at any depth, the top included
    ?         one character that is no /
    [abc]     one of these; [!abc] one of the others
    GLOB/     everything below the folders that GLOB matches
"""

from __future__ import annotations

import re

from espalier.records import StorageError

_PIECE = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]/]*\]|.", re.DOTALL)
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def compiled(glob: str) -> re.Pattern[str]:
    """The regular expression for `fullmatch` that a glob stands for.

    Raises:
        StorageError: it is none.
    """
    whole = f"{glob}**" if glob.endswith("/") else glob
    expression = "".join(map(_expression, _PIECE.findall(whole)))
    try:
        return re.compile(expression, re.DOTALL)
    except re.error as error:
        raise StorageError(
            f"{glob!r} is no glob ({error}). Within [ ] give characters, or a range such as 0-9"
        ) from error


def _expression(piece: str) -> str:
    if piece in _MEANING:
        return _MEANING[piece]
    if len(piece) == 1:
        return re.escape(piece)
    among = piece[1:-1]
    negation = "^" if among.startswith("!") else ""
    characters = re.sub(r"([\\\[\]^&~|])", r"\\\1", among.removeprefix("!"))
    return f"(?!/)[{negation}{characters}]"
