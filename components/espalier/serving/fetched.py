r"""Starts another server over the version that a controller chose: vLLM, for large policies.

    ESPALIER_MODEL=models:/espalier-search-agent/3 python -m espalier.serving.fetched \
        vllm serve POLICY --served-model-name espalier-search-agent '$(ESPALIER_MODEL)'

The version is held to what the endpoint holds it to: a recorded gate pass or a forced reason, the
digest that was approved, every byte as it was registered. POLICY becomes its directory, and the
program takes this one's place; Kubernetes fills in `$(ESPALIER_MODEL)` by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from espalier.cluster.objects.serving import DIGEST_VARIABLE, MODEL_VARIABLE
from espalier.records import EspalierError, ServingError
from espalier.serving.source import fetched_version, registry_uri

PLACE = "POLICY"
"""Stands for the directory among the program's arguments."""


def become(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Fetch the version and run `command` in this process's place; returns only by an error.

    Raises:
        ServingError: no version or no program is named, or the version may not be served.
        RegistryError: the registry is away, or the version damaged.
    """
    reference = environment.get(MODEL_VARIABLE)
    if not reference:
        raise ServingError(f"no version to serve yet: {MODEL_VARIABLE} is not set")
    if PLACE not in command:
        raise ServingError(f"name a program to run over the policy, with {PLACE} in its arguments")
    digest = environment.get(DIGEST_VARIABLE) or None
    with fetched_version(registry_uri(Path("runs")), reference, digest) as (directory, _):
        program = [str(directory) if part == PLACE else part for part in command]
        try:
            os.execvp(program[0], program)
        except OSError as error:
            raise ServingError(f"{program[0]} cannot be run: {error.strerror}") from error


if __name__ == "__main__":
    try:
        become(sys.argv[1:], os.environ)
    except EspalierError as failure:
        sys.exit(f"error: {failure}")
