"""Tasks: prompts with a verifier, and the files they live in."""

from espalier.tasks.task import Message, Task, TaskMetadata, Verifier
from espalier.tasks.task_set import read_tasks, write_tasks

__all__ = ["Message", "Task", "TaskMetadata", "Verifier", "read_tasks", "write_tasks"]
