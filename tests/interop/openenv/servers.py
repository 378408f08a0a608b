"""Servers of these tests, each in a process of its own, on a port that is free."""

import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from tests.interop.venvs import python_of

HERE = Path(__file__).parent
_START_WITHIN_S = 180.0


@contextmanager
def parcel_server(port=0):
    """The address of a parcel desk of the real openenv package."""
    with running([python_of("openenv"), HERE / "parcel_server.py"], port) as url:
        yield url


@contextmanager
def running(command, port=0):
    """The address of a server, whose last argument is its port; ended with the block.

    A training names a port: its address is in the profile, by which a killed arm is known again.
    """
    with socket.create_server(("127.0.0.1", port)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([*map(str, command), str(port)])
    try:
        until = time.monotonic() + _START_WITHIN_S
        while time.monotonic() < until and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise AssertionError(f"{command[1]} does not listen (exit code {process.poll()})")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)
