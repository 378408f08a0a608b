"""One warm start, and one RL run from it, for all tests of the loop in a process."""

import pytest

from tests.factories.rl_loops import run_loop


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """The folder of a short warm start, which `warm_policy` reads."""
    return tmp_path_factory.mktemp("warm")


@pytest.fixture(scope="session")
def unbroken(warm, tmp_path_factory):
    """A whole run with `PROFILE`, by a loop and the model that it leaves; not to be run again."""
    return run_loop(warm, tmp_path_factory.mktemp("unbroken"))
