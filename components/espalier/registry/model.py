"""A registered model, its versions (tags, aliases, files), and their verified download."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple, Self

from espalier.records import RegistryError, file_digest, json_digest
from espalier.registry.connection import connect, reaching, shown

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHALLENGER, CHAMPION, PREVIOUS = "challenger", "champion", "previous"
"""Aliases of the latest registered version, the one in use, and the target of `rollback`."""

NAMED_AFTER = "espalier.named_after"
"""Tag of a version whose model has a default name: the folder, file or database behind the name."""
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
"""Most results that MLflow returns in one page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """Snapshot of a version of a registered model."""

    model: str
    version: str
    run_id: str
    tags: Mapping[str, str]
    aliases: tuple[str, ...]
    created: str
    """UTC, ISO 8601."""
    location: str = ""
    """URI of its files in MLflow's artifact store."""

    @property
    def gate(self) -> str:
        """`pending`, `passed`, `forced` or `refused`."""
        return self.tags.get(GATE, PENDING)

    @property
    def may_lead(self) -> bool:
        """Whether it may be champion: it passed the gate, or was forced with a reason."""
        return self.gate == PASSED or (
            self.gate == FORCED and bool(self.tags.get(GATE_REASON, "").strip())
        )

    @property
    def policy_digest(self) -> str:
        """Digest of the policy's files."""
        return self.tags.get(POLICY_DIGEST, "")

    @property
    def folder(self) -> str:
        """Folder of this version in its run's artifacts."""
        return version_folder(self.policy_digest)

    @property
    def label(self) -> str:
        """`MODEL/version`, as a user writes it."""
        return f"{self.model}/{self.version}"


def version_folder(policy_digest: str) -> str:
    """Folder of a policy in its run's artifacts, named by content: policies never share files."""
    return f"models/{policy_digest[:16]}"


class RegisteredModel:
    """All versions of one model name."""

    def __init__(self, client: MlflowClient, uri: str, name: str) -> None:
        self.client = client
        self.uri = uri
        self.name = name

    @classmethod
    def open(cls, uri: str, name: str) -> Self:
        """Connect to the registry at `uri`; the model need not exist yet."""
        return cls(connect(uri), uri, name)

    def versions(self) -> list[ModelVersion]:
        """Every version, newest first; empty if the model does not exist."""
        aliases = self._aliases()
        with reaching(self.uri, f"list the versions of {self.name}"):
            found = self.client.search_model_versions(
                f"name = '{self.name}'", max_results=_MAX_VERSIONS
            )
        versions = []
        for entry in found:
            number = str(entry.version)
            created = datetime.fromtimestamp(entry.creation_timestamp / 1000, UTC)
            version = ModelVersion(
                model=self.name,
                version=number,
                run_id=str(entry.run_id or ""),
                tags=dict(entry.tags),
                aliases=tuple(sorted(alias for alias, held in aliases.items() if held == number)),
                created=created.isoformat(timespec="seconds"),
                location=str(entry.source or ""),
            )
            versions.append(version)
        return sorted(versions, key=lambda version: -int(version.version))

    def expect_versions(self) -> list[ModelVersion]:
        """Every version, newest first.

        Raises:
            RegistryError: there is none; the message lists the registered models.
        """
        if found := self.versions():
            return found
        there = ", ".join(name for name in model_names(self.client, self.uri) if name != self.name)
        raise RegistryError(
            f"{self.name}: no such model at {shown(self.uri)}. "
            + (f"There are {there}." if there else "No version has been registered yet.")
        )

    def expect_named_after(self, source: str | None) -> None:
        """Check that a default name does not join the models of two folders.

        Args:
            source: `Profile.named_after` of the run; None if the user chose the name.

        Raises:
            RegistryError: the newest version with a default name is of another source.
        """
        known = (version.tags.get(NAMED_AFTER) for version in self.versions() if source)
        other = next(filter(None, known), source)
        if other != source:
            raise RegistryError(
                f"{self.name} at {shown(self.uri)} is the model of {other}, and this run is about "
                f"{source}. Name the model of this run with --set registry.model_name=NAME: "
                f"another name, or {self.name} if both are the same agent."
            )

    def version(self, reference: str) -> ModelVersion:
        """The version with this alias or number.

        Raises:
            RegistryError: there is none; the message lists the versions.
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
        """The version with this alias or number, or None."""
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
        """Move an alias to a version; None removes the alias."""
        with reaching(self.uri, f"move {self.name}@{alias}"):
            if version is not None:
                self.client.set_registered_model_alias(self.name, alias, version.version)
            elif alias in self._aliases():
                self.client.delete_registered_model_alias(self.name, alias)

    def has_file(self, version: ModelVersion, path: str) -> bool:
        """Whether the version has a file at `path`."""
        parent = f"{version.folder}/{path}".rpartition("/")[0]
        with reaching(self.uri, f"list the files of {version.label}"):
            entries = self.client.list_artifacts(version.run_id, parent)
        return any(entry.path == f"{version.folder}/{path}" for entry in entries)

    def fetch(self, version: ModelVersion, path: str, destination: Path) -> Path:
        """Download a file or folder of the version below `destination` and return its path."""
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
    """Names of the registered models, sorted."""
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


POLICY_FOLDER = "policy"
FILES_NAME = "files.json"
"""JSON file with path -> SHA-256 of every policy file; its digest is the policy digest."""


def load_version(tracking_uri: str, reference: str, destination: Path) -> Path:
    """Download the policy of `MODEL@alias` or `MODEL/version` to `destination`.

    Every file is checked against the digests recorded at registration.

    Raises:
        RegistryError: there is no such version, the champion did not pass the gate, `destination`
            is not empty, or a file differs from the registered one. `destination` is untouched.
    """
    name, alias, version = parsed_reference(reference)
    model = RegisteredModel.open(tracking_uri, name)
    found = model.version(alias or version)
    if alias == CHAMPION and not found.may_lead:
        raise RegistryError(
            f"{name}@{CHAMPION} points at version {found.version}, which neither passed the gate "
            f"nor was forced with a reason (gate: {found.gate}). Promote it: "
            f"espalier promote {name} --version {found.version}, or roll back."
        )
    return fetch_policy(model, found, destination)


def champion_policy(
    tracking_uri: str, model_name: str, destination: Path, named_after: str | None = None
) -> Path:
    """Download the champion's policy for a run that starts from it.

    Raises:
        RegistryError: the model has no champion or is of another source than the run, or
            `load_version` fails.
    """
    model = RegisteredModel.open(tracking_uri, model_name)
    model.expect_named_after(named_after)
    if model.find(CHAMPION) is None:
        raise RegistryError(
            f"policy.start = 'champion', but {model_name} has no champion yet. Run once with "
            "policy.start = 'base' and promote its version, or name another model with "
            "--set registry.model_name=NAME."
        )
    return load_version(tracking_uri, f"{model_name}@{CHAMPION}", destination)


def fetch_policy(model: RegisteredModel, version: ModelVersion, destination: Path) -> Path:
    """Download a version's policy, verify its digests, then move it to `destination`."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise RegistryError(f"{destination} exists and is not empty; choose another folder.")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{destination.name}.", dir=destination.parent) as scratch:
            files = _recorded_files(model, version, Path(scratch))
            policy = model.fetch(version, POLICY_FOLDER, Path(scratch))
            _check_files(version, policy, files)
            if destination.exists():
                destination.rmdir()
            shutil.move(policy, destination)
    except OSError as error:
        raise RegistryError(
            f"{destination}: {version.label} could not be written there ({error}). "
            "Free space, or choose another folder."
        ) from error
    return destination


def _recorded_files(model: RegisteredModel, version: ModelVersion, scratch: Path) -> dict[str, str]:
    if not version.policy_digest or not model.has_file(version, FILES_NAME):
        raise RegistryError(
            f"{version.label} has no file digests, so it was not registered by espalier and cannot "
            "be verified. Register the policy through the pipeline."
        )
    path = model.fetch(version, FILES_NAME, scratch)
    try:
        files: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        files = {}  # matches no recorded digest, so it is refused below
    if json_digest(files) != version.policy_digest:
        raise RegistryError(
            f"{version.label}: {FILES_NAME} differs from the registered file. {_REMEDY}"
        )
    return files


def _check_files(version: ModelVersion, policy: Path, files: dict[str, str]) -> None:
    paths = (path for path in policy.rglob("*") if path.is_file())
    present = {path.relative_to(policy).as_posix(): path for path in paths}
    for name, digest in files.items():
        if name not in present:
            raise RegistryError(f"{version.label}: {name} is missing. {_REMEDY}")
        if file_digest(present[name]) != digest:
            raise RegistryError(
                f"{version.label}: {name} differs from the registered file. {_REMEDY}"
            )
    if extra := sorted(present.keys() - files.keys()):
        raise RegistryError(f"{version.label}: {extra[0]} was added later. {_REMEDY}")


_REMEDY = (
    "The artifact store was changed or damaged: restore it, or register the policy again by "
    "running the register stage anew."
)


class Reference(NamedTuple):
    """A parsed `MODEL@alias` or `MODEL/version`; either `alias` or `version` is empty."""

    model: str
    alias: str
    version: str


def parsed_reference(reference: str) -> Reference:
    """Parse `MODEL@alias` or `MODEL/version`, with or without a `models:/` prefix.

    Raises:
        RegistryError: the text has neither form.
    """
    text = reference.removeprefix("models:/")
    name, separator, alias = text.rpartition("@")
    if separator and name and alias:
        return Reference(name, alias, "")
    name, separator, version = text.rpartition("/")
    if separator and name and version.isdigit():
        return Reference(name, "", version)
    raise RegistryError(f"{reference}: write it as MODEL@champion, MODEL@challenger or MODEL/3.")
