"""Environment variables and torch settings that make a run reproducible bit for bit.

Also where a step of Kubeflow finds MLflow: as all processes prepare their environment first.
"""

from __future__ import annotations

import os

TRAINER_VARIABLE = "ESPALIER_TRAINER"
"""Set in the pods of a launched object, to the value of `kubernetes.trainer` that it is of: what
runs there runs the stage itself. "rayjob" starts the other processes of training on all nodes."""

TRACKING_FALLBACK = "ESPALIER_TRACKING_URI"
"""Where MLflow is if nobody sets MLFLOW_TRACKING_URI, which Kubeflow's MLflow plugin may do."""
_TRACKING = "MLFLOW_TRACKING_URI"

_ENVIRONMENT = {
    # MKL's order of summation may depend on a buffer's alignment; STRICT forbids that. AUTO uses
    # the widest vector instructions of any vendor: without it, matrix products on AMD processors
    # run at less than half the speed.
    "MKL_CBWR": "AUTO,STRICT",
    # Without it, torch refuses matrix products on a GPU: cuBLAS may sum in another order each time.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Where JAX is installed, bm25s tries it as it is imported, and JAX takes three quarters of the
    # memory of every GPU that it may see.
    "JAX_PLATFORMS": "cpu",
    "TOKENIZERS_PARALLELISM": "false",
    # Policies are local directories; asking the hub first takes seconds without a network.
    "HF_HUB_OFFLINE": "1",
    # transformers shows a progress bar for every file of a policy that is read or written.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # transformers warns about missing GPU kernels on machines without a GPU. Its warning about
    # randomly filled weights is not needed: `load_policy` refuses such a policy.
    "TRANSFORMERS_VERBOSITY": "error",
    "GX_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def prepare_environment() -> None:
    """Set variables that libraries read at their first import; variables already set are kept."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    address = os.environ.get(TRACKING_FALLBACK)
    if address and not os.environ.get(_TRACKING):
        os.environ[_TRACKING] = address


def prepared_environment() -> dict[str, str]:
    """The current values of these variables, for processes that do not inherit them."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def prepare_torch(threads: int) -> None:
    """Fix torch's thread count and refuse operations without a deterministic implementation.

    Args:
        threads: CPU threads of torch. They change the order of sums, so the profile sets them.
    """
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True)
    # filling new tensors to reveal reads of uninitialised memory takes a tenth of a rollout's time
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 (untyped)
