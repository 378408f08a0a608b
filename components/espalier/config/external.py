"""What a profile names outside itself: files that count by their content, not by their path."""

from __future__ import annotations

from pathlib import Path

from espalier.artifacts.digests import tree_digest
from espalier.config.environment import EnvironmentConfig, PythonMathConfig
from espalier.config.profile import Profile


def external_inputs(profile: Profile, stage: str) -> dict[str, str]:
    """Digests of the user's own files that `stage` reads, by the key that names them.

    A stage records them beside its input artifacts, so that an edited source runs it again. What
    is not there is left out: the stage itself says so.
    """
    knowledge, environment = profile.knowledge, profile.environment
    paths = {
        "ingest": {
            **_problem_files(environment),
            "knowledge.path": knowledge.path,
            "knowledge.triples": knowledge.triples,
            "knowledge.questions": knowledge.questions,
        },
        "validate": {
            f"curation.benchmarks.{name}": path
            for name, path in profile.curation.benchmarks.items()
        },
        "prepare_policy": {"policy.model": profile.policy.model},
    }.get(stage, {})
    return {
        name: tree_digest(path)
        for name, path in paths.items()
        if path is not None and path.exists()
    }


def _problem_files(environment: EnvironmentConfig) -> dict[str, Path | None]:
    if not isinstance(environment, PythonMathConfig):
        return {}
    return {
        "environment.problems": environment.problems,
        "environment.heldout_problems": environment.heldout_problems,
    }
