from contextlib import ExitStack

import pytest

from tests.fakes.endpoint_double import running_double


@pytest.fixture
def double():
    with running_double() as server:
        yield server


@pytest.fixture
def two():
    """Two servers of one model."""
    with ExitStack() as stack:
        yield [stack.enter_context(running_double()) for _ in range(2)]
