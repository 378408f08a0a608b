import os

import pytest

from espalier.determinism import TRACKING_FALLBACK, prepare_environment


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({TRACKING_FALLBACK: "http://ours:5000"}, "http://ours:5000"),
        ({TRACKING_FALLBACK: "http://ours:5000", "MLFLOW_TRACKING_URI": ""}, "http://ours:5000"),
        # set by Kubeflow's MLflow plugin, with the run that is there
        (
            {TRACKING_FALLBACK: "http://ours:5000", "MLFLOW_TRACKING_URI": "http://theirs"},
            "http://theirs",
        ),
    ],
)
def test_a_step_tracks_where_its_variables_say(monkeypatch, given, expected):
    monkeypatch.setattr(os, "environ", dict(given))
    prepare_environment()
    assert os.environ.get("MLFLOW_TRACKING_URI") == expected
