"""What a profile names outside itself: files that count by their content, not by their path."""

from __future__ import annotations

from espalier.artifacts.digests import tree_digest
from espalier.config.profile import Profile


def external_inputs(profile: Profile, stage: str) -> dict[str, str]:
    """Digests of the user's own files that `stage` reads, by the key that names them.

    A stage records them beside its input artifacts, so that an edited source runs it again. What
    is not there is left out: the stage itself says so.
    """
    knowledge = profile.knowledge
    paths = {
        "ingest": {
            "knowledge.path": knowledge.path,
            "knowledge.triples": knowledge.triples,
            "knowledge.questions": knowledge.questions,
        },
        "prepare_policy": {"policy.model": profile.policy.model},
    }.get(stage, {})
    return {
        name: tree_digest(path)
        for name, path in paths.items()
        if path is not None and path.exists()
    }
