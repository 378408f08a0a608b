"""Train the tiny policy with the tools of a server of the real mcp package, over HTTP.

    python -m tests.interop.mcp_servers.train --seeds 1

As `tests.benchmarks.families` does it, with the same options and the same table.
"""

import subprocess
import sys
from pathlib import Path

from tests.interop.openenv.servers import running
from tests.interop.venvs import ROOT, python_of

HERE = Path(__file__).parent
PORT = 18432


def main():
    """Start the server, and run the chain on it."""
    with running([python_of("mcp"), HERE / "parcel_desk.py"], PORT) as url:
        servers = f'environment.servers={{desk = {{url = "{url}/mcp"}}}}'
        command = [sys.executable, "-m", "tests.benchmarks.families", str(HERE / "profile.toml")]
        done = subprocess.run([*command, "--set", servers, *sys.argv[1:]], cwd=ROOT, check=False)
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
