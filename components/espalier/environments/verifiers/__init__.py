"""Tasks of a taskset of verifiers (v1); its EnvServer plays them, see `rollout.env_server`."""

from espalier.environments.verifiers.family import TasksetConfig, TasksetFamily

__all__ = ["TasksetConfig", "TasksetFamily"]
