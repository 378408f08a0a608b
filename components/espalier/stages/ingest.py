"""ingest: writes the material of the family's tasks into one artifact.

Enters: nothing but the profile, and the files that it names.
Leaves: what the family writes (`espalier_search.knowledge.ingesting` for a knowledge source), and
attribution.txt.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from espalier.chain import opened, provenance
from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import Manifest, Tracker, publishing


def run(
    profile: Profile,
    inputs: Mapping[str, Path],
    output_dir: Path,
    tracker: Tracker,
    *,
    external_digests: Mapping[str, str] | None = None,
) -> Manifest:
    """Write the knowledge artifact.

    Raises:
        KnowledgeError: the source cannot be read, is empty, or a view would leak a name.
        EngineError: the server of the model that extracts triples cannot be used.
    """
    with publishing(
        output_dir, provenance("ingest", profile, opened(inputs), external_digests)
    ) as draft:
        family_of(profile).ingest(draft, tracker)
    return draft.published
