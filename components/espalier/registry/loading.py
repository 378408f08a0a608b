"""Getting a model version back as a directory, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from espalier.records import RegistryError, file_digest, json_digest
from espalier.registry.model import CHAMPION, ModelVersion, RegisteredModel

POLICY_FOLDER = "policy"
FILES_NAME = "files.json"
"""Path -> SHA-256 of every file of the policy; its own digest is the version's policy digest."""


def load_version(tracking_uri: str, reference: str, destination: Path) -> Path:
    """Write the policy that `MODEL@alias` or `MODEL/version` names to `destination`.

    Every byte is checked against the digests recorded when it was registered.

    Raises:
        RegistryError: no such version, a champion that passed no gate, a destination that is not
            empty, or files other than those registered. Nothing is left at `destination` then.
    """
    name, alias, version = parsed_reference(reference)
    model = RegisteredModel.open(tracking_uri, name)
    found = model.version(alias or version)
    if alias == CHAMPION and not found.may_lead:
        raise RegistryError(
            f"{name}@{CHAMPION} points at version {found.version}, which carries neither a gate "
            f"pass nor a forced promotion's reason (gate: {found.gate}). Promote it: "
            f"espalier promote {name} --version {found.version}, or roll back."
        )
    return fetch_policy(model, found, destination)


def champion_policy(tracking_uri: str, model_name: str, destination: Path) -> Path:
    """The champion's policy directory, for a run that starts from it.

    Raises:
        RegistryError: the model has no champion, and what `load_version` raises.
    """
    model = RegisteredModel.open(tracking_uri, model_name)
    if model.find(CHAMPION) is None:
        raise RegistryError(
            f"policy.start = 'champion', but {model_name} has no champion yet. Run once with "
            "policy.start = 'base' and promote its version, or name another model with "
            "--set registry.model_name=NAME."
        )
    return load_version(tracking_uri, f"{model_name}@{CHAMPION}", destination)


def fetch_policy(model: RegisteredModel, version: ModelVersion, destination: Path) -> Path:
    """Download a version's policy and check it before it appears at `destination`."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise RegistryError(f"{destination} is there already and not empty; choose another place.")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{destination.name}.", dir=destination.parent) as scratch:
            files = _recorded_files(model, version, Path(scratch))
            policy = model.fetch(version, POLICY_FOLDER, Path(scratch))
            _check(version, policy, files)
            if destination.exists():
                destination.rmdir()
            shutil.move(policy, destination)
    except OSError as error:
        raise RegistryError(
            f"{destination}: {version.label} could not be written there ({error}). "
            "Free space, or choose another place."
        ) from error
    return destination


def _recorded_files(model: RegisteredModel, version: ModelVersion, scratch: Path) -> dict[str, str]:
    if not version.policy_digest or not model.has_file(version, FILES_NAME):
        raise RegistryError(
            f"{version.label} carries no file digests, so it was not registered by espalier and "
            "cannot be checked. Register the policy through the pipeline."
        )
    path = model.fetch(version, FILES_NAME, scratch)
    try:
        files: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        files = {}  # whose digest is no version's
    if json_digest(files) != version.policy_digest:
        raise RegistryError(
            f"{version.label}: {FILES_NAME} is not the one that was registered. {_MEND}"
        )
    return files


def _check(version: ModelVersion, policy: Path, files: dict[str, str]) -> None:
    paths = (path for path in policy.rglob("*") if path.is_file())
    present = {path.relative_to(policy).as_posix(): path for path in paths}
    for name, digest in files.items():
        if name not in present:
            raise RegistryError(f"{version.label}: {name} is missing. {_MEND}")
        if file_digest(present[name]) != digest:
            raise RegistryError(
                f"{version.label}: {name} has other bytes than were registered. {_MEND}"
            )
    if extra := sorted(present.keys() - files.keys()):
        raise RegistryError(f"{version.label}: {extra[0]} was added later. {_MEND}")


_MEND = (
    "The artifact store was changed or damaged: restore it, or register the policy again by "
    "running the register stage anew."
)


class Reference(NamedTuple):
    """What `MODEL@alias` or `MODEL/version` names; alias or version is empty."""

    model: str
    alias: str
    version: str


def parsed_reference(reference: str) -> Reference:
    """Read `MODEL@alias` or `MODEL/version`, with or without `models:/` before it.

    Raises:
        RegistryError: it is neither.
    """
    text = reference.removeprefix("models:/")
    name, separator, alias = text.rpartition("@")
    if separator and name and alias:
        return Reference(name, alias, "")
    name, separator, version = text.rpartition("/")
    if separator and name and version.isdigit():
        return Reference(name, "", version)
    raise RegistryError(f"{reference}: write it as MODEL@champion, MODEL@challenger or MODEL/3.")
