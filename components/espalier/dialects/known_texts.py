"""A cache of the token ids of recently encoded texts.

Attempts at one task read the same prompts and results, and an endpoint gets a whole history with
every call. The cache is bounded by tokens, not by texts: an endpoint gets new and long texts for as
long as it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, TypeAlias

from cachetools import LRUCache, cached
from cachetools.keys import hashkey

from espalier.records import Message

_KNOWN_TOKENS = 1 << 20
"""Most tokens of the cached texts, about 50 MB: 64 conversations of 16,000 tokens, whose turns are
encoded one by one at every call."""
_TOKENS_OF_A_KEY = 64
_Encode: TypeAlias = Callable[[tuple[Message, ...]], tuple[int, ...]]


class KnownTexts:
    """A cache of token ids; dialects with different tools may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ids: LRUCache[Any, tuple[int, ...]] = LRUCache(
            _KNOWN_TOKENS, getsizeof=lambda ids: len(ids) + _TOKENS_OF_A_KEY
        )

    def remembering(self, encode: _Encode) -> _Encode:
        """Return `encode` with a cache: a repeated text is encoded once."""
        whose = object()  # equal messages have other ids in another dialect, and as a prompt
        return cached(self._ids, key=partial(hashkey, whose), lock=self._lock)(encode)
