"""What a borrower may leave for the next one: the reset removes it, or the probe sees it."""

import asyncio

import pytest

from espalier.sandbox.choice import PoolThread
from espalier.sandbox.local import LocalBackend
from espalier.sandbox.pool import PoolSettings
from espalier.sandbox.starting import make_warm
from tests.integration.sandbox.backends import is_on_gvisor

pytestmark = pytest.mark.contract

_PORT = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
server.accept()[0].close()  # whoever closes first waits
client.close()
"""
_PROCESSES = "import subprocess\nfor _ in range(300): subprocess.run(['true'])"
_FILES = "import os\nfor n in range(600): open(f'/tmp/{n}', 'w').close(); os.unlink(f'/tmp/{n}')"


_TIMES = """
import os
for folder in ("/workspace", "/tmp", "/dev/shm"):
    try: os.utime(folder, (77, 77))
    except OSError: open(f"{folder}/x", "w").close()
"""


_FLAGS = """
import fcntl, os, struct
fcntl.ioctl(os.open("/workspace", os.O_RDONLY), 0x40086602, struct.pack("Q", 0xC0))
"""
_TERMINALS = """
import os
for path in ("/dev/pts", "/dev/pts/ptmx"):
    os.utime(path, (77, 77))
"""


@pytest.fixture
def warm(run, backend):
    made = run(make_warm(backend, None))
    yield made
    run(made.sandbox.close())


def test_ordinary_use_leaves_nothing(run, warm):
    for _ in range(3):
        run(warm.sandbox.python("x = 1\nopen('/tmp/x', 'w').write('y')"))
        run(warm.sandbox.exec(["sh", "-c", "ls / | wc -l > listed"]))
        assert run(warm.clean()) == []


@pytest.mark.parametrize(
    ("code", "found"),
    [(_PORT, "network"), (_PROCESSES, "counted"), (_FILES, "counted")],
    ids=["a port that waits", "numbers of processes", "numbers of files"],
)
def test_what_cannot_be_removed_is_seen(run, backend, warm, code, found):
    if found == "network" and backend.name != "local":
        pytest.skip("there, programs open no internet sockets, or sandboxd shares the loopback")
    if is_on_gvisor(backend):
        pytest.skip("gVisor numbers files anew")
    assert run(warm.sandbox.exec(["python", "-c", code])).succeeded
    assert run(warm.clean()) == [found]


@pytest.mark.parametrize(("code", "found"), [(_FLAGS, "/workspace"), (_TERMINALS, "terminals")])
def test_what_only_an_owner_may_change_is_seen(run, warm, code, found):
    changed = run(warm.sandbox.exec(["python", "-c", code])).succeeded
    assert run(warm.clean()) == [found] * changed


def test_times_of_shared_folders_are_forgotten(run, warm):
    run(warm.sandbox.exec(["python", "-c", _TIMES]))
    before = run(_times(warm.sandbox))
    assert run(warm.clean()) == []
    after = run(_times(warm.sandbox))
    assert not set(before) & set(after)


async def _times(sandbox):
    look = "import os\nprint([os.stat(f).st_mtime_ns for f in ('/workspace', '/tmp', '/dev/shm')])"
    result = await sandbox.exec(["python", "-c", look])
    return result.stdout.strip(b"[]\n").split(b", ")


@pytest.mark.usefixtures("local_sandboxes")
def test_judges_have_sandboxes_of_their_own():
    with PoolThread(LocalBackend(preimport=()), PoolSettings(size=2, high_water=2)) as sandboxes:

        async def names(judging):
            async with sandboxes.claim(judging=judging) as one:
                return one.name

        async def both():
            return await asyncio.gather(
                *(names(judging=judging) for judging in (False, True) for _ in range(4))
            )

        found = asyncio.run(sandboxes.run(both()))
    assert not set(found[:4]) & set(found[4:])
