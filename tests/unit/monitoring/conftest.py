import pytest

from tests.unit.monitoring import scrapes


@pytest.fixture(scope="session")
def expositions(tmp_path_factory):
    """Program -> what it answers."""
    return {
        "training": scrapes.of_training(tmp_path_factory.mktemp("run")),
        "endpoint": scrapes.of_endpoint(),
        "controller": scrapes.of_controller(),
    }
