"""Kubeflow Trainer: SFT and GRPO as TrainJobs, suspended and resumed by Kueue."""

import os

import pytest
import yaml

from espalier.chain import STAGES
from espalier.storage import open_location
from tests.cluster import objects
from tests.cluster.images import PIPELINE as IMAGE
from tests.cluster.neighbours import runs
from tests.cluster.neighbours.conftest import CLAIM, URGENT
from tests.cluster.neighbours.test_kueue import ends, somebodys_job, workload_of
from tests.cluster.parts import kubectl
from tests.cluster.places import REPOSITORY
from tests.unit.k8s.allowed_verbs import PIPELINE

AS_TRAIN_JOB = ('kubernetes.trainer="trainjob"', 'kubernetes.resources.cpu_request="400m"')
ON_TWO_NODES = (
    *AS_TRAIN_JOB,
    "kubernetes.nodes=2",
    f'kubernetes.workspace_claim="{CLAIM}"',
    "training.processes=2",
    "threads=1",
)
STEPS = 12
_ENDED_S = 900
_INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture(scope="module")
def runtimes(need):
    """The ClusterTrainingRuntimes of k8s/trainer, with the image that this cluster has."""
    here = need("trainer", "jobset")
    folder = here.state / "neighbours" / "runtimes"
    folder.mkdir(parents=True, exist_ok=True)
    up = "../" * (len(folder.parts) - 1)
    name, _, tag = IMAGE.rpartition(":")
    described = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "components": [f"{up}{(REPOSITORY / 'k8s' / 'trainer').relative_to('/')}"],
        "images": [{"name": "espalier-cpu", "newName": name, "newTag": tag}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(described))
    objects.apply(here, objects.rendered(here, folder))
    return here


def _train_job(stage):
    (job,) = runs.listed(
        stage.places, "trainjobs.trainer.kubeflow.org", f"espalier.dev/run={stage.run_id}"
    ) or [None]
    return job


def _progress(stage):
    job = _train_job(stage)
    return job.get("status", {}).get("trainerStatus", {}) if job else {}


@pytest.mark.parametrize("stage", ["warm_start", "train"])
def test_a_stage_runs_as_a_train_job_to_its_end(runtimes, inputs, stage):
    seen, told = runs.Moments(), []
    work = runs.Stage(
        runtimes, inputs, stage, overrides=(*AS_TRAIN_JOB, "training.steps=4")
    ).start()
    try:
        runs.until(work.log, lambda: _train_job(work), within_s=240)
        seen("the TrainJob exists")

        def is_over():
            told.append(_progress(work).get("progressPercentage"))
            return work.is_complete

        runs.until(work.log, is_over, within_s=_ENDED_S)
        seen("the launching Job is complete")
        job = _train_job(work)
        assert runs.condition(job, "Complete")["status"] == "True"
        assert job["status"]["trainerStatus"]["progressPercentage"] == 100, job["status"]
        assert open_location(f"{work.uri}/{STAGES[stage].output}", os.environ).manifest()
    finally:
        work.delete()


def _nodes(stage):
    """Names of the pods of its TrainJob, by the index of their node."""
    pods = runs.listed(
        stage.places,
        "pods",
        f"espalier.dev/run={stage.run_id},{_INDEX},jobset.sigs.k8s.io/jobset-name",
    )
    return {
        int(pod["metadata"]["labels"][_INDEX]): pod["metadata"]["name"]
        for pod in pods
        if pod["status"]["phase"] in ("Pending", "Running")
        and "deletionTimestamp" not in pod["metadata"]
    }


@pytest.mark.parametrize("lost", [None, 0, 1])
def test_training_on_two_nodes_outlives_a_lost_one(runtimes, shared_claim, inputs, lost):
    seen, steps = runs.Moments(), 4 if lost is None else 24
    work = runs.Stage(
        runtimes, inputs, overrides=(*ON_TWO_NODES, f"training.steps={steps}")
    ).start()
    try:
        runs.until(work.log, lambda: len(_nodes(work)) == 2, within_s=240)
        seen("both pods exist")
        before = _nodes(work)
        if lost is not None:
            runs.until(work.log, lambda: work.checkpoint, within_s=_ENDED_S)
            seen("training has its first checkpoint")
            kubectl(
                work.places, f"--namespace={PIPELINE}", "delete", "pod", before[lost],
                "--grace-period=0", "--force",
            )  # fmt: skip
            seen(f"the pod of node {lost} is deleted")
            runs.until(work.log, lambda: _nodes(work).get(0) not in (None, before[0]), within_s=120)
            seen("the first node is there again")
        runs.until(work.log, lambda: work.is_complete, within_s=_ENDED_S)
        seen("the launching Job is complete")
        assert work.steps() == list(range(1, steps + 1))
        assert runs.condition(_train_job(work), "Complete")["status"] == "True"
    finally:
        work.delete()


def test_a_preempted_train_job_loses_no_step(runtimes, queues, inputs):
    seen = runs.Moments()
    work = runs.Stage(
        queues,
        inputs,
        overrides=(*AS_TRAIN_JOB, 'kubernetes.queue="espalier"', f"training.steps={STEPS}"),
    ).start()
    try:
        runs.until(work.log, lambda: work.checkpoint, within_s=_ENDED_S)
        seen("training has its first checkpoint")
        runs.create(queues, somebodys_job(URGENT, seconds=5, cpu="600m", priority=URGENT))
        runs.until("it is suspended", lambda: _train_job(work)["spec"].get("suspend"), within_s=60)
        seen("the TrainJob is suspended")
        evicted = workload_of(queues, _train_job(work)["metadata"]["name"])
        assert runs.condition(evicted, "Evicted")["reason"] == "Preempted"
        runs.until("the urgent Job ends", lambda: ends(queues, URGENT), within_s=240)
        seen("the urgent Job ended")
        runs.until(work.log, lambda: work.is_complete, within_s=_ENDED_S)
        seen("training ended")
        assert work.steps() == list(range(1, STEPS + 1))
    finally:
        work.delete()
        kubectl(queues, f"--namespace={PIPELINE}", "delete", "job", URGENT, "--ignore-not-found")
