"""Modules joined into one program, for a sandbox that has only the standard library."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


@cache
def joined_source(*modules: Path) -> str:
    """Return modules joined in order, so that each comes after the modules it imports.

    Their imports of each other are left out, whatever package they are in.
    """
    joined = "|".join(re.escape(module.stem) for module in modules)
    left_out = re.compile(
        rf"^from (?:(?:\w+\.)+(?:{joined}) import (?:\([^)]*\)|[^(\n]*)|__future__[^\n]*)\n",
        re.MULTILINE,
    )
    texts = [module.read_text(encoding="utf-8") for module in modules]
    return "from __future__ import annotations\n" + left_out.sub("", "\n".join(texts))
