"""Kubeflow Trainer: SFT and GRPO as TrainJobs, suspended and resumed by Kueue."""

import os

import pytest
import yaml

from espalier.chain import STAGES
from espalier.storage import open_location
from tests.cluster import objects
from tests.cluster.images import PIPELINE as IMAGE
from tests.cluster.neighbours import runs
from tests.cluster.neighbours.conftest import URGENT
from tests.cluster.neighbours.test_kueue import ends, somebodys_job, workload_of
from tests.cluster.parts import kubectl
from tests.cluster.places import REPOSITORY
from tests.unit.k8s.allowed_verbs import PIPELINE

AS_TRAIN_JOB = ('kubernetes.trainer="trainjob"', 'kubernetes.resources.cpu_request="400m"')
STEPS = 12
_ENDED_S = 900


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
