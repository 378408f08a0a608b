"""A MinIO of one's own on loopback: the program that the test cluster runs, on an empty folder."""

import os
import secrets
import socket
import subprocess
import time
from contextlib import contextmanager

import urllib3

from tests.cluster.building import build_program
from tests.cluster.places import places
from tests.fakes.s3_stand_in import BUCKET, REGION

_START_S = 60


@contextmanager
def minio_server(folder):
    """Start MinIO over `folder`, with the bucket of the tests; gives the AWS_ variables.

    Raises:
        ClusterError: the program is not kept, and cannot be built.
        RuntimeError: it does not start.
    """
    program = build_program("minio", places().programs)
    data = folder / "data"
    (data / BUCKET).mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{free_port()}"
    keys = {"MINIO_ROOT_USER": "espalier", "MINIO_ROOT_PASSWORD": secrets.token_hex(16)}
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off", **keys,
    }  # fmt: skip
    with (folder / "minio.log").open("ab") as log:
        process = subprocess.Popen(
            [str(program), "server", str(data), "--address", address],
            env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _await(process, address, folder)
        yield {
            "AWS_ENDPOINT_URL_S3": f"http://{address}",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": keys["MINIO_ROOT_USER"],
            "AWS_SECRET_ACCESS_KEY": keys["MINIO_ROOT_PASSWORD"],
        }
    finally:
        process.terminate()
        process.wait()


def free_port():
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _await(process, address, folder):
    pool = urllib3.PoolManager(retries=False, timeout=1.0)
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if pool.request("GET", f"http://{address}/minio/health/ready").status == 200:
                return
        except urllib3.exceptions.HTTPError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"MinIO does not start: {(folder / 'minio.log').read_text()[-2000:]}")
