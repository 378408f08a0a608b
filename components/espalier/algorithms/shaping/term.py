"""The facts that reward terms are computed from, and the base classes of the terms.

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
    """The arguments as text, equal for equal arguments."""
    succeeded: bool
    exists: bool = True
    """Whether the episode offers a tool of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFacts:
    """A scored episode, as the terms see it."""

    outcome: float
    """The outcome in the reward, reward units."""
    is_right: bool
    """Whether the verifier accepted the answer."""
    answer: str | None = None
    turns: tuple[tuple[CallFacts, ...], ...] = ((),)
    """The calls of each message; empty for an answer."""
    thoughts: tuple[bool, ...] = (False,)
    """Whether each message has a thought."""
    last_text: str = ""
    """Text of the last message, without its thought."""
    is_malformed: bool = False
    """Whether the last message was neither a call nor an answer."""
    is_truncated: bool = False
    """Whether the episode was cut off at its token limit."""
    total_tokens: int = 0
    """Number of tokens, prompt and observations included."""
    action_token_ids: tuple[int, ...] = ()
    action_logprobs: tuple[float, ...] = ()
    """Log-probs under the policy that sampled, nats."""

    @property
    def calls(self) -> tuple[CallFacts, ...]:
        """All calls, in order."""
        return tuple(call for turn in self.turns for call in turn)

    def length(self, unit: LengthUnit) -> int:
        """Return its length: sampled tokens, all tokens, or messages of the policy."""
        match unit:
            case "action_tokens":
                return len(self.action_token_ids)
            case "tokens":
                return self.total_tokens
            case "turns":
                return len(self.turns)


LengthUnit = Literal["action_tokens", "tokens", "turns"]


class TermContext(NamedTuple):
    """Settings of the profile's other sections on which terms depend."""

    max_tokens: int
    """`episode.max_tokens`."""
    outcome_low: float = 0.0
    """The least outcome, reward units."""
    outcome_high: float = 1.0
    """The largest outcome, reward units."""

    @property
    def outcome_width(self) -> float:
        """Width of the outcome's range."""
        return self.outcome_high - self.outcome_low


class Span(NamedTuple):
    """Range of a term in one episode, reward units."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """Width of the term's range."""
        return self.high - self.low


class TermReward(NamedTuple):
    """The amount of a term in one episode, reward units."""

    once: float | None = None
    """Amount for the whole episode; None for a term that counts turn by turn."""
    by_turn: tuple[float, ...] = ()
    """Amount for each turn; empty for a term that counts for the whole episode."""


class RewardTerm(AlgorithmRule):
    """A term of the reward beside outcome and format, identified by its `name`."""

    is_auxiliary: ClassVar[bool] = False
    """Whether it ignores right and wrong, and so must never be the outcome."""

    @property
    def key(self) -> str:
        """The name under which trajectories keep it; that of the class for `module:Class`."""
        name = str(getattr(self, "name"))  # noqa: B009 (each rule declares its own literal)
        return name.rpartition(":")[2]

    @abstractmethod
    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""

    @abstractmethod
    def group_rewards(
        self, group: Sequence[EpisodeFacts], context: TermContext
    ) -> list[TermReward]:
        """Return the term's amounts for the attempts at one task."""


class EpisodeTerm(RewardTerm):
    """A term that is computed from one episode."""

    @abstractmethod
    def reward(self, episode: EpisodeFacts, context: TermContext) -> float:
        """Return the term's amount for `episode`, reward units."""

    def group_rewards(
        self, group: Sequence[EpisodeFacts], context: TermContext
    ) -> list[TermReward]:
        """Return the term's amounts for the attempts at one task."""
        return [TermReward(self.reward(episode, context)) for episode in group]


class GroupTerm(RewardTerm):
    """A term that compares the attempts at one task."""

    @abstractmethod
    def rewards(self, group: Sequence[EpisodeFacts]) -> list[float]:
        """Return the term's amount for each episode of `group`, reward units."""

    def group_rewards(
        self, group: Sequence[EpisodeFacts], context: TermContext
    ) -> list[TermReward]:
        """Return the term's amounts for the attempts at one task."""
        del context
        return [TermReward(reward) for reward in self.rewards(group)]


class TurnTerm(RewardTerm):
    """A term that counts turn by turn."""

    @abstractmethod
    def turn_rewards(self, episode: EpisodeFacts) -> list[float]:
        """Return the term's amount for each message of the policy, reward units."""

    def group_rewards(
        self, group: Sequence[EpisodeFacts], context: TermContext
    ) -> list[TermReward]:
        """Return the term's amounts for the attempts at one task."""
        del context
        return [TermReward(None, tuple(self.turn_rewards(episode))) for episode in group]
