"""What pods run: images of links into the node's own environment, and imported ones.

The image of the pipeline is the node's environment, mounted read-only into every pod that names no
RuntimeClass: gigabytes that are not copied. Sandboxes name one, so nothing of the node is in them.
"""

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

from espalier import __version__
from tests.cluster.places import REPOSITORY

PAUSE = "localhost/pause:1"
PIPELINE = f"localhost/espalier-cpu:{__version__}"
MINIO = f"localhost/espalier-minio:{__version__}"

_PROGRAMS = "/opt/programs"
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
    inside_usr = [source for source in folders if source.startswith("/usr/")]
    return [
        {"source": source, "destination": target, "type": "bind", "options": _READ_ONLY}
        for source, target in folders.items()
        if source not in inside_usr
    ]


def archives(places):
    """Archives by file name, as `ctr images import` reads them."""
    pause = file_member("pause", (places.programs / "pause").read_bytes(), mode=0o755)
    return {
        "pause.tar": archive(PAUSE, [pause], ["/pause"], []),
        "pipeline.tar": archive(PIPELINE, skeleton(), ["espalier"], _environment()),
        "minio.tar": archive(MINIO, skeleton(), ["minio"], _environment()),
    }


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
