"""Tasks of a verifiers (v1) taskset, played by its EnvServer: `espalier_interop.verifiers`."""

from espalier_interop.verifiers.family import TasksetConfig, TasksetFamily

__all__ = ["TasksetConfig", "TasksetFamily"]
