"""The command line of a local sandbox, without running it."""

import itertools
from pathlib import Path, PurePosixPath

from espalier.sandbox import Limits
from espalier.sandbox.bubblewrap import (
    ENVIRONMENT,
    MASKED_FILES,
    MASKED_FOLDERS,
    Mount,
    PassedDescriptors,
    command,
    python_mounts,
)
from espalier.sandbox.podman import PodmanBackend

LIMITS = Limits(disk_bytes=12345)
MOUNT = Mount(Path("/srv/python"), PurePosixPath("/home/someone/python"))


def _command(user_map=None):
    descriptors = PassedDescriptors(listener=5, information=6, user_map=user_map)
    return command(LIMITS, [MOUNT], {"A": "b"}, descriptors)


def _pairs(words):
    return list(itertools.pairwise(words))


def _triples(words):
    return list(zip(words, words[1:], words[2:], strict=False))


def test_every_sandbox_has_own_namespaces_and_ends_with_its_parent():
    wanted = {f"--unshare-{kind}" for kind in ("user", "pid", "net", "ipc", "uts")}
    wanted |= {"--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"}
    assert wanted <= set(_command())


def test_only_sized_folders_can_be_written():
    words = _command()
    sized = [words[i + 3] for i, word in enumerate(words) if word == "--size"]
    assert len(sized) == words.count("--tmpfs") == 3
    tmpfs = [target for word, target in _pairs(words) if word == "--tmpfs"]
    assert tmpfs == ["/workspace", "/tmp", "/dev/shm"]
    assert ("--size", "12345", "--tmpfs") in _triples(words)
    assert not {"--bind", "--dev-bind", "--bind-try"} & set(words)
    for folder in ("/", "/dev"):
        assert ("--remount-ro", folder) in _pairs(words)


def test_of_this_machine_only_named_things_are_seen():
    words = _command()
    bound = [(a, b) for word, a, b in _triples(words) if word in {"--ro-bind", "--ro-bind-try"}]
    named = {"/usr", "/etc/alternatives", "/etc/ld.so.cache", "/srv/python"}
    merged = {"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}
    assert {source for source, _ in bound} - merged == named


def test_a_sandbox_of_root_becomes_another_user_before_anything_runs():
    words = _command(user_map=9)
    program = words[words.index("--") + 1 :]
    assert program[0] == "/usr/bin/setpriv"
    assert ("--userns-block-fd", "9") in _pairs(words)
    assert {"--bounding-set=-all", "--no-new-privs", "--clear-groups"} <= set(program)
    assert ("--pdeathsig", "KILL") in _pairs(program)
    assert "/usr/bin/setpriv" not in _command()


def test_the_environment_has_named_packages_and_not_espalier():
    mounts = python_mounts(["numpy", "no-such-package"])
    site = {m.target.name for m in mounts if "site-packages" in m.target.parts}
    assert {"sandboxd", "starlette", "uvicorn", "h11", "anyio", "numpy"} <= site
    assert not {"espalier", "torch", "httpx2", "pip"} & site
    assert all(mount.source.exists() for mount in mounts)
    assert all(
        mount.target.is_relative_to(ENVIRONMENT) or mount.source == Path(mount.target)
        for mount in mounts
    )


def test_podman_masks_what_a_local_sandbox_does():
    words = PodmanBackend(image="x").command("name", {})
    (masked,) = [word for word in words if word.startswith("--security-opt=mask=")]
    paths = set(masked.removeprefix("--security-opt=mask=").split(":"))
    assert paths >= {*MASKED_FILES, *MASKED_FOLDERS, "/sys", "/proc/cmdline"}
