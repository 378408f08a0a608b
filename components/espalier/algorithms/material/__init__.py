"""What a step learns from: all of its trajectories, pairs of them, or the successes alone."""

from typing import Annotated

from pydantic import Field

from espalier.algorithms.material.attempt import Attempt
from espalier.algorithms.material.everything import Everything
from espalier.algorithms.material.pairs import PreferencePairs
from espalier.algorithms.material.successes import Successes

MaterialRule = Annotated[Everything | PreferencePairs | Successes, Field(discriminator="name")]

__all__ = ["Attempt", "Everything", "MaterialRule", "PreferencePairs", "Successes"]
