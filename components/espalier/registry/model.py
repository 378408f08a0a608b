"""A registered model and its versions: tags, aliases and files, behind one small surface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from espalier.records import RegistryError
from espalier.registry.connection import connect, reaching, shown

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHALLENGER, CHAMPION, PREVIOUS = "challenger", "champion", "previous"
"""Aliases: last registered, in use, and what `rollback` returns to."""

POLICY_DIGEST = "espalier.policy_digest"
SUITE_DIGEST = "espalier.suite_digest"
PARENT_RUN = "espalier.parent_run"
GATE = "espalier.gate"
GATE_REASON = "espalier.gate_reason"
PREVIOUS_CHAMPION = "espalier.previous_champion"
CHAMPION_SINCE = "espalier.champion_since"
PENDING, PASSED, FORCED, REFUSED = "pending", "passed", "forced", "refused"

_MAX_VERSIONS = 10_000
_MAX_MODELS = 1000
"""The most that MLflow returns at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """One version of a registered model, as it stood when it was read."""

    model: str
    version: str
    run_id: str
    tags: Mapping[str, str]
    aliases: tuple[str, ...]
    created: str
    """UTC, ISO 8601."""

    @property
    def gate(self) -> str:
        """`pending`, `passed`, `forced` or `refused`."""
        return self.tags.get(GATE, PENDING)

    @property
    def may_lead(self) -> bool:
        """Whether a gate pass, or a forced promotion's reason, is recorded."""
        return self.gate == PASSED or (
            self.gate == FORCED and bool(self.tags.get(GATE_REASON, "").strip())
        )

    @property
    def policy_digest(self) -> str:
        """Digest over the policy's files."""
        return self.tags.get(POLICY_DIGEST, "")

    @property
    def folder(self) -> str:
        """Folder of this version among its run's artifacts."""
        return version_folder(self.policy_digest)

    @property
    def label(self) -> str:
        """The version as a user writes it."""
        return f"{self.model}/{self.version}"


def version_folder(policy_digest: str) -> str:
    """Named after the content: a second policy from the same run never touches the first one."""
    return f"models/{policy_digest[:16]}"


class RegisteredModel:
    """The versions under one model name."""

    def __init__(self, client: MlflowClient, uri: str, name: str) -> None:
        self.client = client
        self.uri = uri
        self.name = name

    @classmethod
    def open(cls, uri: str, name: str) -> Self:
        """Connect to the registry at `uri`; the model itself need not exist yet."""
        return cls(connect(uri), uri, name)

    def versions(self) -> list[ModelVersion]:
        """Every version, newest first; none where the model does not exist."""
        aliases = self._aliases()
        with reaching(self.uri, f"list the versions of {self.name}"):
            found = self.client.search_model_versions(
                f"name = '{self.name}'", max_results=_MAX_VERSIONS
            )
        versions = [
            ModelVersion(
                model=self.name,
                version=str(entry.version),
                run_id=str(entry.run_id or ""),
                tags=dict(entry.tags),
                aliases=tuple(sorted(a for a, v in aliases.items() if v == str(entry.version))),
                created=_utc(entry.creation_timestamp),
            )
            for entry in found
        ]
        return sorted(versions, key=lambda version: -int(version.version))

    def expect_versions(self) -> list[ModelVersion]:
        """Every version, newest first.

        Raises:
            RegistryError: none was registered; the message names the models there are.
        """
        if found := self.versions():
            return found
        there = ", ".join(name for name in model_names(self.client, self.uri) if name != self.name)
        raise RegistryError(
            f"{self.name}: no such model at {shown(self.uri)}. "
            + (f"There are {there}." if there else "No version was registered yet.")
        )

    def version(self, reference: str) -> ModelVersion:
        """The version that an alias or a number names.

        Raises:
            RegistryError: there is none; the message lists what there is.
        """
        if found := self.find(reference):
            return found
        there = ", ".join(
            f"{version.version} ({', '.join(version.aliases)})"
            if version.aliases
            else version.version
            for version in self.expect_versions()[:10]
        )
        raise RegistryError(
            f"{self.name}: no version or alias {reference} at {shown(self.uri)}. There are {there}."
        )

    def find(self, reference: str) -> ModelVersion | None:
        """The version that an alias or a number names, or None."""
        for version in self.versions():
            if reference == version.version or reference in version.aliases:
                return version
        return None

    def tag(self, version: ModelVersion, tags: Mapping[str, object]) -> None:
        """Set tags of a version."""
        with reaching(self.uri, f"tag {version.label}"):
            for key, value in tags.items():
                self.client.set_model_version_tag(self.name, version.version, key, str(value))

    def point(self, alias: str, version: ModelVersion | None) -> None:
        """Move an alias to a version, or remove it."""
        with reaching(self.uri, f"move {self.name}@{alias}"):
            if version is not None:
                self.client.set_registered_model_alias(self.name, alias, version.version)
            elif alias in self._aliases():
                self.client.delete_registered_model_alias(self.name, alias)

    def has_file(self, version: ModelVersion, path: str) -> bool:
        """Whether `path` lies in the version's folder."""
        parent = f"{version.folder}/{path}".rpartition("/")[0]
        with reaching(self.uri, f"list the files of {version.label}"):
            entries = self.client.list_artifacts(version.run_id, parent)
        return any(entry.path == f"{version.folder}/{path}" for entry in entries)

    def fetch(self, version: ModelVersion, path: str, destination: Path) -> Path:
        """Download a file or folder of the version below `destination`; returns where it is."""
        with reaching(self.uri, f"download {path} of {version.label}"):
            return Path(
                self.client.download_artifacts(
                    version.run_id, f"{version.folder}/{path}", str(destination)
                )
            )

    def store(self, version: ModelVersion, file: Path, folder: str) -> None:
        """Add a file to the version, in `folder`."""
        with reaching(self.uri, f"store {file.name} with {version.label}"):
            self.client.log_artifact(version.run_id, str(file), f"{version.folder}/{folder}")

    def _aliases(self) -> dict[str, str]:
        from mlflow.exceptions import MlflowException

        with reaching(self.uri, f"look up the model {self.name}"):
            try:
                aliases = self.client.get_registered_model(self.name).aliases
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return {}
                raise
        return {alias: str(version) for alias, version in aliases.items()}


def model_names(client: MlflowClient, uri: str) -> list[str]:
    """Names of the registered models, in alphabetical order."""
    with reaching(uri, "list the models"):
        return sorted(
            model.name for model in client.search_registered_models(max_results=_MAX_MODELS)
        )


def versions(tracking_uri: str, model_name: str) -> list[ModelVersion]:
    """Every version of a model, newest first.

    Raises:
        RegistryError: the registry cannot be reached.
    """
    return RegisteredModel.open(tracking_uri, model_name).versions()


def _utc(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
