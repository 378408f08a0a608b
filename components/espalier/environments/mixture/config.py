"""Profile section `[environment]` of a mixture."""

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
    """Name of the family, such as "shop", or its section with its own settings."""
    weight: float = Field(default=1.0, gt=0)
    """Its share of the tasks of every split, relative to the weights of the others."""
    max_turns: int | None = Field(default=None, ge=1)
    """Replaces `episode.max_turns` for this family; unset keeps it. Token limits are those of
    [episode], since one policy plays all families."""


class MixtureConfig(EnvironmentConfig):
    """The families of a mixture and their shares."""

    name: str = "mixture"
    members: tuple[MemberConfig, ...] = Field(min_length=2)
    """The families, each a table [[environment.members]]."""

    @model_validator(mode="after")
    def _each_family_is_named_once(self) -> Self:
        names = [member.environment.name for member in self.members]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"members name {', '.join(twice)} twice, but a task is found by its family: make "
                "one member of both"
            )
        if self.name in names:
            raise ValueError("a mixture cannot be a member of a mixture; name its members here")
        return self

    def families(self) -> tuple[str, ...]:
        """Return the names of the mixture and of all its members."""
        members = (name for member in self.members for name in member.environment.families())
        return (self.name, *members)

    def external_files(self) -> dict[str, Path | None]:
        """Return the files of all members, by the key of the profile that names them."""
        return {
            f"members.{member.environment.name}.{key}": path
            for member in self.members
            for key, path in member.environment.external_files().items()
        }

    def profiles(self, profile: Profile) -> dict[str, Profile]:
        """Return name of a member -> the run's profile as for that family alone, with its share.

        The members' shares of a count add up to it.
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
