"""Tasks of a verifiers (v1) taskset, played by its EnvServer through `rollout.env_server`."""

from espalier.environments.verifiers.family import TasksetConfig, TasksetFamily

__all__ = ["TasksetConfig", "TasksetFamily"]
