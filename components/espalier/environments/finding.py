"""The family of a profile, and the dialect of its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from espalier.config import EnvironmentConfig, Profile, family_class
from espalier.dialects.dialect import Dialect
from espalier.environments.family import Family

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def family_of(profile: Profile) -> Family[Any]:
    """The family that `[environment]` names, for one stage of a run."""
    found = cast("type[Family[EnvironmentConfig]]", family_class(profile.environment.name))
    return found(profile)


def policy_dialect(family: Family[Any], tokenizer: PreTrainedTokenizerBase) -> Dialect:
    """The dialect of the profile's policy, with the family's tools.

    Raises:
        PolicyError: the tokenizer has no chat template.
    """
    return Dialect(
        tokenizer,
        family.specs,
        name=family.profile.policy.dialect,
        instructions=family.instructions,
    )
