"""What the calls of a model cost, and the limit that they must not exceed."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass

from espalier.config import EndpointConfig
from espalier.records import EngineError

_TOKENS_PER_PRICE = 1_000_000
_BYTES_PER_TOKEN = 3
"""Fewer than any common tokenizer needs for English: an estimate that errs upwards."""


@dataclass(slots=True)
class Usage:
    """Sums over the calls of one name."""

    answers: int = 0
    from_cache: int = 0
    requests: int = 0
    """Sent to a server or decoded here, repeats included."""
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """In the currency of the profile's prices."""


class Ledger:
    """Counts tokens and cost by call; refuses a request that could exceed the limit."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._usage: dict[str, Usage] = defaultdict(Usage)
        self._refusals: dict[str, Counter[str]] = defaultdict(Counter)
        self._reserved = 0.0

    @property
    def cost(self) -> float:
        """Spent so far."""
        return sum(usage.cost for usage in self._usage.values())

    def of(self, call: str) -> Usage:
        """The sums of one call, to be added to."""
        return self._usage[call]

    def refused(self, call: str, reason: str) -> None:
        """Count an answer that could not be used."""
        self._refusals[call][reason] += 1

    def reserve(self, prompt_tokens: int) -> float:
        """Set aside what a request of that length may cost at most, and return it.

        Raises:
            EngineError: spent, reserved and this request together exceed the limit.
        """
        limit = self._config.max_cost
        price = self._price(prompt_tokens, self._config.max_tokens)
        if limit and self.cost + self._reserved + price > limit:
            raise EngineError(
                f"{self._config.url}: the next request could cost {price:.4f}, {self.cost:.4f} of "
                f"max_cost={limit} are spent and {self._reserved:.4f} under way. Raise the limit "
                "and run the same command again: answers so far are kept in the cache"
            )
        self._reserved += price
        return price

    def settle(
        self, call: str, reserved: float, prompt_tokens: int, completion_tokens: int
    ) -> None:
        """Replace a reservation by what was used."""
        self._reserved -= reserved
        usage = self._usage[call]
        usage.prompt_tokens += prompt_tokens
        usage.completion_tokens += completion_tokens
        usage.cost += self._price(prompt_tokens, completion_tokens)

    def as_dict(self) -> dict[str, object]:
        """Call -> sums and refusals, for a run's records."""
        calls = sorted(self._usage.keys() | self._refusals.keys())
        return {
            call: asdict(self._usage[call])
            | {"refusals": dict(sorted(self._refusals[call].items()))}
            for call in calls
        }

    def _price(self, prompt_tokens: int, completion_tokens: int) -> float:
        config = self._config
        prompt_cost = prompt_tokens * config.prompt_price
        return (prompt_cost + completion_tokens * config.completion_price) / _TOKENS_PER_PRICE


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has, rather too many than too few."""
    return len(text.encode()) // _BYTES_PER_TOKEN + 1
