"""The tags that the episodes of one environment are written in."""

from __future__ import annotations

from dataclasses import dataclass

THOUGHT_TAGS = ("<think>", "</think>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """How thoughts, calls, observations and answers are told apart; one an environment.

        <think> country </think> <search> lyon country </search>      an action: thought and call
        <information> lyon | country: france </information>           an observation
        <think> answer </think> <answer> france </answer>             an action: the final answer

    The tags of a call and of the answer close an action, whatever comes after them.
    """

    call_tags: tuple[str, str]
    observation_tags: tuple[str, str]
    answer_tags: tuple[str, str] = ("<answer>", "</answer>")
    instructions: str
    """Prefixed to the question for a policy whose tokenizer does not know the tags."""
    digits_apart: bool = False
    """Whether the embedded policy reads a number digit by digit, as it has to where it copies
    numbers that it never saw."""

    @property
    def stop_tags(self) -> tuple[str, ...]:
        """An action ends with the first of these that the policy writes."""
        return (self.call_tags[1], self.answer_tags[1])

    @property
    def kind_tags(self) -> tuple[str, ...]:
        """One of them follows the thought and says what kind of action it is."""
        return (self.call_tags[0], self.answer_tags[0])

    @property
    def tags(self) -> tuple[str, ...]:
        """All of them, as the embedded policy's tokenizer knows them."""
        return (*THOUGHT_TAGS, *self.call_tags, *self.observation_tags, *self.answer_tags)

    def observed(self, observation: str) -> str:
        """An observation as it stands in the context."""
        opening, closing = self.observation_tags
        return f"{opening} {observation} {closing}"

    def call(self, thought: str, text: str) -> str:
        """An action that calls the tool."""
        return self._action(thought, self.call_tags, text)

    def answer(self, thought: str, text: str) -> str:
        """An action that answers."""
        return self._action(thought, self.answer_tags, text)

    @staticmethod
    def _action(thought: str, tags: tuple[str, str], text: str) -> str:
        opening, closing = THOUGHT_TAGS
        return f"{opening} {thought} {closing} {tags[0]} {text} {tags[1]}"
