"""The whole chain on the cluster: from the embedded data to a registered model, a Job a stage."""

import os

import pytest

from espalier.chain import CHAIN
from espalier.storage import open_location
from tests.cluster.chain import RUNNER, run_chain
from tests.cluster.parts import kubectl
from tests.cluster.places import places
from tests.cluster.serving import outside
from tests.unit.k8s.allowed_verbs import PIPELINE

WEIGHTS = "model.safetensors"


@pytest.mark.slow
def test_every_stage_runs_as_a_job_writing_to_s3(own_cluster, tmp_path):
    run, times = run_chain(places(), print)
    assert [stage.stage for stage in times] == [link.name for link in CHAIN]
    for link in CHAIN:
        place = open_location(f"{run.uri}/{link.output}", os.environ)
        manifest = place.manifest()
        assert manifest is not None, link.name
        assert manifest.producer == link.name
    said = kubectl(
        places(), f"--namespace={PIPELINE}", f"--as={RUNNER}", "logs", f"job/{run.run_id}-register"
    )
    assert "espalier-smoke" in said.stdout, said.stdout + said.stderr
    _assert_loads_outside(run, tmp_path)


def _assert_loads_outside(run, folder):
    """Who reaches MLflow, and no S3, loads what training published there."""
    outside("load", f"{run.settings.model_name}@challenger", "--out", str(folder / "it"))
    open_location(f"{run.uri}/trained_policy", os.environ).fetch(folder / "trained")
    (trained,) = (folder / "trained").rglob(WEIGHTS)
    assert (folder / "it" / WEIGHTS).read_bytes() == trained.read_bytes()
