"""Another version is installed and taken back, while a run computes and the champion is asked."""

import copy
import json
import threading
import time

import httpx2
import pytest

from espalier.chain import CHAIN
from espalier.cluster.objects.serving import DEPLOYMENT
from tests.cluster import objects, parts
from tests.cluster.chain import ClusterRun
from tests.cluster.images import PIPELINE as IMAGE
from tests.cluster.parts import kubectl
from tests.cluster.places import ClusterError, places
from tests.cluster.serving import CONTROLLER, answered, forwarded
from tests.cluster.test_serving import (  # noqa: F401 (pytest finds fixtures by name)
    MODEL,
    bench,
    deployment,
    force,
    note,
    wait_for,
)
from tests.unit.k8s.allowed_verbs import PIPELINE
from tests.unit.k8s.rendering import containers, pod_templates

NEXT = f"{IMAGE}-next"
"""The same image under another tag, as a later version has one."""
ROLLED = (DEPLOYMENT, CONTROLLER, "espalier-mlflow")
ROLL_S, STAGE_S = 300, 600
_LONGER = ("policy.prestage.steps=1600", "training.steps=60")
"""So that the run is still there on the way back."""


def ask(*arguments, **given):
    done = kubectl(places(), f"--namespace={PIPELINE}", *arguments, **given)
    if done.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def install(image):
    """Apply the manifests with this image, as an upgrade does, and wait for the roll-outs."""
    found = copy.deepcopy(objects.rendered(places(), objects.OVERLAY))
    for pod in pod_templates(found):
        for container in containers(pod.spec):
            if container["image"] == IMAGE:
                container["image"] = image
    for item in found:
        if item["kind"] == "Deployment":  # as many pods as there are: others sleep in these tests
            name = f"deployment/{item['metadata']['name']}"
            item["spec"]["replicas"] = int(ask("get", name, "--output=jsonpath={.spec.replicas}"))
        if item["kind"] == "CronJob":
            item["spec"]["suspend"] = True
    objects.apply(places(), found)
    for name in ROLLED:
        ask("rollout", "status", f"deployment/{name}", f"--timeout={ROLL_S}s")
        path = "--output=jsonpath={.spec.template.spec.containers[0].image}"
        assert ask("get", f"deployment/{name}", path) == image


class Asking:
    """Somebody who asks the champion all the time, by its Service."""

    def __init__(self):
        address = ask("get", "service", DEPLOYMENT, "--output=jsonpath={.spec.clusterIP}")
        self._url = f"http://{address}:8000"
        self._headers = {"authorization": f"Bearer {objects.serving_key(places())}"}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.statuses, self.faults = [], []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _ask(self):
        asked = {"model": MODEL, "prompt": [20, 21], "max_tokens": 2}
        while not self._ended.wait(0.3):
            try:
                answer = httpx2.post(
                    f"{self._url}/v1/completions", json=asked, headers=self._headers, timeout=60
                )
                self.statuses.append(answer.status_code)
            except httpx2.HTTPError as error:
                self.faults.append(f"{time.monotonic():.1f} {error!r}")


class Running(threading.Thread):
    """The chain, a Job after the other, in a thread of its own."""

    def __init__(self):
        super().__init__()
        self.run_ = ClusterRun(places(), "smoke", _LONGER)
        self.stage, self.jobs, self.fault = None, [], None

    def run(self):
        try:
            for link in CHAIN:
                self.stage = link.name
                self.jobs.append(self.run_.start(link.name))
                self.run_.wait(link.name, self.jobs[-1], STAGE_S)
        except ClusterError as error:
            self.fault = error
        self.stage = None

    def pods(self):
        """Name of each pod of the run, with whether it was ended from outside."""
        pods = json.loads(ask("get", "pods", "--output=json"))["items"]
        of_jobs = [
            pod for pod in pods if pod["metadata"].get("labels", {}).get("job-name") in self.jobs
        ]
        return {
            pod["metadata"]["name"]: any(
                entry["type"] == "DisruptionTarget" for entry in pod["status"].get("conditions", ())
            )
            for pod in of_jobs
        }


def until(condition):
    end = time.monotonic() + STAGE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.5)


@pytest.mark.slow
def test_an_upgrade_and_back_disturbs_nobody(own_cluster, bench, deployment):  # noqa: F811
    tagged = parts.ctr(places(), "images", "tag", "--force", IMAGE, NEXT)
    assert tagged.returncode == 0, tagged.stderr
    version = bench.register(0.6)
    force(bench, version)
    wait_for(lambda found: note(found, "last-good") == version, deployment)
    running = Running()
    with Asking() as asking:
        running.start()
        until(lambda: len(running.jobs) > 1)  # a stage has ended, another is under way
        install(NEXT)
        at_upgrade = running.stage
        until(lambda: running.stage != at_upgrade)
        at_return = running.stage
        assert at_return is not None, "the run had ended before the way back"
        install(IMAGE)
        running.join()
    assert running.fault is None, running.fault
    assert asking.faults == []
    assert set(asking.statuses) == {200}
    # one pod a stage: none was killed, and none was tried again
    assert len(running.pods()) == len(CHAIN)
    assert not any(running.pods().values())
    with forwarded(DEPLOYMENT, 8000) as url:
        assert answered(places(), url, MODEL) == version
    print(
        f"upgraded during {at_upgrade}, back during {at_return}; "
        f"{len(asking.statuses)} answers meanwhile"
    )
