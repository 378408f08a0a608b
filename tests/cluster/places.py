"""Where programs are kept between clusters, and where a running cluster keeps its state."""

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MODULES = Path(__file__).parent / "modules"
NAMESPACE = "espalier-cluster"
"""Of the network."""
MARK = "ESPALIER_TEST_CLUSTER"
"""Set, to the state folder, for what `run` starts: the cluster is the tests' own to break."""


class ClusterError(Exception):
    """The cluster cannot be had, and why; the text is for whoever asked for it."""


@dataclass(frozen=True)
class Places:
    """Folders of the one cluster that a machine has."""

    cache: Path
    state: Path

    @property
    def programs(self) -> Path:
        return self.cache / "bin"

    @property
    def keys(self) -> Path:
        return self.state / "keys"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def kubeconfig(self) -> Path:
        return self.keys / "admin.kubeconfig"

    @property
    def containerd_socket(self) -> Path:
        return self.state / "containerd.sock"


def places():
    """As the environment says; the state is short of name, since sockets lie in it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Places(cache=cache / "espalier" / "cluster", state=Path("/var/lib/espalier-cluster"))
