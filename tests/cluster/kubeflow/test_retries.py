"""What is tried again, and for how long: an hour of Kubeflow's settings is a minute here.

The steps are placed as those of espalier's pipeline, and end as they do.
"""

import json
import os
from datetime import datetime
from functools import partial

import pytest
from kfp import compiler, dsl

from espalier.cluster.kubeflow import KubeflowApi, start_run
from espalier.config import ImagesConfig, KubeflowConfig, KubernetesConfig
from espalier.steps.placement import place_pod
from tests.cluster.images import PIPELINE as IMAGE
from tests.cluster.kubeflow.runs import ACCOUNT, objects_of, of_runs, tasks
from tests.unit.k8s.allowed_verbs import PIPELINE

_HOUR_S = 60
_ATTEMPT_S = 75
"""Of an attempt, after which it is later than that hour."""
_WITHIN_S = 600
SETTINGS = KubernetesConfig(
    images=ImagesConfig(cpu=IMAGE, train=IMAGE),
    retries=1,
    deadline_s=KubernetesConfig().deadline_s * _HOUR_S // 3600,
    kubeflow=KubeflowConfig(
        namespace=PIPELINE,
        service_account=ACCOUNT,
        experiment="retries",
        pipeline="retries",
        retry_pause_s=1,
    ),
)
_AWAY = f"""
import time
from espalier.records import StorageAwayError
from espalier.steps.refusing import FailureMessage
time.sleep({_ATTEMPT_S})
with FailureMessage("later"):
    raise StorageAwayError("the store is away.")
"""
_REFUSES = """
from espalier.records import ArtifactError
from espalier.steps.refusing import FailureMessage
with FailureMessage("refuses"):
    raise ArtifactError("a row is refused.")
"""


@dsl.container_component
def later():
    return dsl.ContainerSpec(IMAGE, ["python", "-c", _AWAY])


@dsl.container_component
def refuses():
    return dsl.ContainerSpec(IMAGE, ["python", "-c", _REFUSES])


def _later(*, with_kubeflows_hour=False):
    def pipeline():
        task = later().set_caching_options(enable_caching=False)
        place_pod(task, SETTINGS)
        if with_kubeflows_hour:  # what kfp states where nothing is said
            task.set_retry(
                SETTINGS.retries,
                backoff_duration="1s",
                backoff_factor=2,
                backoff_max_duration=f"{_HOUR_S}s",
            )

    return pipeline


def _refuses():
    def pipeline():
        place_pod(refuses().set_caching_options(enable_caching=False), SETTINGS)

    return pipeline


@pytest.fixture(scope="module")
def runs(kubeflow):
    """Name -> the run, as it ended; all are run at once."""
    wanted = {
        "later": _later(),
        "later-as-shipped": _later(with_kubeflows_hour=True),
        "refuses": _refuses(),
    }
    with KubeflowApi(SETTINGS.kubeflow, os.environ) as api:
        ids = {
            name: start_run(api, name, partial(_compile_to, pipeline))
            for name, pipeline in wanted.items()
        }
    return {name: kubeflow.wait(run_id, within_s=_WITHIN_S) for name, run_id in ids.items()}


def _compile_to(pipeline, path):
    compiler.Compiler().compile(dsl.pipeline(name="retries")(pipeline), str(path))
    return {}


def _pods(run, stage):
    return [
        pod
        for pod in objects_of(run["run_id"])
        if pod["metadata"]["labels"].get("espalier.dev/stage") == stage
    ]


@pytest.mark.slow
def test_a_step_is_retried_after_more_than_an_hour(runs):
    run = runs["later"]
    first, *again = sorted(_pods(run, "later"), key=_began)
    assert len(again) == SETTINGS.retries, tasks(run)
    assert _message(first).startswith("try again: error: later: the store is away"), (
        "75 of the step"
    )
    assert _began(again[0]) - _began(first) > _HOUR_S


@pytest.mark.slow
def test_a_longest_duration_of_an_hour_forbids_that(runs):
    """What Kubeflow gives a step without one: this is why it is stated."""
    run = runs["later-as-shipped"]
    (pod,) = _pods(run, "later")
    assert _message(pod).startswith("try again: "), "it asks for another try, as the other does"
    (workflow,) = objects_of(run["run_id"], "workflows")
    said = {node.get("message") for node in workflow["status"]["nodes"].values()}
    assert "Max duration limit exceeded" in said


@pytest.mark.slow
def test_a_refusal_is_not_tried_again(runs):
    run = runs["refuses"]
    assert run["state"] == "FAILED", tasks(run)
    (pod,) = _pods(run, "refuses")
    assert _message(pod) == "error: refuses: a row is refused."
    said = json.loads(of_runs("show", run["run_id"], "--json"))
    assert "a row is refused." in json.dumps(said)


def _main(pod):
    (status,) = [one for one in pod["status"]["containerStatuses"] if one["name"] == "main"]
    return status["state"]["terminated"]


def _began(pod):
    return datetime.fromisoformat(_main(pod)["startedAt"]).timestamp()


def _message(pod):
    return _main(pod).get("message", "")
