"""SWE-RL's reward: how alike a patch and the gold patch are (Wei et al. 2025, arXiv:2502.18449).

    <think> ... </think> <solution> ```python
    ### pkg/a.py
    <<<<<<< SEARCH
    return 3.14 * r
    =======
    return 3.14159 * r ** 2
    >>>>>>> REPLACE
    ``` </solution>

Mean over the files that either patch changes of the likeness of their diffs; -1 for text that is no
such answer (`src/swerl/core/reward.py`). Upstream's quirks are kept: a search text matches whole
lines and is replaced wherever it stands, and a file that one patch alone changes counts as 0.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

BAD_FORMAT = -1.0
_SEARCH, _MIDDLE, _REPLACE = "\n<<<<<<< SEARCH\n", "\n=======\n", "\n>>>>>>> REPLACE\n```"
_MAX_CHARACTERS = 200_000
"""Of an answer; SequenceMatcher takes time that grows with the square of a diff's length."""
_MAX_DIFF = 20_000
"""Characters of a file's diff that are compared, for the same reason."""


class BlockError(ValueError):
    """Text that is no answer of search and replace blocks, or one that does not apply."""


class SearchReplace(NamedTuple):
    """A text of a file, and what takes its place."""

    path: str
    search: str
    replace: str


def search_replace_blocks(answer: str, *, tags: bool = True) -> list[SearchReplace]:
    """The blocks of an answer.

    Args:
        answer: a policy's whole text.
        tags: whether it has to have one thought and one solution, between their tags.

    Raises:
        BlockError: the tags are not there once each, the thought is empty, or there is no block.
    """
    if len(answer) > _MAX_CHARACTERS:
        raise BlockError(f"more than {_MAX_CHARACTERS} characters")
    solution = _solution(answer) if tags else answer
    found = list(_blocks(solution))
    if not found:
        raise BlockError("No valid search blocks found")
    return found


def _solution(answer: str) -> str:
    for tag in ("<think>", "</think>", "<solution>", "</solution>"):
        if answer.count(tag) != 1:
            raise BlockError(f"count of {tag} is not 1")
    thought = answer.partition("<think>")[2].partition("</think>")[0]
    if not thought.strip():
        raise BlockError("Thought is empty")
    return answer.partition("<solution>")[2].partition("</solution>")[0]


def _blocks(text: str) -> Iterator[SearchReplace]:
    """Blocks between fences; by hand, as a pattern takes time that grows with the square."""
    at = 0
    while (begun := text.find("```", at)) >= 0:
        head = text.find("\n### ", begun)
        searched = text.find(_SEARCH, head)
        if head < 0 or searched < 0:
            return
        path = text[head + len("\n### ") : searched]
        if "\n" in path or "\n" in text[begun + 3 : head]:
            at = begun + 3
            continue
        start = searched + len(_SEARCH)
        # an empty search text stands between two line ends that the markers share
        middle = text.find(_MIDDLE, start - 1)
        ended = text.find(_REPLACE, middle + len(_MIDDLE) - 1) if middle >= 0 else -1
        if ended < 0:
            return
        replaced = text[middle + len(_MIDDLE) : ended] if ended >= middle + len(_MIDDLE) else ""
        yield SearchReplace(path, text[start : max(middle, start)], replaced)
        at = ended + len(_REPLACE)


def changed_files(before: Mapping[str, str], blocks: list[SearchReplace]) -> dict[str, str]:
    """Path -> new content of the files that blocks change.

    Args:
        before: path -> content; a file that is not there is empty.
        blocks: applied in order.

    Raises:
        BlockError: a search text equals its replacement, or is not there.
    """
    after: dict[str, str] = {}
    for path, search, replace in blocks:
        if search == replace:
            raise BlockError("Search and replace blocks are identical")
        content = after.get(path, "\n" + before.get(path, ""))
        if "\n" + search not in content:
            raise BlockError(f"Search block not found in the code: \n{search}")
        after[path] = content.replace("\n" + search, "\n" + replace)
        if len(after[path]) > _MAX_CHARACTERS * 10:
            raise BlockError(f"{path} would grow beyond measure")
    return {path: content[1:] for path, content in after.items()}


class PatchLikeness(NamedTuple):
    """The reward, and the likeness of each file's diffs; none where the answer has no format."""

    reward: float
    similarities: Mapping[str, float]
    error: str = ""


def swe_rl_reward(
    before: Mapping[str, str], gold: Mapping[str, str], answer: str, *, tags: bool = True
) -> PatchLikeness:
    """The reward of an answer of search and replace blocks.

    Args:
        before: path -> content of the files that may be changed.
        gold: path -> content of the files that the gold patch changes, after it.
        answer: hostile text.
        tags: see `search_replace_blocks`.
    """
    try:
        after = changed_files(before, search_replace_blocks(answer, tags=tags))
    except BlockError as error:
        return PatchLikeness(BAD_FORMAT, {}, str(error))
    return content_likeness(before, gold, after)


def content_likeness(
    before: Mapping[str, str], gold: Mapping[str, str], after: Mapping[str, str]
) -> PatchLikeness:
    """The reward of files as they are after a patch; `after` names those that it changes."""
    gold_diffs = {path: _diff(before.get(path, ""), new) for path, new in gold.items()}
    diffs = {path: _diff(before.get(path, ""), new) for path, new in after.items()}
    return patch_likeness(gold_diffs, diffs)


def patch_likeness(gold: Mapping[str, str], patch: Mapping[str, str]) -> PatchLikeness:
    """The reward of the diffs of a patch, by file; two patches of nothing are alike."""
    similarities = {
        path: _likeness(patch.get(path, ""), gold.get(path, "")) for path in {*gold, *patch}
    }
    if not similarities:
        return PatchLikeness(1.0, {})
    return PatchLikeness(sum(similarities.values()) / len(similarities), similarities)


def _likeness(patch: str, gold: str) -> float:
    if not patch or not gold:
        return 0.0
    if patch == gold:
        return 1.0
    one, other = patch[:_MAX_DIFF], gold[:_MAX_DIFF]
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def _diff(old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="")
    return "\n".join(line for number, line in enumerate(lines) if number > 1)
