"""Tokens as texts, by the tokenizer in a policy's folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from espalier_ui.sources import is_within

_POLICIES = ("trained_policy", "warm_policy", "pretrained_policy", "base_policy")
_LARGEST_FILE = 64 << 20


class TokenTexts:
    """The texts of one tokenizer's tokens."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 (tokenizers is an extra)
        self._tokenizer = tokenizer

    def of(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, with its leading space.

        A token that is a part of a character, as bytes are, is U+FFFD.
        """
        return [self._text(number) for number in ids]

    def _text(self, number: int) -> str:
        if number < 0:
            return ""
        # alone, a token loses the space before it in some tokenizers: it is decoded after itself
        alone = self._tokenizer.decode([number], skip_special_tokens=False)
        twice = self._tokenizer.decode([number, number], skip_special_tokens=False)
        return twice.removeprefix(alone) if twice.startswith(alone) else alone


@lru_cache(maxsize=4)
def _opened(path: str, modified_ns: int) -> TokenTexts | None:
    del modified_ns  # a file that was replaced is opened again
    try:
        from tokenizers import Tokenizer  # an extra, and two seconds of import
    except ModuleNotFoundError:
        return None
    try:
        return TokenTexts(Tokenizer.from_file(path))
    except Exception as error:
        if type(error) is Exception:  # how tokenizers says that a file is none of its own
            return None
        raise


def token_texts(run_dir: Path) -> TokenTexts | None:
    """Return the texts by the run's tokenizer; None if it has none that can be read."""
    for name in _POLICIES:
        path = run_dir / name / "policy" / "tokenizer.json"
        try:
            status = path.stat()
        except OSError:
            continue
        if not is_within(run_dir, path):
            continue
        if status.st_size <= _LARGEST_FILE:
            return _opened(str(path), status.st_mtime_ns)
    return None
