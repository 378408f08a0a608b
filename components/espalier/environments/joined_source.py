"""Our own modules joined into one program, for a sandbox that has only the standard library."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_OWN_IMPORT = re.compile(
    r"^from (?:espalier\.[\w.]+ import (?:\([^)]*\)|[^(\n]*)|__future__[^\n]*)\n", re.MULTILINE
)


@cache
def joined_source(*modules: Path) -> str:
    """Return modules joined in order, so that each comes after the modules it imports."""
    texts = [module.read_text(encoding="utf-8") for module in modules]
    return "from __future__ import annotations\n" + _OWN_IMPORT.sub("", "\n".join(texts))
