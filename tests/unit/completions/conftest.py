import pytest

from tests.fakes.endpoint_double import running_double


@pytest.fixture
def double():
    with running_double() as server:
        yield server
