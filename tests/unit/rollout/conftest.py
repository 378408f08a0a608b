import pytest

from tests.fakes.vllm_double import running
from tests.unit.rollout.vllm_play import policy_at


@pytest.fixture
def policy_dir(tmp_path):
    return policy_at(tmp_path / "policy")


@pytest.fixture
def server(policy_dir):
    with running(policy_dir) as double:
        yield double
