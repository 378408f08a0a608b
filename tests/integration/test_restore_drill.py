"""MLflow's database and bucket on a real S3 server are lost; the champion comes back. And kills."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest
from minio import Minio
from typer.testing import CliRunner

from espalier.cli import command_line
from espalier.registry import TrackingTarget, load_version
from espalier.registry.backups import open_store
from espalier.registry.promotion import promote
from tests.benchmarks.minio_server import minio_server
from tests.cluster.places import ClusterError
from tests.factories.mlflow_database import empty_database
from tests.factories.storage import files
from tests.fakes.s3_stand_in import Bucket, s3_stand_in
from tests.unit.registry.backups.conftest import register
from tests.unit.registry.conftest import Workbench

FILES, BACKUPS = "espalier-mlflow", "s3://espalier-backup/nightly"
MODEL = "agent"


def command(environment, *words):
    code = "from espalier.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "backup", *words], env={**os.environ, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def backup(environment, *words):
    """What a command of backups prints; in this process, as it loads MLflow once."""
    done = CliRunner().invoke(command_line(), ["backup", *words], env=environment)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """MinIO with MLflow's bucket; MLflow's own client writes there."""
    pytest.importorskip("boto3", reason="MLflow keeps files in S3 with boto3: the extra cluster")
    try:
        with minio_server(tmp_path) as environment:
            client = Minio(
                environment["AWS_ENDPOINT_URL_S3"].removeprefix("http://"),
                environment["AWS_ACCESS_KEY_ID"],
                environment["AWS_SECRET_ACCESS_KEY"],
                secure=False,
            )
            client.make_bucket(FILES)
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", environment["AWS_ENDPOINT_URL_S3"])
            monkeypatch.setenv("AWS_DEFAULT_REGION", environment["AWS_REGION"])
            yield environment, client
    except ClusterError as error:
        pytest.skip(f"MinIO is not kept, and cannot be built: {error}")


@pytest.mark.slow
def test_a_lost_database_and_bucket_give_the_champion_back(s3, tmp_path):
    environment, client = s3
    database = empty_database(tmp_path / "mlflow.db")
    bench = Workbench(tmp_path, TrackingTarget(f"sqlite:///{database}", "tests"), MODEL)
    bench.model.client.create_experiment("tests", f"s3://{FILES}/tests")
    version = bench.register(0.6)
    promote(bench.model, bench.gate(), version=version, force_reason="a drill")
    uri, champion = bench.target.uri, f"{MODEL}@champion"
    load_version(uri, champion, tmp_path / "before")
    stored = {item.object_name for item in client.list_objects(FILES, recursive=True)}
    assert any(name.endswith("model.safetensors") for name in stored)

    backup(environment, "create", BACKUPS, "--database", str(database), "--files", f"s3://{FILES}")
    (listed,) = json.loads(backup(environment, "list", BACKUPS, "--json"))
    assert listed["champions"] == {MODEL: version}
    backup(environment, "verify", BACKUPS)

    database.unlink()
    for name in stored:
        client.remove_object(FILES, name)
    client.remove_bucket(FILES)
    backup(environment, "restore", BACKUPS, "--database", str(database))

    back = {item.object_name for item in client.list_objects(FILES, recursive=True)}
    assert back == stored
    # by a process of its own: this one still has the lost database open
    code = "from espalier.cli import main; main()"
    again = str(tmp_path / "after")
    loaded = subprocess.run(
        [sys.executable, "-c", code, "load", champion, "--out", again],
        env={**os.environ, "MLFLOW_TRACKING_URI": uri}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stderr
    assert files(tmp_path / "after") == files(tmp_path / "before")


@pytest.mark.slow
def test_killed_backups_leave_the_last_whole_one(tmp_path):
    """SIGKILL after a number of requests that chance decides."""
    rng, said = random.Random(7), []
    database = empty_database(tmp_path / "mlflow.db")
    with s3_stand_in() as stand_in:
        stand_in.page = 1000
        bucket = stand_in.buckets[FILES] = Bucket()
        create = ("create", BACKUPS, "--database", str(database), "--files", f"s3://{FILES}")
        for turn in range(5):
            for number in range(8):
                content = f"{turn} {number} ".encode() * 2000
                bucket.objects[f"{turn}/{number}"] = (content, f"etag-{turn}-{number}")
            register(database, turn + 1)
            if turn == 0:
                backup(stand_in.environment, *create)
                continue
            stand_in.requests.clear()
            # what SIGKILL lets lie goes with the test's folder
            process = command({**stand_in.environment, "TMPDIR": str(tmp_path)}, *create)
            allowed = rng.randrange(1, 22)
            while len(stand_in.requests) < allowed and process.poll() is None:
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            store = open_store(BACKUPS, stand_in.environment)
            assert store.verify(store.record(), said.append) == [], said
        backup(stand_in.environment, *create)
        held, database_bytes = dict(bucket.objects), database.read_bytes()
        bucket.objects.clear()
        database.unlink()
        backup(stand_in.environment, "restore", BACKUPS, "--database", str(database))
    assert {name: content[0] for name, content in bucket.objects.items()} == {
        name: content[0] for name, content in held.items()
    }
    with closing(sqlite3.connect(database)) as restored:
        (count,) = restored.execute("SELECT count(*) FROM model_versions").fetchone()
    assert count == 5
    assert len(database.read_bytes()) == len(database_bytes)
