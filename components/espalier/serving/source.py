"""Where a served policy comes from, and the check that every version has to pass.

A version is served where a gate pass, or a forced promotion's reason, is recorded with it; which
alias points at it makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from espalier.cluster.objects.serving import version_reference
from espalier.records import ServingError
from espalier.registry.connection import DATABASE_NAME, tracking_target
from espalier.registry.model import ModelVersion, RegisteredModel, fetch_policy, parsed_reference

_PREFIX = "models:/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is served, and its names."""

    names: tuple[str, ...]
    """Values of a request's `model` that are served here; messages show the first."""
    created: int
    """Seconds since 1970 (UTC)."""
    described: Mapping[str, str]
    """Version, digest and gate, or the directory: for people who ask /v1/models."""

    @property
    def fingerprint(self) -> str | None:
        """`system_fingerprint` of OpenAI's API: differs where the weights do."""
        digest = self.described.get("policy_digest")
        return f"sha256:{digest[:16]}" if digest else None


def is_reference(model: str) -> bool:
    """Whether `model` names a registered version, and not a directory."""
    return model.startswith(_PREFIX) or (not Path(model).is_dir() and "@" in model)


def registry_uri(runs_dir: Path) -> str:
    """MLFLOW_TRACKING_URI, or the database of the runs in `runs_dir`.

    Raises:
        ServingError: there is neither.
    """
    target = tracking_target(runs_dir / DATABASE_NAME, "")
    if missing := target.missing_database:
        raise ServingError(
            f"{missing}: no registry here. Start the server beside your runs/, name them"
            " with --runs, or set MLFLOW_TRACKING_URI."
        )
    return target.uri


@contextmanager
def fetched_version(uri: str, reference: str, digest: str | None) -> Iterator[tuple[Path, Source]]:
    """A registered version's directory, checked byte for byte, for the time of the block.

    Args:
        uri: of MLflow.
        reference: `models:/NAME/3`, or `NAME@champion`.
        digest: the policy's, where somebody approved one; None asks for none.

    Raises:
        RegistryError: no such version, or its files are not those that were registered.
        ServingError: it carries neither a gate pass nor a forced reason, or has another digest.
    """
    name, alias, number = parsed_reference(reference)
    model = RegisteredModel.open(uri, name)
    version = model.version(alias or number)
    expect_may_lead(version)
    if digest is not None and version.policy_digest != digest:
        raise ServingError(
            f"{version.label}: its policy digest is {version.policy_digest[:16]}, and "
            f"{digest[:16]} was approved. Its tags were changed since: promote it again."
        )
    with TemporaryDirectory(prefix="espalier-policy-") as folder:
        yield fetch_policy(model, version, Path(folder) / "policy"), version_source(version)


def expect_may_lead(version: ModelVersion) -> None:
    """Refuse a version without a recorded pass.

    Raises:
        ServingError: it carries neither a gate pass nor a forced promotion's reason.
    """
    if not version.may_lead:
        raise ServingError(
            f"{version.label} is not served: it carries neither a gate pass nor a forced "
            f"promotion's reason (gate: {version.gate}). Promote it: espalier promote "
            f"{version.model} --version {version.version}, with --force REASON if need be."
        )


def version_source(version: ModelVersion) -> Source:
    """The source of a registered version."""
    return Source(
        names=(version.model, version_reference(version.model, version.version)),
        created=_seconds(version.created),
        described={
            "version": version.version,
            "policy_digest": version.policy_digest,
            "gate": version.gate,
        },
    )


def directory_source(directory: Path) -> Source:
    """The source of a policy directory, served under its own name.

    Raises:
        ServingError: there is no such directory.
    """
    if not directory.is_dir():
        raise ServingError(
            f"{directory}: no such directory. Name a policy directory, or a registered version as "
            "models:/MODEL@champion or models:/MODEL/3."
        )
    whole = directory.resolve()
    name = whole.parent.name if whole.name == "policy" else whole.name
    return Source(
        names=(name,), created=int(whole.stat().st_mtime), described={"directory": str(whole)}
    )


def _seconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp())
