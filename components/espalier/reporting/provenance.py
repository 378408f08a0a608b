"""Where everything came from: digests, versions, the registered model, whom to name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from espalier.chain import STAGES
from espalier.reporting.formats import number, words
from espalier.reporting.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """One published artifact in the table of digests."""

    folder: str
    stage: str
    rows: str
    content: str
    integrity: str
    config_digest: str
    seed: int
    created: str
    inputs: tuple[tuple[str, str], ...]


def artifact_rows(run: RunDirectory) -> tuple[ArtifactRow, ...]:
    """The artifacts in the order of their stages."""
    rows = []
    for stage in STAGES:
        artifact = run.artifacts.get(stage)
        if artifact is None:
            continue
        manifest = artifact.manifest
        counts = (f"{number(count)} {words(name)}" for name, count in manifest.rows.items())
        rows.append(
            ArtifactRow(
                folder=artifact.path.name,
                stage=words(stage),
                rows=", ".join(counts),
                content=manifest.content,
                integrity=manifest.integrity,
                config_digest=manifest.config_digest,
                seed=manifest.seed,
                created=manifest.created,
                inputs=tuple(manifest.inputs.items()),
            )
        )
    return tuple(rows)


def package_versions(run: RunDirectory) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Package -> every version that a stage of this run recorded; more than one is worth seeing."""
    seen: dict[str, set[str]] = {}
    for artifact in run.artifacts.values():
        for package, version in artifact.manifest.packages.items():
            seen.setdefault(package, set()).add(version)
    return tuple((package, tuple(sorted(versions))) for package, versions in sorted(seen.items()))


def registration_facts(run: RunDirectory) -> dict[str, Any]:
    """Name, version and alias of the registered model."""
    artifact = run.artifacts.get("register")
    if artifact is None:
        return {}
    facts = {**(artifact.json("registered.json") or {}), **artifact.measured()}
    return {key: value for key, value in facts.items() if key not in ("seconds", "peak_rss_mb")}


def attribution(run: RunDirectory) -> str:
    """Whom the knowledge is owed to (licences such as CC BY ask for it)."""
    artifact = run.artifacts.get("ingest")
    return artifact.text("attribution.txt").strip() if artifact else ""
