"""What stages hand each other: versioned, digest-checked directories, published by one rename."""

from espalier.artifacts.digests import content_digest, file_digest, json_digest, tree_digest
from espalier.artifacts.errors import (
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
from espalier.artifacts.manifest import MANIFEST_NAME, Manifest, Provenance, read_manifest
from espalier.artifacts.publish import (
    Draft,
    open_artifact,
    publishing,
    replace_directory,
    work_dir,
)
from espalier.artifacts.tracker import NullTracker, Progress, Tracker

__all__ = [
    "MANIFEST_NAME",
    "ArtifactError",
    "ClusterError",
    "DataError",
    "Draft",
    "EngineError",
    "EspalierError",
    "KnowledgeError",
    "Manifest",
    "ManifestError",
    "NullTracker",
    "PolicyError",
    "ProfileError",
    "Progress",
    "Provenance",
    "RegistryError",
    "ServingError",
    "StorageAwayError",
    "StorageError",
    "Tracker",
    "TrainingError",
    "content_digest",
    "file_digest",
    "json_digest",
    "open_artifact",
    "publishing",
    "read_manifest",
    "replace_directory",
    "tree_digest",
    "work_dir",
]
