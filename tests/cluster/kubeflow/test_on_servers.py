"""A run whose episodes vLLM servers of the cluster sample, one of which is deleted meanwhile.

    ESPALIER_VLLM_PYTHON=PEERS/vllm/bin/python python -m tests.cluster kubeflow --sources DIR \\
        tests/cluster/kubeflow/test_on_servers.py -s
"""

import os

import pytest

from espalier.steps.profiles import named_profile
from tests.cluster import rollout
from tests.cluster.images import ROLLOUT
from tests.cluster.kubeflow import servers
from tests.cluster.kubeflow.runs import ENDED, log_of, pod_of, submitted, tasks, wait_until
from tests.cluster.network import NODE_ADDRESS
from tests.cluster.parts import ctr
from tests.cluster.places import places

KUBEFLOWS_S3 = {
    "AWS_ENDPOINT_URL_S3": f"http://{NODE_ADDRESS}:{servers.S3_PORT}",
    "AWS_ACCESS_KEY_ID": servers.ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": servers.SECRET_KEY,
}


@pytest.mark.slow
def test_a_run_samples_on_servers_one_of_which_is_lost(kubeflow):
    here = places()
    if ROLLOUT not in ctr(here, "images", "list", "--quiet").stdout:
        pytest.skip("the cluster was started without ESPALIER_VLLM_PYTHON")
    key, settings = rollout.install(here), rollout.settings()
    run_id = submitted(*settings, profile=rollout.PROFILE, small=(), name="on-servers")

    def state(stage):
        return tasks(kubeflow.run(run_id)).get(stage)

    try:
        wait_until(lambda: state("prepare-policy") in ENDED, run_id, rollout.STAGE_S)
        assert state("prepare-policy") == "SUCCEEDED"
        rollout.start_servers(here, print)
        pod = pod_of(run_id, "train", within_s=rollout.STAGE_S)
        seen, deleted = rollout.watch(here, lambda: state("train") in ENDED, key, print)
        said = rollout.about_servers(log_of(pod))
        ended = kubeflow.wait(run_id, within_s=rollout.STAGE_S)
    finally:
        rollout.stop_servers(here)
    assert ended["state"] == "SUCCEEDED", tasks(ended)
    version, gate = rollout.promoted(named_profile(rollout.PROFILE, settings).model_name)
    found = rollout.trained(trained_policy(run_id), os.environ | KUBEFLOWS_S3)
    outcome = rollout.Outcome(seen, deleted, said, *found, version, gate)
    print(*outcome.lines(), sep="\n")
    assert outcome.is_well, outcome


def trained_policy(run_id):
    """Where Kubeflow's launcher put what the run has trained."""
    found = servers.store().list_objects(servers.BUCKET, recursive=True)
    names = [one.object_name for one in found]
    ending = "/trained_policy/manifest.json"
    (manifest,) = [name for name in names if run_id in name and name.endswith(ending)]
    return f"s3://{servers.BUCKET}/{manifest.removesuffix('/manifest.json')}"
