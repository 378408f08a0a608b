r"""Program that starts another server, such as vLLM, on the version that the controller chose.

    ESPALIER_MODEL=models:/espalier-search-agent/3 python -m espalier.serving.fetched \
        vllm serve POLICY --served-model-name espalier-search-agent '$(ESPALIER_MODEL)'

The version is checked as by the endpoint: it needs a recorded gate pass or a forced reason, and its
files must have the approved digest. POLICY is replaced by the version's directory, and this process
by the program; Kubernetes fills in `$(ESPALIER_MODEL)`.
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
"""Argument of the command that is replaced by the version's directory."""


def become(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Fetch the version, then replace this process by `command`.

    Raises:
        ServingError: no version is set, the command lacks POLICY or cannot be run, or the version
            may not be served.
        RegistryError: the registry cannot be reached, or the version is damaged.
    """
    reference = environment.get(MODEL_VARIABLE)
    if not reference:
        raise ServingError(f"no version to serve yet: {MODEL_VARIABLE} is not set")
    if PLACE not in command:
        raise ServingError(f"give the command of a server, with {PLACE} among its arguments")
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
