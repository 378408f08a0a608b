"""Programs from Go modules, kept outside the tree under the versions that they were built from."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from tests.cluster.places import MODULES, ClusterError

_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_KUBERNETES = "k8s.io/kubernetes/cmd"
_VERSION = "k8s.io/component-base/version"
_CAP_SYS_RESOURCE = 24
_SHIM_FILE = "pkg/shim/v1/manager.go"
_SHIM_REFUSES = re.compile(
    r"if err := sys\.SetOOMScore\(cmd\.Process\.Pid, oomScoreMax\); err != nil \{.*?\n\t\}", re.S
)
_SAID_CHARACTERS = 2000
_SHIM_GOES_ON = "_ = sys.SetOOMScore(cmd.Process.Pid, oomScoreMax)"


class Module(NamedTuple):
    """A folder of `modules/`, and the programs that it makes."""

    name: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]


KUBERNETES = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
    "kubectl",
)  # fmt: skip
CONTAINERD = ("containerd", "ctr", "containerd-shim-runc-v2")
MODULE_LIST = (
    Module(
        "kubernetes",
        (*(f"{_KUBERNETES}/{name}" for name in KUBERNETES), "./coredns", "./pause"),
        (*KUBERNETES, "coredns", "pause"),
    ),
    Module("containerd", tuple(f"{_CONTAINERD}/{name}" for name in CONTAINERD), CONTAINERD),
    Module("minio", ("github.com/minio/minio",), ("minio",)),
    Module(
        "gvisor", ("gvisor.dev/gvisor/runsc", "gvisor.dev/gvisor/shim"),
        ("runsc", "containerd-shim-runsc-v1"),
    ),
)  # fmt: skip


def build(programs):
    """Build what is not kept yet; returns the seconds that each module took.

    Args:
        programs: the folder that every cluster starts its programs from.
    """
    programs.mkdir(parents=True, exist_ok=True)
    return {module.name: _build(module, programs) for module in MODULE_LIST}


def build_program(name, programs):
    """The path of one program, built first where it is not kept yet.

    Raises:
        ClusterError: it cannot be built here: no Go, or no way to its module proxy.
    """
    programs.mkdir(parents=True, exist_ok=True)
    (module,) = [module for module in MODULE_LIST if name in module.programs]
    _build(module, programs)
    return programs / name


def check_reachable(programs):
    """Ask for one module of what is not built yet.

    Raises:
        ClusterError: it cannot be had: no way to Go's module proxy, most likely.
    """
    absent = [module for module in MODULE_LIST if not _is_kept(module, programs)]
    if absent:
        text = (MODULES / absent[0].name / "go.mod").read_text()
        path, version = re.search(r"^(?:require |\t)(\S+) (v\S+)$", text, re.M).groups()
        programs.mkdir(parents=True, exist_ok=True)
        go(programs, "mod", "download", f"{path}@{version}")


def go(folder, *arguments, needs_cgo=False):
    """Run Go's tool.

    Args:
        folder: where.
        arguments: its own.
        needs_cgo: whether what is built has parts in C.

    Returns:
        What it printed.

    Raises:
        ClusterError: with what it said, or as there is none.
    """
    settings = {
        "CGO_ENABLED": "1" if needs_cgo else "0",
        "GOFLAGS": "-mod=mod -trimpath",
        "GOGC": "400",  # a compiler lives for seconds: what it does not collect it need not collect
    }
    if shutil.which("go") is None:
        raise ClusterError("no Go here to build programs with: `python -m tests.cluster build`")
    done = subprocess.run(
        ["go", *arguments],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip()[-_SAID_CHARACTERS:]
        raise ClusterError(f"go {arguments[0]} {arguments[-1]} in {folder}: {said}")
    return done.stdout


def _is_kept(module, programs):
    stamp = programs / f".{module.name}"
    kept = all((programs / name).exists() for name in module.programs)
    return kept and stamp.exists() and stamp.read_text() == _digest(module)


def _build(module, programs):
    if _is_kept(module, programs):
        return 0.0
    started = time.monotonic()
    stamp = programs / f".{module.name}"
    stamp.unlink(missing_ok=True)
    source = programs.parent / "modules" / module.name
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(MODULES / module.name, source)
    if module.name == "gvisor" and not _may_lower_scores():
        _let_shim_go_on(source)
    go(source, "build", *_flags(module, source), "-o", f"{programs}/", *module.packages)
    if module.name == "gvisor":
        (programs / "shim").rename(programs / "containerd-shim-runsc-v1")
    stamp.write_text(_digest(module))
    return time.monotonic() - started


def _digest(module):
    """Of everything that decides what the programs are."""
    digest = hashlib.sha256(f"{module} {_may_lower_scores()}".encode())
    for path in sorted((MODULES / module.name).rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _flags(module, source):
    link = "-s -w"
    if module.name == "kubernetes":
        version = _required(source, "k8s.io/kubernetes")
        major, minor, _ = version.removeprefix("v").split(".")
        link += f" -X {_VERSION}.gitVersion={version}"
        link += f" -X {_VERSION}.gitMajor={major} -X {_VERSION}.gitMinor={minor}"
    return ["-ldflags", link]


def _required(source, path):
    (version,) = re.findall(rf"^\t{re.escape(path)} (v\S+)$", (source / "go.mod").read_text(), re.M)
    return version


def _may_lower_scores():
    """Whether this machine lets root change OOM scores at will: containers often may not."""
    status = Path("/proc/self/status").read_text()
    (bounding,) = re.findall(r"^CapBnd:\s*(\S+)$", status, re.M)
    return bool(int(bounding, 16) >> _CAP_SYS_RESOURCE & 1)


def _let_shim_go_on(source):
    """Build from a copy of the module whose shim sets its OOM score where it may, and goes on.

    A copy, since Go overlays no file of its module cache.

    Raises:
        ClusterError: the file does not read as expected, so another version is built.
    """
    kept = json.loads(go(source, "mod", "download", "-json", "gvisor.dev/gvisor"))
    copy = source / "gvisor"
    shutil.copytree(kept["Dir"], copy, copy_function=shutil.copyfile)
    file = copy / _SHIM_FILE
    text, changes = _SHIM_REFUSES.subn(_SHIM_GOES_ON, file.read_text())
    if changes != 1:
        raise ClusterError(f"{file} sets its OOM score otherwise than expected")
    file.write_text(text)
    go(source, "mod", "edit", "-replace", f"gvisor.dev/gvisor={copy}")
