"""What a material rule sees of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One trajectory of a group, by its numbers."""

    reward: float
    is_success: bool
    """Whether the verifier accepted its outcome."""
    turns: int
    action_tokens: int
    token_ids: tuple[int, ...]
    """Prompt, actions and observations: equal ones are the same trajectory."""
