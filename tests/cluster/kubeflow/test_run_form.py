"""Fields of the run form: what becomes of them, and of wrong ones."""

import pytest

from espalier.chain import STAGES
from espalier.orchestration.pipelines import form_defaults
from espalier.steps.profiles import resolved_profile
from tests.cluster.kubeflow import form
from tests.cluster.kubeflow.runs import SETTINGS, of_runs, tasks


@pytest.mark.slow
def test_stages_read_what_the_form_says(finished, manifests):
    said = resolved_profile(
        "smoke",
        seed=7,
        overrides=form.TYPED["overrides"],
        form={"training_steps": "2", "learning_rate": "0.0005"},
    )
    assert finished["runtime_config"]["parameters"]["profile"] == "smoke"
    assert {one["seed"] for one in manifests.values()} == {7}
    found = {one["producer"]: one["config_digest"] for one in manifests.values()}
    assert found == {name: stage.digest(said) for name, stage in STAGES.items()}


@pytest.mark.slow
def test_a_wrong_name_in_the_form_is_explained(kubeflow, version):
    wrong = form.request(kubeflow, version, "wrong", form.TYPED | {"profile": "smokee"})
    run_id = kubeflow.post("runs", wrong)["run_id"]
    run = kubeflow.wait(run_id, within_s=600)
    assert run["state"] == "FAILED"
    assert tasks(run)["resolve-profile"] == "FAILED"
    said = of_runs("show", run_id)
    assert "error: resolve_profile: smokee: no such profile; did you mean smoke?" in said


@pytest.mark.slow
def test_a_form_that_nobody_filled_in_is_sent(kubeflow, version):
    sent = form.request(kubeflow, version, "as it is", {})["runtime_config"]["parameters"]
    # a field is left as the pipeline was compiled, and an empty one changes nothing
    assert {name: value for name, value in sent.items() if value != ""} == form_defaults(
        "laptop", SETTINGS
    )


@pytest.mark.slow
def test_text_for_a_number_is_refused(kubeflow, version):
    with pytest.raises(form.RefusedByForm, match=r"seed: 'seven' is no NUMBER_INTEGER"):
        form.request(kubeflow, version, "wrong", form.TYPED | {"seed": "seven"})
    sent = form.request(kubeflow, version, "wrong", form.TYPED)
    sent["runtime_config"]["parameters"]["seed"] = "seven"
    refused = kubeflow.client.post("/apis/v2beta1/runs", json=sent)
    assert refused.status_code == 400
    assert "input parameter seed requires type double or integer" in refused.text
