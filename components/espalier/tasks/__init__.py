"""Tasks: prompts with a verifier, and the files they live in."""

from espalier.tasks.agent_text import (
    AgentText,
    TextKind,
    read_agent_texts,
    write_agent_texts,
)
from espalier.tasks.report_groups import group_label, group_of, report_groups
from espalier.tasks.task import Message, Task, TaskMetadata, Verifier
from espalier.tasks.task_set import read_tasks, write_tasks

__all__ = [
    "AgentText",
    "Message",
    "Task",
    "TaskMetadata",
    "TextKind",
    "Verifier",
    "group_label",
    "group_of",
    "read_agent_texts",
    "read_tasks",
    "report_groups",
    "write_agent_texts",
    "write_tasks",
]
