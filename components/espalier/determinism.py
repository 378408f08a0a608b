"""Environment variables and torch settings that make a run reproducible bit for bit.

Kubeflow's steps also get MLflow's address here, because all processes first call this.
"""

from __future__ import annotations

import gc
import os

TRAINER_VARIABLE = "ESPALIER_TRAINER"
"""Variable in the pods of a launched object, with the value of `kubernetes.trainer`: there the step
runs the stage itself. With "rayjob" it starts the other processes of training on all nodes."""

TRACKING_FALLBACK = "ESPALIER_TRACKING_URI"
"""Variable with MLflow's address where MLFLOW_TRACKING_URI, which Kubeflow's MLflow plugin may set,
is not set."""
_TRACKING = "MLFLOW_TRACKING_URI"

_ENVIRONMENT = {
    # MKL's order of summation may depend on a buffer's alignment; STRICT forbids that. AUTO uses
    # the widest vector instructions of any vendor: without it, matrix products on AMD processors
    # run at less than half the speed.
    "MKL_CBWR": "AUTO,STRICT",
    # Without it, torch refuses matrix products on a GPU, because cuBLAS may change its order of
    # summation.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Where JAX is installed, importing bm25s initialises it, and JAX reserves three quarters of the
    # memory of every visible GPU.
    "JAX_PLATFORMS": "cpu",
    "TOKENIZERS_PARALLELISM": "false",
    # Policies are local directories; without a network, a request to the hub takes seconds.
    "HF_HUB_OFFLINE": "1",
    # transformers shows a progress bar for every file of a policy that is read or written.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # transformers warns about missing GPU kernels on machines without a GPU. Its warning about
    # randomly filled weights is not needed: `load_policy` refuses such a policy.
    "TRANSFORMERS_VERBOSITY": "error",
    "GX_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


_GC_THRESHOLD = 10_000
"""Allocations between two garbage collections; Python 3.11 has 700. A fifth of the time to import
torch and MLflow is spent in collections that free nothing."""


def prepare_environment() -> None:
    """Prepare this process for its first import of torch, tokenizers or MLflow.

    Environment variables that they read are set, unless they are set already, and garbage is
    collected less often.
    """
    gc.set_threshold(_GC_THRESHOLD, 10, 10)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    address = os.environ.get(TRACKING_FALLBACK)
    if address and not os.environ.get(_TRACKING):
        os.environ[_TRACKING] = address


def prepared_environment() -> dict[str, str]:
    """Current values of these variables, for processes that do not inherit them."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def prepare_torch(threads: int) -> None:
    """Fix torch's thread count and refuse operations without a deterministic implementation.

    Args:
        threads: CPU threads of torch; a setting of the profile, because it changes sums.
    """
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True)
    # filling new tensors to reveal reads of uninitialised memory takes a tenth of a rollout's time
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 (untyped)
