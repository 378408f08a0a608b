"""Token ids of the texts that were encoded lately.

Attempts at one task read the same prompts and results, and an endpoint is sent a whole history at
every call. What is remembered is bounded by tokens, and not by texts: an endpoint meets new ones
for as long as it runs, and long ones.
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
"""Most tokens of the texts that are remembered, about 50 MB: what 64 conversations of 16,000 tokens
read, whose turns are encoded one by one at every call."""
_TOKENS_OF_A_KEY = 64
_Encode: TypeAlias = Callable[[tuple[Message, ...]], tuple[int, ...]]


class KnownTexts:
    """Remembers token ids; dialects with different tools may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ids: LRUCache[Any, tuple[int, ...]] = LRUCache(
            _KNOWN_TOKENS, getsizeof=lambda ids: len(ids) + _TOKENS_OF_A_KEY
        )

    def remembering(self, encode: _Encode) -> _Encode:
        """`encode`, once for each text that is met again."""
        whose = object()  # of equal messages another dialect, and the prompt, have other ids
        return cached(self._ids, key=partial(hashkey, whose), lock=self._lock)(encode)
