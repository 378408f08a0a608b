"""Tests on one GPU: `make test-gpu`. TEST_GPU_DEVICE=cpu rehearses them on a machine without."""

import os
from pathlib import Path

import pytest

from espalier.determinism import prepare_environment, prepare_torch

prepare_environment()  # before torch touches the GPU

import torch  # noqa: E402 (it reads the environment)

DEVICE = os.environ.get("TEST_GPU_DEVICE", "cuda")


def pytest_collection_modifyitems(items):
    if DEVICE == "cuda" and not torch.cuda.is_available():
        for item in (one for one in items if one.path.is_relative_to(Path(__file__).parent)):
            item.add_marker(pytest.mark.skip(reason="torch finds no CUDA device here"))


@pytest.fixture(scope="session")
def device():
    """The GPU, with exact products and in torch's deterministic mode, as in a run."""
    prepare_torch(threads=1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.device(DEVICE)
