"""Source of a served policy, and the check that a registered version must pass.

A version may be served where its tags record a gate pass or the reason of a forced promotion. Its
aliases do not matter.
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
from espalier.wire.requests import Refusal

_PREFIX = "models:/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Description of a served policy."""

    names: tuple[str, ...]
    """Accepted values of a request's `model`; messages show the first."""
    created: int
    """Seconds since 1970 (UTC)."""
    described: Mapping[str, str]
    """Extra fields of /v1/models: version, digest and gate, or the directory."""

    @property
    def fingerprint(self) -> str | None:
        """`system_fingerprint` of OpenAI's API, which changes with the weights; None: no digest."""
        digest = self.described.get("policy_digest")
        return f"sha256:{digest[:16]}" if digest else None

    def expect_name(self, model: str) -> None:
        """Check the `model` of a request.

        Raises:
            Refusal: it is none of the source's names.
        """
        if model not in self.names:
            raise Refusal(
                404,
                f"the model {model!r} is not served here; ask for {' or '.join(self.names)}",
                param="model",
                code="model_not_found",
            )


def is_reference(model: str) -> bool:
    """Whether `model` names a registered version rather than a directory."""
    return model.startswith(_PREFIX) or (not Path(model).is_dir() and "@" in model)


def registry_uri(runs_dir: Path) -> str:
    """MLFLOW_TRACKING_URI, or the database of the runs in `runs_dir`.

    Raises:
        ServingError: neither exists.
    """
    target = tracking_target(runs_dir / DATABASE_NAME, "")
    if missing := target.missing_database:
        raise ServingError(
            f"{missing}: no such registry. Start the server next to runs/, give that directory "
            "with --runs, or set MLFLOW_TRACKING_URI."
        )
    return target.uri


@contextmanager
def fetched_version(uri: str, reference: str, digest: str | None) -> Iterator[tuple[Path, Source]]:
    """Fetch a registered version into a directory that exists while the block runs.

    Args:
        uri: tracking URI of MLflow.
        reference: `models:/NAME/3`, or `NAME@champion`.
        digest: approved digest of the policy; None accepts every digest.

    Raises:
        RegistryError: no such version, or its files differ from those that were registered.
        ServingError: it has neither a gate pass nor a forced reason, or has another digest.
    """
    name, alias, number = parsed_reference(reference)
    model = RegisteredModel.open(uri, name)
    version = model.version(alias or number)
    expect_may_lead(version)
    if digest is not None and version.policy_digest != digest:
        raise ServingError(
            f"{version.label}: its policy digest is {version.policy_digest[:16]}, and "
            f"{digest[:16]} was approved. Its tags have changed since: promote it again."
        )
    with TemporaryDirectory(prefix="espalier-policy-") as folder:
        yield fetch_policy(model, version, Path(folder) / "policy"), version_source(version)


def expect_may_lead(version: ModelVersion) -> None:
    """Check that a version may be served.

    Raises:
        ServingError: it has neither a gate pass nor the reason of a forced promotion.
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
        created=int(datetime.fromisoformat(version.created).timestamp()),
        described={
            "version": version.version,
            "policy_digest": version.policy_digest,
            "gate": version.gate,
        },
    )


def directory_source(directory: Path) -> Source:
    """The source of a policy directory, which is served under the directory's name.

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
