"""Tests of the procedural family; those that ask generators need reasoning-gym's environment."""

import pytest

from espalier.config import Profile
from espalier.environments import family_of
from espalier_environments.procedural.packages import own_python

NEEDS_GENERATORS = pytest.mark.skipif(
    not own_python().is_file(),
    reason=f"{own_python()} is not here: run `espalier environments add procedural`",
)
SUMS = {"name": "chain_sum", "levels": [{"max_terms": 2}, {"min_terms": 3, "max_terms": 3}]}


def family(*generators, **settings):
    section = {"name": "procedural", "generators": list(generators) or [SUMS], **settings}
    return family_of(Profile.model_validate({"environment": section}))
