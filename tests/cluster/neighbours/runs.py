"""Trainings on the cluster: one stage of a small run, whose inputs were made beforehand."""

import dataclasses
import os
import secrets
import time
from pathlib import Path

import yaml

from espalier.chain import STAGES
from espalier.cluster.objects.job import stage_job
from espalier.orchestration.step_runner import StepOrder
from espalier.steps.profiles import named_profile
from espalier.storage import open_location
from tests.cluster import objects
from tests.cluster.chain import BUCKET, ON_ONE_NODE, RUNNER
from tests.cluster.faults import history_of
from tests.cluster.parts import kubectl
from tests.unit.k8s.allowed_verbs import PIPELINE

SMALL = (
    "policy.prestage.steps=40",
    "warm_start.steps=4",
    "warm_start.evaluate_every=4",
    "training.evaluate_every=2",
    "training.tasks_per_step=2",
    "training.dev_questions=10",
    "synthesis.train_tasks=400",
    "synthesis.trajectories=40",
    "curriculum.candidates=20",
)
"""Of the smoke profile: every stage does its work, and little of it."""
POLL_S = 0.5


class Stage:
    """One stage of a run of its own, from inputs that are in S3 already."""

    def __init__(self, places, inputs, stage="train", *, overrides=()):
        """Resolve the profile; nothing is created yet.

        Its seed is its own, since a stage that would do the work of an earlier one fetches that.

        Args:
            places: of the cluster.
            inputs: URI below which the inputs lie.
            stage: its name.
            overrides: further settings of the profile.
        """
        self.places, self.stage, self.job = places, stage, ""
        seed = secrets.randbelow(10**6)
        self.run_id = f"next-{seed}"
        self.uri = f"s3://{BUCKET}/runs/{self.run_id}"
        profile = named_profile("smoke", (*ON_ONE_NODE, *SMALL, f"seed={seed}", *overrides))
        self.order = StepOrder(
            stage=stage,
            profile=profile,
            run_uri=self.uri,
            workspace=Path("/s3"),
            inputs={name: f"{inputs}/{name}" for name in STAGES[stage].inputs},
        )

    def manifest(self):
        """The Job of the stage, as `espalier.cluster` makes it."""
        return stage_job(
            self.stage,
            self.order.command(),
            run_id=self.run_id,
            settings=self.order.profile.kubernetes,
            environment={"MLFLOW_EXPERIMENT_NAME": "neighbours"},
        )

    def start(self):
        """Create the Job, as the account that runners have."""
        made = self.manifest()
        as_runner = f"--as={RUNNER}"
        done = kubectl(
            self.places, f"--namespace={PIPELINE}", as_runner, "create", "--filename=-",
            stdin=yaml.safe_dump(made),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.job = made["metadata"]["name"]
        return self

    @property
    def state(self):
        """The Job as the API server has it."""
        return found(self.places, "job", self.job)

    @property
    def is_complete(self):
        """Whether it has succeeded; one that failed fails the test, with the end of its log."""
        conditions = {
            one["type"] for one in self.state["status"].get("conditions", ())
            if one["status"] == "True"
        }  # fmt: skip
        assert "Failed" not in conditions, self.log()
        return "Complete" in conditions

    def pods(self):
        """Its pods, those that were lost as well while they are there."""
        return listed(self.places, "pods", f"job-name={self.job}")

    def log(self, *, lines=40):
        """The end of what its pods said."""
        said = kubectl(
            self.places, f"--namespace={PIPELINE}", "logs", f"job/{self.job}", f"--tail={lines}"
        )
        return (said.stdout or said.stderr).strip()

    @property
    def checkpoint(self):
        """The manifest of the newest checkpoint, while one is kept."""
        return open_location(self.order.checkpoints, os.environ).manifest()

    def steps(self):
        """Numbers of the steps of the training that was published."""
        return history_of(self.uri).column("step").to_pylist()

    def delete(self):
        """Delete the Job and its pods."""
        if self.job:
            kubectl(
                self.places, f"--namespace={PIPELINE}", "delete", "job", self.job,
                "--ignore-not-found", "--wait=false",
            )  # fmt: skip


def publish_inputs(folder, uri):
    """Put the artifacts of a finished run where its stages on the cluster read them."""
    names = {name for stage in ("warm_start", "train") for name in STAGES[stage].inputs}
    for name in sorted(names):
        open_location(f"{uri}/{name}", os.environ).publish(Path(folder) / name)


def until(what, holds, *, within_s):
    """Wait for the first true value of `holds`, and return it.

    Args:
        what: for the message, or what gives it.
        holds: asked again and again.
        within_s: seconds that it may take.
    """
    end = time.monotonic() + within_s
    while not (value := holds()):
        assert time.monotonic() < end, (
            f"not within {within_s} s: {what() if callable(what) else what}"
        )
        time.sleep(POLL_S)
    return value


def found(places, kind, name, namespace=PIPELINE):
    """An object, or None."""
    done = kubectl(places, f"--namespace={namespace}", "get", kind, name, "--output=json")
    if "NotFound" in done.stderr or "not found" in done.stderr:
        return None
    assert done.returncode == 0, done.stderr
    return yaml.load(done.stdout, Loader=yaml.CSafeLoader)


def listed(places, kind, selector="", namespace=PIPELINE):
    """Objects that a selector matches."""
    chosen = (f"--selector={selector}",) if selector else ()
    done = kubectl(places, f"--namespace={namespace}", "get", kind, *chosen, "--output=json")
    assert done.returncode == 0, done.stderr
    return yaml.load(done.stdout, Loader=yaml.CSafeLoader)["items"]


def create(places, manifest):
    """Create an object as the administrator."""
    done = kubectl(places, "create", "--filename=-", stdin=yaml.safe_dump(manifest))
    assert done.returncode == 0, done.stderr


def refusal(places, manifest):
    """What the API server says to an object that it does not take; "" where it takes it."""
    done = kubectl(
        places, "create", "--dry-run=server", "--filename=-", stdin=yaml.safe_dump(manifest)
    )
    return done.stderr.strip() if done.returncode else ""


def condition(item, kind):
    """A condition of an object's status, or {}."""
    conditions = item.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == kind), {})


@dataclasses.dataclass
class Moments:
    """Moments of a test, in seconds since it began."""

    began: float = dataclasses.field(default_factory=time.monotonic)
    at: dict[str, float] = dataclasses.field(default_factory=dict)

    def __call__(self, what):
        """Note a moment, and print it."""
        self.at[what] = round(time.monotonic() - self.began, 1)
        print(f"{self.at[what]:8.1f} s  {what}", flush=True)


def apply(places, *manifests):
    """Apply objects as the administrator."""
    objects.apply(places, list(manifests))
