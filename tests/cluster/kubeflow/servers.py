"""What Kubeflow Pipelines needs beside Kubernetes, as processes on the node.

A MariaDB, ML Metadata's own store behind a small server, and an S3 server under the name of the one
that Kubeflow would install. All is on the cluster's state folder, and ends with the cluster.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from minio import Minio

from tests.cluster import network, processes
from tests.cluster.places import ClusterError

DATABASE_PORT, METADATA_PORT, METADATA_WEB_PORT, S3_PORT = 3306, 8089, 8090, 9100
BUCKET = "mlpipeline"
ACCESS_KEY, SECRET_KEY = "minio", "minio123"
"""Those of Kubeflow's own manifests: nothing outside of this machine's network reaches them."""
_METADATA = "ml-metadata==1.17.1"
_METADATA_SERVER = Path(__file__).with_name("mlmd_server.py")
_READY_S = 60
_SAID_CHARACTERS = 1000


def store():
    """A client of the S3 server."""
    return Minio(f"{network.NODE_ADDRESS}:{S3_PORT}", ACCESS_KEY, SECRET_KEY, secure=False)


def start(places):
    """Start all three and wait until each accepts connections."""
    _start_database(places)
    interpreter = _metadata_environment(places)
    processes.start(
        places, "metadata", interpreter, str(_METADATA_SERVER),
        str(places.state / "metadata.db"), str(METADATA_PORT), str(METADATA_WEB_PORT),
    )  # fmt: skip
    (places.state / "kubeflow-s3" / BUCKET).mkdir(parents=True)
    processes.start(
        places, "kubeflow-s3", "minio", "server", str(places.state / "kubeflow-s3"),
        "--address", f"{network.NODE_ADDRESS}:{S3_PORT}",
        environment={"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY},
    )  # fmt: skip
    for name, port in (
        ("database", DATABASE_PORT),
        ("metadata", METADATA_WEB_PORT),
        ("kubeflow-s3", S3_PORT),
    ):
        processes.wait_until(places, name, lambda port=port: _answers(port), timeout_s=_READY_S)
    _admit_root(places)


def _start_database(places):
    if shutil.which("mariadb-install-db") is None:
        raise ClusterError("not installed: apt-get install mariadb-server")
    data = places.state / "database"
    data.mkdir()
    shutil.chown(data, "mysql", "mysql")
    _run(["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={data}"])
    processes.start(
        places, "database", "mariadbd", "--no-defaults", "--user=mysql", f"--datadir={data}",
        "--bind-address=0.0.0.0", f"--port={DATABASE_PORT}", f"--socket={_socket(places)}",
        f"--pid-file={data}/pid", "--skip-name-resolve", "--max-allowed-packet=256M",
        "--innodb-flush-log-at-trx-commit=0",
    )  # fmt: skip


def _admit_root(places):
    """Let the API server in, which logs in as root without a password from a pod's address."""
    statements = (
        "CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY ''",
        "GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION",
    )
    client = ["mariadb", "--no-defaults", f"--socket={_socket(places)}", "--user=root"]
    _run(network.inside(*client, f"--execute={'; '.join(statements)}"))


def _socket(places):
    return places.state / "database" / "socket"


def _metadata_environment(places):
    """The interpreter that has ML Metadata: it needs older packages than espalier."""
    folder = places.cache / "ml-metadata"
    interpreter = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(interpreter), "-m", "pip", "install", "--quiet", _METADATA, "grpcio"])
        (folder / "complete").touch()
    return str(interpreter)


def _answers(port):
    """Whether something listens there: asked from the cluster's network."""
    asked = f"import socket; socket.create_connection(('{network.NODE_ADDRESS}', {port}), 1)"
    command = network.inside(sys.executable, "-c", asked)
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-_SAID_CHARACTERS:]
        raise ClusterError(f"{' '.join(map(str, command))}: {said}")
