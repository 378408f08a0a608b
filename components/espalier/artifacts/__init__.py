"""What stages hand each other: versioned, digest-checked directories, published by one rename."""

from espalier.artifacts.digests import content_digest, file_digest, json_digest, tree_digest
from espalier.artifacts.errors import (
    ArtifactError,
    DataError,
    EngineError,
    EspalierError,
    KnowledgeError,
    ManifestError,
    PolicyError,
    ProfileError,
    RegistryError,
)
from espalier.artifacts.manifest import Manifest, Provenance, read_manifest
from espalier.artifacts.publish import Draft, open_artifact, publishing, work_dir
from espalier.artifacts.tracker import NullTracker, Progress, Tracker

__all__ = [
    "ArtifactError",
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
    "Tracker",
    "content_digest",
    "file_digest",
    "json_digest",
    "open_artifact",
    "publishing",
    "read_manifest",
    "tree_digest",
    "work_dir",
]
