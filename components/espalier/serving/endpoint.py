"""Program of the serving Deployment: an endpoint for the version that the controller chose.

    ESPALIER_MODEL=models:/espalier-search-agent/3 python -m espalier.serving.endpoint

`espalier serve` is the same endpoint as a command. Serve large policies with vLLM (`fetched.py`),
which has the same paths and extensions.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from espalier.cluster.objects.serving import DIGEST_VARIABLE, MODEL_VARIABLE
from espalier.determinism import prepare_environment
from espalier.records import EspalierError
from espalier.steps.profiles import named_profile


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the version of ESPALIER_MODEL until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="espalier.serving.endpoint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--profile", default="laptop", help="gives the section [serving]")
    parser.add_argument("--set", dest="set_", action="append", metavar="SECTION.KEY=VALUE")
    given = parser.parse_args(arguments)
    prepare_environment()  # before anything imports torch
    from espalier.serving.server import Serving, serve

    serving = Serving(
        model=os.environ.get(MODEL_VARIABLE) or None,
        digest=os.environ.get(DIGEST_VARIABLE) or None,
        host=given.host,
        port=given.port,
    )
    try:
        serve(serving, named_profile(given.profile, given.set_ or ()), _say)
    except EspalierError as error:
        sys.exit(f"error: {error}")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    main()
