"""The restore drill: MLflow's database and files are lost, and the champion is served again."""

import json
import os
import secrets
import shutil
import time
from urllib.parse import urlsplit

import pytest
from minio import Minio

from espalier.cluster.objects.serving import DEPLOYMENT
from tests.cluster import objects
from tests.cluster.chain import BUCKET, run_chain
from tests.cluster.parts import kubectl
from tests.cluster.places import ClusterError, places
from tests.cluster.serving import answered, awake, forwarded, outside, wait_until_served
from tests.unit.k8s.allowed_verbs import PIPELINE

MODEL = "espalier-search-agent"
"""That the controller of k8s/ follows."""
FILES = "espalier-mlflow"
"""MLflow's bucket; that of the runs stays, with what other tests keep there."""
JOB_S, SERVERS_S = 240, 300


def ask(*arguments):
    done = kubectl(places(), f"--namespace={PIPELINE}", *arguments)
    if done.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def run_job(cronjob):
    """As an administrator does by hand: whether it succeeded, and what it said."""
    name = f"drill-{secrets.token_hex(3)}"
    ask("create", "job", name, f"--from=cronjob/{cronjob}")
    end = time.monotonic() + JOB_S
    while time.monotonic() < end:
        job = json.loads(ask("get", "job", name, "--output=json"))
        ended = {entry["type"] for entry in job["status"].get("conditions", ())}
        if ended & {"Complete", "Failed"}:
            return "Complete" in ended, ask("logs", f"job/{name}")
        time.sleep(1.0)
    raise ClusterError(f"{name} did not end in {JOB_S} s: {ask('describe', 'job', name)}")


@pytest.fixture
def s3():
    return Minio(
        urlsplit(os.environ["AWS_ENDPOINT_URL_S3"]).netloc,
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        secure=False,
    )


def stored(s3, run):
    """(bucket, name) of all objects of MLflow and of a run, but for its checkpoints."""
    below = run.uri.removeprefix(f"s3://{BUCKET}/")
    return {
        (bucket, item.object_name)
        for bucket, prefix in ((FILES, ""), (BUCKET, f"{below}/"))
        for item in s3.list_objects(bucket, prefix=prefix, recursive=True)
        if bucket == FILES or "/checkpoint/" not in item.object_name
    }


def lose_everything(folder, s3, lost):
    """MLflow's database with its volume's other files, its bucket, and a run's objects."""
    ask("scale", "deployment/espalier-mlflow", "--replicas=0")
    end = time.monotonic() + JOB_S
    while ask("get", "pods", "--selector=app.kubernetes.io/name=espalier-mlflow", "--output=name"):
        assert time.monotonic() < end, "MLflow's pod does not end"
        time.sleep(1.0)
    volume = folder / "volumes" / "espalier-mlflow"
    held = sorted(path.name for path in volume.iterdir())
    assert "mlflow.db" in held
    for path in volume.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for bucket, name in lost:
        s3.remove_object(bucket, name)
    s3.remove_bucket(FILES)


@pytest.mark.slow
def test_a_lost_mlflow_comes_back_with_its_champion(own_cluster, s3, tmp_path):
    run, _ = run_chain(places(), print, overrides=(f'registry.model_name="{MODEL}"',))
    promotion = json.loads(outside("promote", MODEL, "--force", "a restore drill", "--json"))
    version = promotion["version"]
    with awake(places()):
        wait_until_served(places(), version)
        began = time.monotonic()
        is_made, said = run_job("espalier-backup")
        assert is_made, said
        print(said)
        # under a server that answers nothing is replaced
        is_restored, said = run_job("espalier-restore")
        assert not is_restored
        assert "Stop it" in said
        lost = stored(s3, run)
        assert {bucket for bucket, _ in lost} == {FILES, BUCKET}
        lose_everything(own_cluster, s3, lost)
        is_restored, said = run_job("espalier-restore")
        assert is_restored, said
        assert stored(s3, run) == lost
        print(said)
        objects.wake(places(), "espalier-mlflow", timeout_s=SERVERS_S)
        listed = json.loads(outside("versions", MODEL, "--json"))
        assert [v["version"] for v in listed if "champion" in v["aliases"]] == [version]
        # each checks every file against its manifest
        outside("load", f"{MODEL}@champion", "--out", str(tmp_path / "champion"))
        for artifact in ("trained_policy", "evaluation"):
            uri = f"{run.uri}/{artifact}"
            outside("data", "fetch", uri, "--out", str(tmp_path / artifact))
        # a pod that has to read the policy anew, from what came back
        ask("delete", "pod", "--selector=app.kubernetes.io/name=espalier-serving", "--wait")
        ask("rollout", "status", f"deployment/{DEPLOYMENT}", f"--timeout={SERVERS_S}s")
        with forwarded(DEPLOYMENT, 8000) as url:
            assert answered(places(), url, MODEL) == version
        print(f"backup, loss, restore and serving: {time.monotonic() - began:.0f} s")
