"""The scripts of k8s/backup: a drill on a real S3 server, and on folders, stopped anywhere."""

import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from minio import Minio

from espalier.config import load_profile
from espalier.orchestration.step_runner import StepOrder
from espalier.records import MANIFEST_NAME, file_digest
from espalier.registry import TrackingTarget, load_version
from espalier.registry.promotion import promote
from espalier.storage.layout import OBJECTS, object_name, parsed_manifest
from tests.benchmarks.minio_server import free_port, minio_server
from tests.cluster.places import ClusterError
from tests.factories.mlflow_database import empty_database
from tests.factories.storage import artifact, files
from tests.fakes.loopback import Handler, Server, serving
from tests.integration.commands import espalier
from tests.unit.registry.conftest import Workbench

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "k8s" / "backup"
FILES, RUNS, BACKUPS = "espalier-mlflow", "espalier/runs", "espalier-backup/nightly"
MODEL = "agent"
TOOLS = ("bash", "curl", "rclone", "sqlite3")
STOPPING = """#!/bin/sh
# rclone, until so many calls of it are done
echo >> "$CALLS"
[ "$(wc -l < "$CALLS")" -le "$ALLOWED" ] || exit 9
exec {rclone} "$@"
"""

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS), reason=f"needs {', '.join(TOOLS)}"
)


class Site:
    """MLflow's database, buckets, and their backups, with the environment of the pods."""

    def __init__(self, database, **environment):
        self.database = database
        self.environment = {
            "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{database}",
            "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{FILES}",
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{free_port()}",
            "ESPALIER_ARTIFACTS": f"s3://{RUNS}",
            "ESPALIER_BACKUPS": f"s3://{BACKUPS}",
            "KEEP": "3",
            **environment,
        }

    def run(self, script, **changes):
        return subprocess.run(
            ["bash", SCRIPTS / script], env={**os.environ, **self.environment, **changes},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def back_up(self, **changes):
        """Its name."""
        done = self.run("backup.sh", **changes)
        assert done.returncode == 0, done.stderr
        time.sleep(1.0)  # backups are named by the second
        return f"{done.stdout.partition(':')[0]}.db"

    def restore(self, **changes):
        done = self.run("restore.sh", **changes)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """MinIO with the buckets; MLflow's own client writes there."""
    pytest.importorskip("boto3", reason="MLflow keeps files in S3 with boto3: the extra cluster")
    try:
        with minio_server(tmp_path) as environment:
            client = Minio(
                environment["AWS_ENDPOINT_URL_S3"].removeprefix("http://"),
                environment["AWS_ACCESS_KEY_ID"],
                environment["AWS_SECRET_ACCESS_KEY"],
                secure=False,
            )
            for bucket in (FILES, "espalier"):
                if not client.bucket_exists(bucket):
                    client.make_bucket(bucket)
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", environment["AWS_ENDPOINT_URL_S3"])
            monkeypatch.setenv("AWS_DEFAULT_REGION", environment["AWS_REGION"])
            yield client
    except ClusterError as error:
        pytest.skip(f"MinIO is not kept, and cannot be built: {error}")


@pytest.fixture
def folders(tmp_path):
    """A site whose buckets and backups are folders, with a version, a run and what is left out."""
    live = tmp_path / "live"
    made = Site(
        tmp_path / "mlflow.db",
        AWS_ENDPOINT_URL_S3="http://127.0.0.1:9", AWS_REGION="here",
        RCLONE_CONFIG_LIVE_TYPE="alias", RCLONE_CONFIG_LIVE_REMOTE=str(live),
        RCLONE_CONFIG_BACKUPS_TYPE="alias", RCLONE_CONFIG_BACKUPS_REMOTE=str(tmp_path / "kept"),
    )  # fmt: skip
    made.live, made.kept = live, tmp_path / "kept" / BACKUPS
    published(live / FILES / "1" / "policy")
    published(live / RUNS / "r1" / "policy")
    write_rows(made.database, 1)
    return made


def write_rows(path, count):
    """A database with MLflow's mark, and so many versions."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num)")
        database.execute("INSERT INTO alembic_version VALUES ('a')")
        database.execute("CREATE TABLE model_versions (version)")
        database.executemany("INSERT INTO model_versions VALUES (?)", [(n,) for n in range(count)])


def num_rows(path):
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT count(*) FROM model_versions").fetchone()[0]


@contextmanager
def postgres():
    """URL of an empty database of a PostgreSQL of one's own, and its psql.

    Its server refuses root, and runs as nobody then.
    """
    (programs,) = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1:] or [None]
    if programs is None:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    owner = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory() as folder:
        if owner:
            shutil.chown(folder, owner)

        def call(program, *words):
            subprocess.run(
                [programs / program, *words], user=owner, cwd=folder, check=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

        call("initdb", f"--pgdata={folder}/data", "--auth=trust", "--username=mlflow", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        call("pg_ctl", f"--pgdata={folder}/data", f"--options={options}", "--wait", "start")
        try:
            url = f"postgresql://mlflow@/postgres?host={folder}"

            def psql(text):
                asked = [programs / "psql", "--no-align", "--tuples-only", f"--command={text}", url]
                done = subprocess.run(asked, capture_output=True, text=True, check=True)
                return done.stdout.split()

            yield url, psql
        finally:
            call("pg_ctl", f"--pgdata={folder}/data", "--mode=immediate", "stop")


def lose(site):
    shutil.rmtree(site.live, ignore_errors=True)
    site.database.unlink(missing_ok=True)


def published(folder, contents=None):
    """An artifact as it lies in S3: its manifest, and files under their SHA-256."""
    with tempfile.TemporaryDirectory() as draft:
        manifest = artifact(Path(draft, "artifact"), contents)
        for name, digest in manifest.files.items():
            (folder / OBJECTS).mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(draft, "artifact", name), folder / object_name(digest))
        shutil.copy2(Path(draft, "artifact", MANIFEST_NAME), folder / MANIFEST_NAME)


def expect_whole_artifacts(folder):
    """Whatever has a manifest has the files that it names; how many there are."""
    manifests = list(folder.rglob(MANIFEST_NAME))
    for path in manifests:
        for digest in parsed_manifest(path.read_bytes(), str(path)).files.values():
            assert file_digest(path.parent / object_name(digest)) == digest
    return len(manifests)


@pytest.mark.slow
def test_a_lost_database_and_bucket_give_the_champion_back(s3, tmp_path):
    database = empty_database(tmp_path / "mlflow.db")
    site = Site(database)
    bench = Workbench(tmp_path, TrackingTarget(f"sqlite:///{database}", "tests"), MODEL)
    bench.model.client.create_experiment("tests", f"s3://{FILES}/tests")
    version = bench.register(0.6)
    promote(bench.model, bench.gate(), version=version, force_reason="a drill")
    uri, champion = bench.target.uri, f"{MODEL}@champion"
    load_version(uri, champion, tmp_path / "before")
    stored = {item.object_name for item in s3.list_objects(FILES, recursive=True)}
    assert any(name.endswith("model.safetensors") for name in stored)

    site.back_up()
    again = site.run("backup.sh", RCLONE_VERBOSE="1")
    assert again.returncode == 0, again.stderr
    assert "model.safetensors" not in again.stderr  # what did not change is not sent again

    database.unlink()
    for name in stored:
        s3.remove_object(FILES, name)
    s3.remove_bucket(FILES)
    site.restore()

    back = {item.object_name for item in s3.list_objects(FILES, recursive=True)}
    assert back == stored
    # by a process of its own: this one still has the lost database open
    loaded = espalier(
        "load", champion, "--out", tmp_path / "after",
        MLFLOW_TRACKING_URI=uri, MLFLOW_S3_ENDPOINT_URL=os.environ["MLFLOW_S3_ENDPOINT_URL"],
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stderr
    assert files(tmp_path / "after") == files(tmp_path / "before")


def test_an_earlier_backup_comes_back_with_its_objects(folders):
    first = folders.back_up()
    before = files(folders.live)
    published(folders.live / RUNS / "r1" / "policy", {"rows.jsonl": b"other"})
    shutil.rmtree(folders.live / FILES / "1")
    write_rows(folders.database, 2)
    folders.back_up()
    lose(folders)
    folders.restore()
    assert num_rows(folders.database) == 2
    assert expect_whole_artifacts(folders.live) == 1
    folders.restore(BACKUP_NAME=first)
    assert num_rows(folders.database) == 1
    assert expect_whole_artifacts(folders.live) == 2
    after = files(folders.live)
    assert {name: after[name] for name in before} == before
    (former,) = folders.database.parent.glob("mlflow.db.before-*")
    assert num_rows(former) == 2


@pytest.mark.slow
@pytest.mark.parametrize("script", ["backup.sh", "restore.sh"])
def test_a_stopped_script_leaves_no_manifest_without_its_files(folders, tmp_path, script):
    """Stopped before each of its calls of rclone in turn; the next one ends what it began."""
    folders.back_up()
    write_rows(folders.database, 2)
    if script == "backup.sh":
        published(folders.live / RUNS / "r1" / "policy", {"rows.jsonl": b"other"})
        published(folders.live / RUNS / "r2")
        shutil.rmtree(folders.live / FILES / "1")
    wrapper = tmp_path / "bin" / "rclone"
    wrapper.parent.mkdir()
    wrapper.write_text(STOPPING.format(rclone=shutil.which("rclone")))
    wrapper.chmod(0o755)
    path = f"{wrapper.parent}:{os.environ['PATH']}"
    for allowed in range(99):
        if script == "restore.sh":
            lose(folders)
        calls = tmp_path / "calls"
        calls.unlink(missing_ok=True)
        given = {"PATH": path, "CALLS": str(calls), "ALLOWED": str(allowed)}
        done = folders.run(script, **given)
        for held in (folders.live, folders.kept / "objects"):
            expect_whole_artifacts(held)
        if done.returncode == 0:
            break
        assert "error: " in done.stderr
        if script == "restore.sh":
            assert not folders.database.exists()
    assert allowed > 4
    lose(folders)
    folders.restore()
    assert expect_whole_artifacts(folders.live) == 2
    assert num_rows(folders.database) == (2 if script == "backup.sh" else 1)


@pytest.mark.slow
def test_a_lost_database_of_postgres_comes_back(folders):
    with postgres() as (url, psql):
        psql("CREATE TABLE alembic_version AS SELECT 1; CREATE TABLE versions AS SELECT 7")
        folders.environment["MLFLOW_BACKEND_STORE_URI"] = url
        done = folders.run("backup.sh")
        assert done.returncode == 0, done.stderr
        psql('DROP TABLE alembic_version; UPDATE versions SET "?column?" = 8')
        shutil.rmtree(folders.live)
        folders.restore()
        assert psql("SELECT * FROM versions") == ["7"]
        assert psql("SELECT * FROM alembic_version") == ["1"]
    assert expect_whole_artifacts(folders.live) == 2


def test_backups_beyond_those_kept_are_deleted(folders):
    for number in range(3):
        published(folders.live / RUNS / "r1" / "policy", {"rows.jsonl": b"%d" % number})
        kept = folders.back_up(KEEP="2")
    databases = sorted(path.name for path in (folders.kept / "databases").iterdir())
    assert len(databases) == 2
    assert databases[-1] == kept
    (replaced,) = (folders.kept / "replaced").iterdir()
    assert f"{replaced.name}.db" == kept


def test_backups_leave_out_what_can_be_computed_again(folders):
    """Checkpoints where steps keep them, kept outputs, and the mark of a running collector."""
    profile = load_profile(ROOT / "pipelines/profiles/smoke.toml")
    left_out = {"kept/ingest/key/manifest.json", "checkpoints/train/key/sha256/00"}
    for run in (f"s3://{RUNS}/r1", f"s3://{RUNS}/team/r2"):
        order = StepOrder(stage="train", profile=profile, run_uri=run, workspace=Path())
        below = order.checkpoints.removeprefix(f"s3://{RUNS}/")
        left_out |= {f"{below}/manifest.json", f"{below}/sha256/00"}
    left_out.add("r1/policy/.espalier-collecting")
    copied = {"r1/steps/train/executor_output.json", "team/r2/policy/sha256/00"}
    for name in left_out | copied:
        path = folders.live / RUNS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    folders.back_up()
    held = files(folders.kept / "objects" / RUNS).keys()
    assert held >= copied
    assert not held & left_out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"BACKUP_NAME": "20200101T000000Z.db"}, "20200101T000000Z.db"),
        ({"ESPALIER_BACKUPS": "s3://espalier-backup/none"}, "no backup in s3://"),
        ({"MLFLOW_BACKEND_STORE_URI": "postgresql://h/d"}, "kind of database"),
        ({"MLFLOW_BACKEND_STORE_URI": "mysql://h/d"}, "neither"),
    ],
)
def test_a_restore_is_refused_before_anything_is_written(folders, changes, message):
    folders.back_up()
    lose(folders)
    done = folders.run("restore.sh", **changes)
    assert done.returncode == 2
    assert message in done.stderr
    assert not folders.live.exists()
    assert not folders.database.exists()


def test_no_database_is_replaced_under_a_running_server(folders):
    folders.back_up()
    with serving(Server(Handler)) as server:
        done = folders.run("restore.sh", MLFLOW_TRACKING_URI=server.address)
    assert done.returncode == 2
    assert "Stop it" in done.stderr


def test_a_damaged_database_is_no_backup(folders):
    folders.database.write_bytes(b"damaged" * 999)
    done = folders.run("backup.sh")
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert not (folders.kept / "databases").exists()
