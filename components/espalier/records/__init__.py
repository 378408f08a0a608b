"""What is handed around: tasks, messages, tool calls, and artifact directories with manifests.

Nothing here knows a family of tasks, a dialect or a stage. Trajectories are in
`espalier.records.trajectory`, which imports pyarrow.
"""

from espalier.records.action import Action, FinalAnswer, Malformed, ToolCalls, action_of
from espalier.records.agent_text import AgentText, TextKind, read_agent_texts, write_agent_texts
from espalier.records.digests import content_digest, file_digest, json_digest, tree_digest
from espalier.records.errors import (
    ArtifactError,
    ClusterError,
    DataError,
    EngineError,
    EspalierError,
    KnowledgeError,
    ManifestError,
    PolicyError,
    ProfileError,
    RegistryError,
    ServingError,
    StorageAwayError,
    StorageError,
    TrainingError,
)
from espalier.records.manifest import MANIFEST_NAME, Manifest, Provenance, read_manifest
from espalier.records.message import JsonObject, Message, ToolCall
from espalier.records.publishing import (
    Draft,
    open_artifact,
    publishing,
    replace_directory,
    work_dir,
)
from espalier.records.report_groups import group_label, group_of, report_groups, shown_group
from espalier.records.task import (
    SPLITS,
    Split,
    Task,
    TaskMetadata,
    Verifier,
    read_tasks,
    task_id_of,
    write_tasks,
)
from espalier.records.tool import ToolSpec
from espalier.records.tracker import NullTracker, Progress, Tracker

__all__ = [
    "MANIFEST_NAME",
    "SPLITS",
    "Action",
    "AgentText",
    "ArtifactError",
    "ClusterError",
    "DataError",
    "Draft",
    "EngineError",
    "EspalierError",
    "FinalAnswer",
    "JsonObject",
    "KnowledgeError",
    "Malformed",
    "Manifest",
    "ManifestError",
    "Message",
    "NullTracker",
    "PolicyError",
    "ProfileError",
    "Progress",
    "Provenance",
    "RegistryError",
    "ServingError",
    "Split",
    "StorageAwayError",
    "StorageError",
    "Task",
    "TaskMetadata",
    "TextKind",
    "ToolCall",
    "ToolCalls",
    "ToolSpec",
    "Tracker",
    "TrainingError",
    "Verifier",
    "action_of",
    "content_digest",
    "file_digest",
    "group_label",
    "group_of",
    "json_digest",
    "open_artifact",
    "publishing",
    "read_agent_texts",
    "read_manifest",
    "read_tasks",
    "replace_directory",
    "report_groups",
    "shown_group",
    "task_id_of",
    "tree_digest",
    "work_dir",
    "write_agent_texts",
    "write_tasks",
]
