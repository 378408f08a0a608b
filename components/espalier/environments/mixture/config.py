"""Profile section [environment] of a mixture."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from espalier.config import EnvironmentConfig, Profile, named_environment
from espalier.config.data import Section

_SHARED = ("train_tasks", "dev_tasks", "heldout_tasks")


class MemberConfig(Section):
    """One family of a mixture."""

    environment: Annotated[SerializeAsAny[EnvironmentConfig], BeforeValidator(named_environment)]
    """Name of the family, as "shop", or its section with settings of its own."""
    weight: float = Field(default=1.0, gt=0)
    """Its share of the tasks of every split, beside the weights of the others."""
    max_turns: int | None = Field(default=None, ge=1)
    """As `episode.max_turns`, which it takes where this is unset. Limits in tokens are those of
    [episode], for one policy reads all."""


class MixtureConfig(EnvironmentConfig):
    """Which families, and how much of each."""

    name: str = "mixture"
    members: tuple[MemberConfig, ...] = Field(min_length=2)
    """Each a table [[environment.members]]."""

    @model_validator(mode="after")
    def _each_family_is_named_once(self) -> Self:
        names = [member.environment.name for member in self.members]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"members name {', '.join(twice)} twice; a task is told by its family: make one "
                "member of both"
            )
        if self.name in names:
            raise ValueError("a mixture is no member of a mixture; name its members here")
        return self

    def families(self) -> tuple[str, ...]:
        """See `EnvironmentConfig`."""
        members = (name for member in self.members for name in member.environment.families())
        return (self.name, *members)

    def external_files(self) -> dict[str, Path | None]:
        """See `EnvironmentConfig`."""
        return {
            f"members.{member.environment.name}.{key}": path
            for member in self.members
            for key, path in member.environment.external_files().items()
        }

    def profiles(self, profile: Profile) -> dict[str, Profile]:
        """Name of a member -> the run's profile as that family alone would be asked for its share.

        Shares of a count add up to it.
        """
        weights = [member.weight for member in self.members]
        ends = [0.0, *(end / sum(weights) for end in accumulate(weights))]
        synthesis, episode = profile.synthesis, profile.episode
        found: dict[str, Profile] = {}
        for member, (start, end) in zip(self.members, pairwise(ends), strict=True):
            counts = {
                key: round(end * getattr(synthesis, key)) - round(start * getattr(synthesis, key))
                for key in _SHARED
            }
            limits = {} if member.max_turns is None else {"max_turns": member.max_turns}
            found[member.environment.name] = profile.model_copy(
                update={
                    "environment": member.environment,
                    "synthesis": synthesis.model_copy(update=counts),
                    "episode": episode.model_copy(update=limits),
                }
            )
        return found
