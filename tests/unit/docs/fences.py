"""The fenced blocks of a Markdown page, and what the comment above each says about it."""

import ast
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = (
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "k8s" / "README.md",
)
_OPENS = re.compile(r"```(\w*)$")
_SAYS = re.compile(r"<!-- (run|not run|tested|file|needs)(?:: (.+?))? -->$")


@dataclass(frozen=True)
class Fence:
    """One block; `says` is run, not run, tested, file, needs, or empty."""

    page: str
    line: int
    language: str
    says: str
    about: str
    text: str

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def commands(self):
        """Shell commands as argument lists, joined over line ends, without comments."""
        joined = self.text.replace("\\\n", " ")
        return [
            words for line in joined.splitlines() if (words := shlex.split(line, comments=True))
        ]


def fences(page):
    """Every block of `page`, in order."""
    found, lines, number = [], page.read_text("utf-8").splitlines(), 0
    while number < len(lines):
        if opens := _OPENS.match(lines[number]):
            end = lines.index("```", number + 1)
            says = _SAYS.match(lines[number - 1])
            found.append(
                Fence(
                    page.relative_to(ROOT).as_posix(),
                    number + 1,
                    opens[1],
                    says[1] if says else "",
                    (says[2] or "") if says else "",
                    "\n".join(lines[number + 1 : end]) + "\n",
                )
            )
            number = end
        number += 1
    return found


FENCES = [fence for page in PAGES for fence in fences(page)]


def has_test(path, name):
    """Whether a file of the repository has a test of this name."""
    file = ROOT / path
    tree = ast.parse(file.read_text("utf-8") if file.is_file() else "")
    return name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
