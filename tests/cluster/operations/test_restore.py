"""The restore drill: MLflow's database and bucket are lost, and the champion is served again."""

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
from tests.cluster.chain import run_chain
from tests.cluster.parts import kubectl
from tests.cluster.places import ClusterError, places
from tests.cluster.serving import answered, awake, forwarded, outside, wait_until_served
from tests.unit.k8s.allowed_verbs import PIPELINE

MODEL = "espalier-search-agent"
"""That the controller of k8s/ follows."""
BUCKET = "espalier-mlflow"
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


def lose_everything(folder):
    """MLflow's database with its volume's other files, and its bucket with all objects."""
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
    s3 = Minio(
        urlsplit(os.environ["AWS_ENDPOINT_URL_S3"]).netloc,
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        secure=False,
    )
    names = [item.object_name for item in s3.list_objects(BUCKET, recursive=True)]
    assert names
    for name in names:
        s3.remove_object(BUCKET, name)
    s3.remove_bucket(BUCKET)
    return len(names)


@pytest.mark.slow
def test_a_lost_mlflow_comes_back_with_its_champion(own_cluster):
    run_chain(places(), print, overrides=(f'registry.model_name="{MODEL}"',))
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
        num_lost = lose_everything(own_cluster)
        is_restored, said = run_job("espalier-restore")
        assert is_restored, said
        assert f"{num_lost} to write" in said, said
        print(said)
        objects.wake(places(), "espalier-mlflow", timeout_s=SERVERS_S)
        listed = json.loads(outside("versions", MODEL, "--json"))
        assert [v["version"] for v in listed if "champion" in v["aliases"]] == [version]
        # a pod that has to read the policy anew, from what came back
        ask("delete", "pod", "--selector=app.kubernetes.io/name=espalier-serving", "--wait")
        ask("rollout", "status", f"deployment/{DEPLOYMENT}", f"--timeout={SERVERS_S}s")
        with forwarded(DEPLOYMENT, 8000) as url:
            assert answered(places(), url, MODEL) == version
        print(f"backup, loss, restore and serving: {time.monotonic() - began:.0f} s")
