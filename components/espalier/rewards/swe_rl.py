"""SWE-RL's reward: the similarity of a patch and the gold patch (Wei et al. 2025, 2502.18449).

    <think> ... </think> <solution> ```python
    ### pkg/a.py
    <<<<<<< SEARCH
    return 3.14 * r
    =======
    return 3.14159 * r ** 2
    >>>>>>> REPLACE
    ``` </solution>

It is the mean similarity of the diffs over all files that either patch changes; -1 for text that is
no such answer (`src/swerl/core/reward.py`). Upstream's quirks are kept: a search text matches whole
lines and is replaced wherever it occurs, and a file that only one patch changes counts as 0.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

BAD_FORMAT = -1.0
_HEAD = "\n### "
_SEARCH, _MIDDLE, _REPLACE = "\n<<<<<<< SEARCH\n", "\n=======\n", "\n>>>>>>> REPLACE\n```"
_MAX_CHARACTERS = 200_000
"""Most characters of an answer; SequenceMatcher's time grows with the square of a diff's length."""
_MAX_WORK = 100_000_000
"""Most characters that all blocks together search: a thousand blocks of a file of 100 KB."""
_MAX_DIFF = 20_000
"""Characters of a file's diff that are compared, for the same reason."""


class BlockError(ValueError):
    """The text is no answer of search and replace blocks, or a block does not apply."""


class SearchReplace(NamedTuple):
    """A text of a file, and its replacement."""

    path: str
    search: str
    replace: str


def search_replace_blocks(answer: str, *, tags: bool = True) -> list[SearchReplace]:
    """Return the blocks of an answer.

    Args:
        answer: a policy's whole text.
        tags: whether it must have one thought and one solution, between their tags.

    Raises:
        BlockError: a tag does not occur exactly once, the thought is empty, or there is no block.
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
    """Yield the blocks between fences; a regular expression would take quadratic time.

    The line of a fence, the line of the path and the marker follow each other: where they do not,
    no other fence in the same line begins a block, and the search goes on behind that line.
    """
    at = 0
    while (begun := text.find("```", at)) >= 0:
        head = text.find("\n", begun)
        if head < 0:
            return
        named = head + len(_HEAD)
        searched = text.find("\n", named) if text.startswith(_HEAD, head) else -1
        if searched < 0 or not text.startswith(_SEARCH, searched):
            at = head
            continue
        path = text[named:searched]
        start = searched + len(_SEARCH)
        # an empty search text: the two markers share one line end
        middle = text.find(_MIDDLE, start - 1)
        ended = text.find(_REPLACE, middle + len(_MIDDLE) - 1) if middle >= 0 else -1
        if ended < 0:
            return
        replaced = text[middle + len(_MIDDLE) : ended] if ended >= middle + len(_MIDDLE) else ""
        yield SearchReplace(path, text[start : max(middle, start)], replaced)
        at = ended + len(_REPLACE)


def changed_files(
    before: Mapping[str, str], blocks: list[SearchReplace], *, prefixes_lines: bool = True
) -> dict[str, str]:
    """Return the new content, by path, of the files that blocks change.

    Args:
        before: content by path; a missing file is empty.
        blocks: applied in order.
        prefixes_lines: whether an empty search text puts its replacement before every line of a
            file, as upstream does; otherwise it only fills an empty or missing file.

    Raises:
        BlockError: a search text equals its replacement, does not occur, or is empty and may not
            be.
    """
    after: dict[str, str] = {}
    work = 0
    for path, search, replace in blocks:
        if search == replace:
            raise BlockError("Search and replace blocks are identical")
        content = after.get(path, "\n" + before.get(path, ""))
        work += len(content)
        if work > _MAX_WORK:
            raise BlockError("too many blocks for files of that size")
        if not (search or prefixes_lines or content == "\n"):
            raise BlockError(f"Search block for {path} is empty, and the file is not")
        if "\n" + search not in content:
            raise BlockError(f"Search block not found in the code: \n{search}")
        after[path] = content.replace("\n" + search, "\n" + replace)
        if len(after[path]) > _MAX_CHARACTERS * 10:
            raise BlockError(f"{path} would grow beyond measure")
    return {path: content[1:] for path, content in after.items()}


class PatchLikeness(NamedTuple):
    """The reward, and the similarity of each file's diffs; empty if the answer has no format."""

    reward: float
    similarities: Mapping[str, float]
    error: str = ""


def swe_rl_reward(
    before: Mapping[str, str], gold: Mapping[str, str], answer: str, *, tags: bool = True
) -> PatchLikeness:
    """Return the reward of an answer of search and replace blocks.

    Args:
        before: content by path of the files that may be changed.
        gold: content by path, after the gold patch, of the files that it changes.
        answer: the policy's text, which is untrusted.
        tags: whether it must have one thought and one solution, between their tags.
    """
    try:
        after = changed_files(before, search_replace_blocks(answer, tags=tags))
    except BlockError as error:
        return PatchLikeness(BAD_FORMAT, {}, str(error))
    return content_likeness(before, gold, after)


def content_likeness(
    before: Mapping[str, str], gold: Mapping[str, str], after: Mapping[str, str]
) -> PatchLikeness:
    """Return the reward of files after a patch; `after` holds those that it changes."""
    gold_diffs = {path: _diff(before.get(path, ""), new) for path, new in gold.items()}
    diffs = {path: _diff(before.get(path, ""), new) for path, new in after.items()}
    return patch_likeness(gold_diffs, diffs)


def patch_likeness(gold: Mapping[str, str], patch: Mapping[str, str]) -> PatchLikeness:
    """Return the reward of the diffs of a patch, by file; two empty patches are equal."""
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
