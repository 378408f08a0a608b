"""Harbor's task folders (terminal-bench 2): an instruction, an environment, tests that reward."""

from espalier.environments.harbor.config import HarborConfig
from espalier.environments.harbor.family import Harbor
from espalier.environments.harbor.reading import TaskFolder, read_folders

__all__ = ["Harbor", "HarborConfig", "TaskFolder", "read_folders"]
