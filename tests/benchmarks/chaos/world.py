"""What happened so far, who holds which sandbox, and which invariant was broken first."""

import random
import time
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass, field

REMEMBERED = 400
"""Events that the report of a violation shows."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A trial.

    Attributes:
        seconds: of chaos; the trial goes on until `claims` were made, three times as long at most.
        pools: opened one after the other, every second one on a thread of its own.
        size: sandboxes of each.
        borrowers: at once.
        claim_timeout_s: how long a borrower waits.
        kill_every_s, freeze_every_s: pauses of a pool of ten sandboxes.
        share_proxied: of the sandboxes, behind a proxy.
        mischief: share of the requests through it that it does not just pass on.
        weaken: the safeguard that is taken out, as a control: `reset`, `sharing`, `closing`.
    """

    seconds: float
    claims: int
    seed: int
    pools: int = 4
    size: int = 12
    borrowers: int = 24
    claim_timeout_s: float = 40.0
    kill_every_s: float = 0.8
    freeze_every_s: float = 3.0
    share_proxied: float = 0.6
    mischief: float = 0.15
    failing_creates: float = 0.05
    weaken: str | None = None


@dataclass
class World:
    """Shared by everything in one trial. Its lists are appended to from two threads at most."""

    plan: Plan
    rng: random.Random
    began_s: float = field(default_factory=time.monotonic)
    is_calm: bool = False
    """Nothing is killed, frozen, slowed down or forged any more."""
    events: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    counted: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    proxies: dict[str, object] = field(default_factory=dict)
    """Sandbox -> the proxy in front of it."""
    heard: bytes | None = None
    """The last answer to a run, of any sandbox."""
    holders: dict[str, str] = field(default_factory=dict)
    due: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Borrower -> when what it does now has to have ended, and what that is."""
    causes: Counter[str] = field(default_factory=Counter)
    claims: int = 0
    served: int = 0
    claim_s: list[float] = field(default_factory=list)

    def say(self, what):
        self.events.append(f"{time.monotonic() - self.began_s:9.3f} {what}")

    def count(self, kind, what):
        self.counted[kind] += 1
        self.say(f"{kind}: {what}")

    def break_rule(self, what):
        self.say(f"VIOLATION {what}")
        self.violations.append(f"{time.monotonic() - self.began_s:.3f} s: {what}")

    @contextmanager
    def ends_within(self, borrower, seconds, what):
        """The block has to end in time; whoever watches `due` says so if it does not."""
        outer = self.due.get(borrower)
        self.due[borrower] = time.monotonic() + seconds, what
        try:
            yield
        finally:
            if outer is None:
                self.due.pop(borrower, None)
            else:
                self.due[borrower] = outer

    @contextmanager
    def holding(self, name, borrower):
        """The borrower has this sandbox, and nobody else has."""
        if (other := self.holders.get(name)) is not None:
            self.break_rule(f"two borrowers: {name} is lent to {borrower} and to {other}")
        self.holders[name] = borrower
        try:
            yield
        finally:
            self.holders.pop(name, None)

    def check_due(self):
        now_s = time.monotonic()
        for borrower, (due_s, what) in tuple(self.due.items()):
            if now_s > due_s:
                del self.due[borrower]
                late = f"{borrower} has not ended: {what}, {now_s - due_s:.1f} s late"
                self.break_rule(f"hanging: {late}")
