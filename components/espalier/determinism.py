"""What has to be set so that a run repeats itself bit for bit, on any of its runners."""

from __future__ import annotations

import os

RAY_DRIVER_VARIABLE = "ESPALIER_RAY_DRIVER"
"""Set for Ray's own processes: training then starts its other processes on all nodes."""

_ENVIRONMENT = {
    # MKL may sum in another order when a buffer is aligned differently; STRICT forbids it. AUTO
    # takes the widest vector code on processors of every make: without it, an AMD machine
    # multiplies matrices at less than half the speed.
    "MKL_CBWR": "AUTO,STRICT",
    "TOKENIZERS_PARALLELISM": "false",
    # A policy is a local directory; a hub that is asked first costs seconds where there is no net.
    "HF_HUB_OFFLINE": "1",
    # transformers draws a bar for every file of a policy that is read or written.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # transformers warns that kernels for GPUs are missing, on machines that have no GPU. Weights
    # that it would fill at random are refused by `load_policy`.
    "TRANSFORMERS_VERBOSITY": "error",
    "GX_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def prepare_environment() -> None:
    """Set the variables that libraries read when they are first imported; a set one stays."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def prepared_environment() -> dict[str, str]:
    """Those variables as they are set, for processes that do not inherit them."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def prepare_torch(threads: int) -> None:
    """Fix torch's thread count and refuse operations without a deterministic implementation.

    Args:
        threads: CPU threads of torch; sums are split by it, so it is part of the profile.
    """
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True)
    # would fill every new tensor, a tenth of a roll-out's time, to betray reads of unset memory
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 (untyped)
