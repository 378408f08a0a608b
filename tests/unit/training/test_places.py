"""Where training finds its other processes."""

from espalier.determinism import RAY_DRIVER_VARIABLE
from espalier.training.local_companions import local_companions
from espalier.training.places import companions_here
from espalier.training.ray_nodes import ray_companions


def test_training_has_its_companions_on_all_nodes_where_a_ray_job_started_it(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert companions_here({}) is local_companions
    on_nodes = companions_here({RAY_DRIVER_VARIABLE: "1"})
    assert on_nodes.func is ray_companions
    assert on_nodes.keywords["environment"]["HF_HUB_OFFLINE"] == "1"
