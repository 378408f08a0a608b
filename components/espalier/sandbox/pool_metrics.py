"""What a pool counts: how long claims waited, how busy it is, what went wrong and why."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class PoolMetrics:
    """Since the pool was opened.

    Attributes:
        claim_s: how long each served claim waited.
        lent_s: seconds that sandboxes were lent, over all leases that ended.
        failures: of creates, leases and cleanings, by cause; `claim_timeout` is a borrower that
            got none.
        retired: sandboxes closed for a reason that is no failure: worn, surplus.
        created: sandboxes that became ready.
    """

    claim_s: list[float] = field(default_factory=list)
    lent_s: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    retired: Counter[str] = field(default_factory=Counter)
    created: int = 0
    _closed_s: float = 0.0
    _alive_since_s: list[float] = field(default_factory=list)

    def count_created(self, at_s: float) -> None:
        """A sandbox became ready; times are of the monotonic clock."""
        self.created += 1
        self._alive_since_s.append(at_s)

    def count_closed(self, created_s: float) -> None:
        """The sandbox that became ready then is no more."""
        self._alive_since_s.remove(created_s)
        self._closed_s += time.monotonic() - created_s

    @property
    def utilisation(self) -> float:
        """Share of the time since they became ready for which sandboxes were lent, 0 to 1."""
        now_s = time.monotonic()
        existed_s = self._closed_s + sum(now_s - since_s for since_s in self._alive_since_s)
        return self.lent_s / existed_s if existed_s else 0.0

    def claim_quantile_s(self, share: float) -> float:
        """The wait that this share of claims did not exceed; 0 before the first claim."""
        waits = sorted(self.claim_s)
        return waits[min(int(share * len(waits)), len(waits) - 1)] if waits else 0.0

    def as_dict(self) -> dict[str, float]:
        """Flat, as a tracker takes it."""
        return {
            "sandbox/claims": len(self.claim_s),
            "sandbox/claim_p50_s": self.claim_quantile_s(0.5),
            "sandbox/claim_p99_s": self.claim_quantile_s(0.99),
            "sandbox/utilisation": self.utilisation,
            "sandbox/created": self.created,
            **{f"sandbox/failures/{cause}": n for cause, n in sorted(self.failures.items())},
            **{f"sandbox/retired/{cause}": n for cause, n in sorted(self.retired.items())},
        }
