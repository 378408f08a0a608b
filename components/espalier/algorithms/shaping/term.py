"""What a term of the reward is computed from, and the base classes of the terms.

Turns are messages of the policy. One episode of three, in which the second calls an unknown tool:

    turns   (search {"query": "lyon"})   (lookup {"query": "lyon"})   ()
    exists   True                         False
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from espalier.algorithms.batch import AlgorithmRule


class CallFacts(NamedTuple):
    """One tool call of an episode."""

    name: str
    arguments: str
    """Equal for equal arguments."""
    succeeded: bool
    exists: bool = True
    """Whether the episode offers a tool of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFacts:
    """A judged episode, as the terms see it."""

    outcome: float
    """As it is paid, reward units."""
    is_right: bool
    """Whether the verifier accepted the answer."""
    answer: str | None = None
    turns: tuple[tuple[CallFacts, ...], ...] = ((),)
    """The calls of each message; none where it answered."""
    thoughts: tuple[bool, ...] = (False,)
    """Whether each message says a thought."""
    last_text: str = ""
    """Of the last message, without its thought."""
    is_malformed: bool = False
    """Whether the last message was neither a call nor an answer."""
    is_truncated: bool = False
    """Whether its tokens were used up."""
    total_tokens: int = 0
    """Prompt and observations included."""
    action_token_ids: tuple[int, ...] = ()
    action_logprobs: tuple[float, ...] = ()
    """Under the policy that sampled, nats."""

    @property
    def calls(self) -> tuple[CallFacts, ...]:
        """All calls, in order."""
        return tuple(call for turn in self.turns for call in turn)

    def length(self, unit: LengthUnit) -> int:
        """Its length: sampled tokens, all tokens, or messages of the policy."""
        match unit:
            case "action_tokens":
                return len(self.action_token_ids)
            case "tokens":
                return self.total_tokens
            case "turns":
                return len(self.turns)


LengthUnit = Literal["action_tokens", "tokens", "turns"]


class TermContext(NamedTuple):
    """What other sections of the profile say about the episodes."""

    max_tokens: int
    """`episode.max_tokens`."""
    outcome_low: float = 0.0
    """The least that an outcome pays, reward units."""
    outcome_high: float = 1.0
    """The most."""

    @property
    def outcome_width(self) -> float:
        """What an outcome can change of the total."""
        return self.outcome_high - self.outcome_low


class Span(NamedTuple):
    """Least and most that a term pays in one episode, reward units."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """What the term can change of the total."""
        return self.high - self.low


class Payment(NamedTuple):
    """What a term pays for one episode, reward units."""

    once: float | None = None
    """For the episode as a whole; None for a term that falls turn by turn."""
    by_turn: tuple[float, ...] = ()
    """For each of its turns; empty for a term that falls on the whole."""


class RewardTerm(AlgorithmRule):
    """A term of the reward beside outcome and format, known by its `name`."""

    is_auxiliary: ClassVar[bool] = False
    """Whether it knows nothing of right and wrong, and so must never be the outcome."""

    @property
    def key(self) -> str:
        """Its name, under which trajectories keep it."""
        return str(getattr(self, "name"))  # noqa: B009 (each rule declares its own literal)

    @abstractmethod
    def span(self, context: TermContext) -> Span:
        """The range of what it pays."""

    @abstractmethod
    def paid(self, group: Sequence[EpisodeFacts], context: TermContext) -> list[Payment]:
        """What it pays for each of the attempts at one task."""


class EpisodeTerm(RewardTerm):
    """A term that judges each episode by itself."""

    @abstractmethod
    def payment(self, episode: EpisodeFacts, context: TermContext) -> float:
        """What it pays for `episode`, reward units."""

    def paid(self, group: Sequence[EpisodeFacts], context: TermContext) -> list[Payment]:
        """See `RewardTerm`."""
        return [Payment(self.payment(episode, context)) for episode in group]


class GroupTerm(RewardTerm):
    """A term that compares the attempts at one task."""

    @abstractmethod
    def payments(self, group: Sequence[EpisodeFacts]) -> list[float]:
        """What it pays for each episode of `group`, reward units."""

    def paid(self, group: Sequence[EpisodeFacts], context: TermContext) -> list[Payment]:
        """See `RewardTerm`."""
        del context
        return [Payment(payment) for payment in self.payments(group)]


class TurnTerm(RewardTerm):
    """A term that falls turn by turn."""

    @abstractmethod
    def turn_payments(self, episode: EpisodeFacts) -> list[float]:
        """What it pays for each message of the policy, reward units."""

    def paid(self, group: Sequence[EpisodeFacts], context: TermContext) -> list[Payment]:
        """See `RewardTerm`."""
        del context
        return [Payment(None, tuple(self.turn_payments(episode))) for episode in group]
