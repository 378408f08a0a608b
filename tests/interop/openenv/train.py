"""Train the tiny policy on a server of the real openenv package, over its protocol.

    python -m tests.interop.openenv.train --seeds 1

As `tests.benchmarks.families` does it, with the same options and the same table.
"""

import subprocess
import sys

from tests.interop.openenv.servers import HERE, parcel_server
from tests.interop.venvs import ROOT

PORT = 18431


def main():
    """Start the server, and run the chain on it."""
    with parcel_server(PORT) as url:
        command = [sys.executable, "-m", "tests.benchmarks.families", str(HERE / "profile.toml")]
        command += ["--set", f'environment.url="{url}"', *sys.argv[1:]]
        sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
