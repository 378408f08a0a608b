"""What the machine must have before a cluster can be built and started on it."""

import os
import platform
import shutil
import subprocess

from tests.cluster.places import ClusterError
from tests.cluster.processes import cgroup_roots

PACKAGES = {
    "etcd": "etcd-server",
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
    "podman": "podman",
    "debootstrap": "debootstrap",
    "curl": "curl",
    "rclone": "rclone",
    "sqlite3": "sqlite3",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
"""Program -> the Debian package that has it."""
OF_KUBEFLOW = {"mariadb-install-db": "mariadb-server"}
"""What Kubeflow Pipelines needs besides."""


def check():
    """Refuse a machine that lacks something, and say what."""
    check_machine()
    _check_rights()
    if shutil.which("go") is None:
        raise ClusterError("no Go on PATH; the programs of the cluster are built from Go modules")
    if absent := missing_packages():
        raise ClusterError(f"not installed: apt-get install {' '.join(absent)}")


def check_machine():
    """Refuse one that no installation helps."""
    if platform.system() != "Linux":
        raise ClusterError(f"a cluster of containers needs Linux, and this is {platform.system()}")
    if os.geteuid() != 0:
        raise ClusterError(
            "a cluster needs root (namespaces, mounts, cgroups); run it under sudo, or set "
            "KUBECONFIG to run the functional tests on a cluster that you have"
        )


def _check_rights():
    """Root of a container may lack what a cluster does all the time."""
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
    made = subprocess.run(namespaces, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise ClusterError(f"root may make no namespaces here: {made.stderr.strip()}")
    roots = cgroup_roots()
    if not roots or not all(os.access(root, os.W_OK) for root in roots):
        raise ClusterError("/sys/fs/cgroup cannot be written here, and pods need cgroups")


def missing_packages(packages=PACKAGES):
    return sorted(package for program, package in packages.items() if not _is_there(program))


def install(packages=PACKAGES):
    """Install what Debian has of the missing; it is asked for, and it is done by root alone."""
    if not (absent := missing_packages(packages)):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ClusterError(f"not installed, and only root on Debian can: {' '.join(absent)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *absent]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=quiet, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"apt-get {' '.join(command)}: {done.stderr.strip()[-600:]}")


def _is_there(program):
    # Debian keeps some of them where an ordinary PATH does not look
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None
