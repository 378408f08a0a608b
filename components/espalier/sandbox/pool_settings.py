"""How many sandboxes a pool keeps, and for how long it uses each."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, Field, model_validator


class PoolSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings of a pool.

    Attributes:
        size: sandboxes that may exist at once, lent ones included.
        low_water: with fewer than this many ready, new ones are started...
        high_water: ...until this many are ready; more than that are closed.
        max_uses: a sandbox is replaced after so many borrowers.
        max_starting: creates in flight at once, and at the end closes; a cluster's API server
            answers each of them.
        claim_timeout_s: how long a borrower waits.
        backoff_s: pause after a create failed, doubled with every further failure...
        longest_backoff_s: ...up to this.
    """

    size: int = Field(default=16, ge=1)
    low_water: int = Field(default=2, ge=0)
    high_water: int = Field(default=8, ge=1)
    max_uses: int = Field(default=64, ge=1)
    max_starting: int = Field(default=4, ge=1)
    claim_timeout_s: float = Field(default=120.0, gt=0)
    backoff_s: float = Field(default=0.5, gt=0)
    longest_backoff_s: float = Field(default=30.0, gt=0)

    @model_validator(mode="after")
    def _marks_are_in_order(self) -> Self:
        if not self.low_water <= self.high_water <= self.size:
            raise ValueError(
                f"low_water={self.low_water}, high_water={self.high_water} and size={self.size} "
                "must not be in another order than that"
            )
        return self
