"""Harbor's task folders (terminal-bench 2): an instruction, an environment, tests that reward."""

from espalier_interop.harbor.config import HarborConfig
from espalier_interop.harbor.family import Harbor
from espalier_interop.harbor.reading import TaskFolder, read_folders

__all__ = ["Harbor", "HarborConfig", "TaskFolder", "read_folders"]
