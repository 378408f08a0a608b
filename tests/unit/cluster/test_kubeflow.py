import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.cluster import kubeflow as kubeflow_module
from espalier.cluster.kubeflow import KubeflowApi
from espalier.cluster.schedules import parsed_schedule, schedules
from espalier.config import KubeflowConfig
from espalier.records import ClusterError
from tests.factories.kubeflow_commands import done, espalier, kubeflow_at_hand, refused
from tests.fakes.kubeflow_stand_in import TOKEN

pytestmark = pytest.mark.slow  # compiles the pipeline

EVERY_SECOND, START = "* * * * * *", ("--start", "2026-03-04T00:00Z")
NIGHTLY = ("schedule", "create", "nightly", "--cron", "0 0 3 * * *", "--profile", "smoke")


@pytest.fixture
def kubeflow(monkeypatch):
    with kubeflow_at_hand(monkeypatch) as stand_in:
        yield stand_in


def connected(kubeflow):
    variables = {"KF_PIPELINES_ENDPOINT": kubeflow.endpoint, "KF_PIPELINES_TOKEN": TOKEN}
    return KubeflowApi(KubeflowConfig(), variables)


def with_schedules(kubeflow, *names):
    """As if these had been made before."""
    enabled = {"status": "ENABLED", "no_catchup": True}
    for number, name in enumerate(names):
        own = {"recurring_run_id": f"id-{number}", "display_name": name}
        kubeflow.schedules.append(own | enabled)


def test_a_run_is_started_with_the_forms_parameters(kubeflow):
    said = done("submit", "--profile", "smoke", "--set", "training.steps=2", "--set", "seed=7")
    (run,) = kubeflow.runs
    assert said.strip() == run["run_id"]
    overrides = "training.steps=2; seed=7"
    expected = {"profile": "smoke", "seed": 7, "overrides": overrides}
    assert run["runtime_config"]["parameters"] == expected
    assert run["pipeline_version_reference"]["pipeline_version_id"] == "version-0"
    assert {token for _, _, token in kubeflow.requests} == {TOKEN}


def test_an_equal_pipeline_is_uploaded_once_and_another_beside_it(kubeflow):
    for _ in range(2):
        done("submit", "--profile", "smoke")
    assert len(kubeflow.versions) == 1
    kubeflow.versions = [  # pages of others
        {"pipeline_version_id": f"o-{n}", "display_name": f"o-{n}"} for n in range(5)
    ] + kubeflow.versions
    done("submit", "--profile", "smoke", "--set", "kubernetes.retries=6")
    assert len(kubeflow.versions) == 7
    assert len(kubeflow.kept["/pipelines"]) == len(kubeflow.kept["/experiments"]) == 1


def test_namespace_and_account_of_the_profile_are_used(kubeflow):
    kubeflow.is_multi_user = True
    ours = ("--set", "kubernetes.kubeflow.namespace=team")
    done(*NIGHTLY, *ours, "--set", "kubernetes.kubeflow.service_account=espalier-trainer")
    (schedule,) = kubeflow.schedules
    assert (schedule["namespace"], schedule["service_account"]) == ("team", "espalier-trainer")
    assert kubeflow.kept["/experiments"][0]["namespace"] == "team"
    other = ("--set", "kubernetes.kubeflow.namespace=others")
    assert done("schedule", "list", "--json", *other) == "[]\n"
    assert len(json.loads(done("schedule", "list", "--json", *ours))) == 1


def test_a_schedule_runs_one_at_a_time_without_catchup(kubeflow):
    said = done(*NIGHTLY, "--start", "2126-03-02T00:00:00Z", "--end", "2126-04-01T00:00:00+02:00")
    (schedule,) = kubeflow.schedules
    assert said.strip() == schedule["recurring_run_id"]
    assert (schedule["max_concurrency"], schedule["no_catchup"]) == ("1", True)
    assert schedule["mode"] == "ENABLE"
    assert schedule["trigger"]["cron_schedule"] == {
        "cron": "0 0 3 * * *",
        "start_time": "2126-03-01T23:59:59+00:00",  # the first run is after it
        "end_time": "2126-03-31T22:00:00+00:00",
    }
    assert schedule["runtime_config"]["parameters"]["profile"] == "smoke"


def test_schedules_are_managed_by_name_or_id(kubeflow):
    with_schedules(kubeflow, "one", "two", "three")  # more than a page
    done("schedule", "pause", "three")
    done("schedule", "delete", "id-1")
    listed = {one["name"]: one["status"] for one in json.loads(done("schedule", "list", "--json"))}
    assert listed == {"one": "ENABLED", "three": "DISABLED"}


def paused(kubeflow, **changes):
    """A schedule that was made and paused; its record."""
    done(*NIGHTLY)
    done("schedule", "pause", "nightly")
    (record,) = kubeflow.schedules
    record |= changes
    return record


def test_a_resumed_schedule_is_an_equal_new_one(kubeflow):
    before = dict(paused(kubeflow, description="of the team"))
    result = espalier("schedule", "resume", "nightly")
    (after,) = kubeflow.schedules
    assert result.stdout.strip() == after["recurring_run_id"] != before["recurring_run_id"]
    assert after["recurring_run_id"] in result.stderr
    changed = {"recurring_run_id", "status", "mode", "description", "created_at", "updated_at"}
    assert {key for key in before if before[key] != after[key]} <= changed
    assert after["status"] == "ENABLED"
    assert after["description"].startswith("of the team (espalier: in place of")
    done("schedule", "pause", "nightly")
    done("schedule", "resume", "nightly")
    assert kubeflow.schedules[0]["description"].count("espalier") == 1
    unchanged = [dict(one) for one in kubeflow.schedules]
    espalier("schedule", "resume", "nightly")  # is not paused
    assert kubeflow.schedules == unchanged


@pytest.mark.parametrize("kind", [500, "drop"])
def test_an_interrupted_resume_is_completed_by_the_next(kubeflow, kind):
    before = paused(kubeflow)["recurring_run_id"]
    kubeflow.faults.append(("DELETE", "recurringruns", kind))
    message = refused("schedule", "resume", "nightly")
    after = kubeflow.schedules[1]["recurring_run_id"]
    assert before in message
    assert after in message
    assert [one["status"] for one in kubeflow.schedules] == ["DISABLED", "ENABLED"]
    assert done("schedule", "resume", "nightly").strip() == after
    assert [one["recurring_run_id"] for one in kubeflow.schedules] == [after]


def test_a_resume_whose_answer_is_lost_makes_no_second_schedule(kubeflow):
    before = paused(kubeflow)["recurring_run_id"]
    copy = kubeflow.schedules[0] | {
        "recurring_run_id": "made", "status": "ENABLED",
        "description": f"(espalier: in place of {before})",
    }  # fmt: skip
    kubeflow.schedules.append(copy)
    assert done("schedule", "resume", before).strip() == "made"
    assert [one["recurring_run_id"] for one in kubeflow.schedules] == ["made"]


def test_a_schedule_that_catches_up_is_enabled_until_its_end(kubeflow):
    record = paused(kubeflow, no_catchup=False)
    assert "every missed time" in espalier("schedule", "resume", "nightly").stderr
    assert kubeflow.schedules == [record]
    assert record["status"] == "ENABLED"
    done("schedule", "pause", "nightly")
    trigger = {"cron_schedule": {"cron": "0 0 3 * * *", "end_time": "2020-01-01T00:00:00Z"}}
    record |= {"no_catchup": True, "trigger": trigger}
    assert "2020-01-01" in refused("schedule", "resume", "nightly")
    assert len(kubeflow.schedules) == 1


def test_a_time_zone_is_written_in_that_of_kubeflow(kubeflow):
    result = espalier(*NIGHTLY, "--timezone", "Asia/Tokyo", "--start", "2126-03-02T00:00")
    assert "'0 0 18 * * *' in UTC" in result.stderr
    schedule = kubeflow.schedules[0]["trigger"]["cron_schedule"]
    assert schedule == {"cron": "0 0 18 * * *", "start_time": "2126-03-01T14:59:59+00:00"}


def test_daylight_saving_time_needs_kubeflows_own_zone(kubeflow):
    berlin = ("--timezone", "Europe/Berlin")
    assert "cronScheduleTimezone" in refused(*NIGHTLY, *berlin)
    assert "Mars/Olympus" in refused(*NIGHTLY, "--timezone", "Mars/Olympus")
    assert kubeflow.schedules == []
    done(*NIGHTLY, *berlin, "--set", "kubernetes.kubeflow.timezone=Europe/Berlin")
    assert kubeflow.schedules[0]["trigger"]["cron_schedule"]["cron"] == "0 0 3 * * *"


def test_where_there_are_several_users_a_namespace_is_needed(kubeflow):
    kubeflow.is_multi_user = True
    for arguments in (["schedule", "list"], ["runs", "list"], ["submit", "--profile", "smoke"]):
        assert "kubernetes.kubeflow.namespace" in refused(*arguments)
    assert kubeflow.sent("POST") == []


def test_an_archived_experiment_is_refused_before_anything_is_made(kubeflow):
    kubeflow.kept["/experiments"] = [
        {"experiment_id": "e", "display_name": "espalier", "storage_state": "ARCHIVED"}
    ]
    assert "kubernetes.kubeflow.experiment" in refused("submit", "--profile", "smoke")
    assert kubeflow.sent("POST") == []


def test_a_name_that_is_taken_or_unknown_is_refused(kubeflow):
    with_schedules(kubeflow, "nightly")
    assert "a schedule nightly exists already" in refused(*NIGHTLY)
    assert "no schedule weekly; there are: nightly" in refused("schedule", "pause", "weekly")
    with_schedules(kubeflow, "weekly", "nightly")
    assert "give an id: id-0, id-1" in refused("schedule", "delete", "nightly")


@pytest.mark.parametrize("kind", [500, "drop", "slow"])
def test_reading_survives_a_server_that_fails_for_a_while(kubeflow, kind):
    with_schedules(kubeflow, "nightly")
    kubeflow.faults += [("GET", "recurringruns", kind)] * 2
    hasty = ("--set", "kubernetes.kubeflow.timeout_s=0.4") if kind == "slow" else ()
    assert "nightly" in done("schedule", "list", *hasty)
    assert kubeflow.faults == []


@pytest.mark.parametrize("kind", [500, "drop", "slow"])
def test_creating_is_never_retried(kubeflow, kind):
    path = "/pipelines$" if kind == "slow" else "/runs"
    kubeflow.faults.append(("POST", path, kind))
    hasty = ("--set", "kubernetes.kubeflow.timeout_s=0.3") if kind == "slow" else ()
    message = refused("submit", "--profile", "smoke", *hasty)
    assert ("may have been done" in message) is (kind != 500)
    assert len([sent for sent in kubeflow.sent("POST") if sent.endswith(path.rstrip("$"))]) == 1


def test_an_unreachable_server_is_named(kubeflow, pauses):
    kubeflow.faults += [("GET", "", 503)] * 9
    assert "HTTP 503" in refused("schedule", "list")
    assert len(kubeflow.requests) == 4
    assert pauses == [0.01, 0.02, 0.04]


def test_an_invalid_token_is_reported_but_not_shown(kubeflow, monkeypatch):
    monkeypatch.setenv(kubeflow_module.TOKEN_VARIABLE, "another-secret")
    message = refused("schedule", "list")
    assert "HTTP 401" in message
    assert "another-secret" not in message
    with connected(kubeflow) as api:
        assert TOKEN not in repr(api) + repr(vars(api))


def test_a_token_may_be_in_a_file(kubeflow, monkeypatch, tmp_path):
    monkeypatch.delenv(kubeflow_module.TOKEN_VARIABLE)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    done("schedule", "list", "--set", f"kubernetes.kubeflow.token_file={tmp_path}/token")
    monkeypatch.setenv(kubeflow_module.TOKEN_FILE_VARIABLE, f"{tmp_path}/token")
    done("schedule", "list")
    config = KubeflowConfig(endpoint=kubeflow.endpoint, token_file=tmp_path / "token")
    with KubeflowApi(config, {}) as api:
        (tmp_path / "token").write_text("expired")
        with pytest.raises(ClusterError, match="refuses the token"):
            schedules(api)
        (tmp_path / "token").write_text(TOKEN)  # it is read before every request
        assert schedules(api) == []
    monkeypatch.setenv(kubeflow_module.TOKEN_FILE_VARIABLE, f"{tmp_path}/absent")
    assert f"{tmp_path}/absent" in refused("schedule", "list")


@pytest.mark.parametrize(
    ("kind", "message"), [(302, "login page"), ("html", "not JSON"), (400, "HTTP 400")]
)
def test_an_answer_of_another_server_is_an_error(kubeflow, kind, message):
    kubeflow.faults.append(("GET", "recurringruns", kind))
    assert message in refused("schedule", "list")


def test_without_an_endpoint_nothing_is_requested(kubeflow, monkeypatch):
    monkeypatch.delenv(kubeflow_module.ENDPOINT_VARIABLE)
    assert "kubernetes.kubeflow.endpoint" in refused("submit", "--profile", "smoke")
    assert kubeflow.requests == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cron", "0 3 * * *"], "write '0 0 3 * * *'"),
        (["--cron", "0 0 25 * * *"], "Bad hour"),
        (["--cron", EVERY_SECOND, "--start", "tomorrow"], "--start tomorrow"),
        (["--cron", EVERY_SECOND, "--start", "2026-03-04T05:06:07"], "time zone"),
        (["--cron", EVERY_SECOND, *START, "--end", "2026-03-03T00:00Z"], "is not after"),
        (["--cron", EVERY_SECOND, "--end", "2020-03-04T00:00Z"], "no run would be started"),
        (["--cron", "TZ=Asia/Tokyo 0 0 3 * * *"], "give it as --timezone"),
        (["--cron", "0 0 0 30 2 *"], "Bad day-of-month"),
    ],
)
def test_invalid_times_are_refused_before_any_request(kubeflow, arguments, message):
    assert message in refused("schedule", "create", "nightly", "--profile", "smoke", *arguments)
    assert kubeflow.requests == []


def test_https_to_a_server_without_tls_is_an_error(kubeflow):
    config = KubeflowConfig(endpoint=kubeflow.endpoint.replace("http:", "https:"), attempts=2)
    with KubeflowApi(config, {}) as api, pytest.raises(ClusterError, match="SSLError"):
        schedules(api)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
FIELDS = st.sampled_from(
    ["recurring_run_id", "display_name", "status", "trigger", "runtime_config"]
)


@given(st.dictionaries(FIELDS, JSON) | JSON)
def test_whatever_the_server_lists_is_read_or_refused_in_words(found):
    try:
        schedule = parsed_schedule(found)
    except ClusterError as error:
        said = str(error)
    else:
        said = schedule.id
    assert said
