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
from tests.fakes.kubeflow_stand_in import TOKEN, Refusal
from tests.fakes.loopback import Handler

pytestmark = pytest.mark.slow  # compiles the pipeline

NIGHTLY = ("schedule", "create", "nightly", "--cron", "0 0 3 * * *", "--profile", "smoke")


@pytest.fixture
def kubeflow(monkeypatch):
    with kubeflow_at_hand(monkeypatch) as stand_in:
        yield stand_in


def other_version(number):
    return {"pipeline_version_id": f"other-{number}", "display_name": f"other-{number}"}


def connected(kubeflow):
    variables = {"KF_PIPELINES_ENDPOINT": kubeflow.endpoint, "KF_PIPELINES_TOKEN": TOKEN}
    return KubeflowApi(KubeflowConfig(), variables)


def with_schedules(kubeflow, *names):
    """As if these had been made before."""
    for number, name in enumerate(names):
        made = {
            "recurring_run_id": f"id-{number}", "display_name": name, "status": "ENABLED",
            "no_catchup": True,
        }  # fmt: skip
        kubeflow.schedules.append(made)


def test_a_run_is_started_with_the_forms_parameters(kubeflow):
    said = done("submit", "--profile", "smoke", "--set", "training.steps=2", "--set", "seed=7")
    (run,) = kubeflow.runs
    assert said.strip() == run["run_id"]
    assert run["display_name"] == "smoke"
    assert run["runtime_config"]["parameters"] == {
        "profile": "smoke",
        "seed": 7,
        "overrides": "training.steps=2; seed=7",
    }
    assert run["pipeline_version_reference"] == {
        "pipeline_id": "pipeline-0",
        "pipeline_version_id": "version-0",
    }
    assert {token for _, _, token in kubeflow.requests} == {TOKEN}


def test_an_equal_pipeline_is_uploaded_once_and_another_beside_it(kubeflow):
    for _ in range(2):
        done("submit", "--profile", "smoke")
    assert len(kubeflow.versions) == 1
    kubeflow.versions = [other_version(n) for n in range(5)] + kubeflow.versions  # pages
    done("submit", "--profile", "smoke", "--set", "kubernetes.retries=6")
    assert len(kubeflow.versions) == 7
    assert len(kubeflow.kept["/pipelines"]) == len(kubeflow.kept["/experiments"]) == 1


def test_namespace_and_account_of_the_profile_are_used(kubeflow):
    kubeflow.is_multi_user = True
    settings = [
        "--set", "kubernetes.kubeflow.namespace=team",
        "--set", "kubernetes.kubeflow.service_account=espalier-trainer",
    ]  # fmt: skip
    done(*NIGHTLY, *settings)
    (schedule,) = kubeflow.schedules
    assert (schedule["namespace"], schedule["service_account"]) == ("team", "espalier-trainer")
    assert kubeflow.kept["/experiments"][0]["namespace"] == "team"
    other = ("--set", "kubernetes.kubeflow.namespace=others")
    assert done("schedule", "list", "--json", *other) == "[]\n"
    assert len(json.loads(done("schedule", "list", "--json", *settings))) == 1


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
    listed = {one["name"]: one["status"] for one in json.loads(done("schedule", "list", "--json"))}
    assert listed == {"one": "ENABLED", "two": "ENABLED", "three": "DISABLED"}
    done("schedule", "delete", "two")
    lines = done("schedule", "list").splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["name", "status"], ["one", "ENABLED"], ["three", "DISABLED"],
    ]  # fmt: skip


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
    assert f"has a new id, {after['recurring_run_id']}" in result.stderr
    changed = {"recurring_run_id", "status", "mode", "description", "created_at", "updated_at"}
    assert {key for key in before if before[key] != after[key]} <= changed
    assert after["status"] == "ENABLED"
    assert after["description"].startswith("of the team (espalier: in place of")
    done("schedule", "pause", "nightly")
    done("schedule", "resume", "nightly")
    assert kubeflow.schedules[0]["description"].count("espalier") == 1


def test_resuming_what_is_not_paused_changes_nothing(kubeflow):
    done(*NIGHTLY)
    before = [dict(one) for one in kubeflow.schedules]
    assert "nightly was not paused" in espalier("schedule", "resume", "nightly").stderr
    assert kubeflow.schedules == before


@pytest.mark.parametrize("kind", [500, "drop"])
def test_an_interrupted_resume_is_completed_by_the_next(kubeflow, kind):
    before = paused(kubeflow)["recurring_run_id"]
    kubeflow.faults.append(("DELETE", "recurringruns", kind))
    message = refused("schedule", "resume", "nightly")
    after = kubeflow.schedules[1]["recurring_run_id"]
    assert f"nightly is resumed as {after}, but the paused {before}" in message
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


def test_a_schedule_that_catches_up_is_enabled_as_it_is(kubeflow):
    record = paused(kubeflow, no_catchup=False)
    result = espalier("schedule", "resume", "nightly")
    assert "a run for every missed time" in result.stderr
    assert kubeflow.schedules == [record]
    assert record["status"] == "ENABLED"


def test_a_schedule_that_has_ended_is_not_resumed(kubeflow):
    trigger = {"cron_schedule": {"cron": "0 0 3 * * *", "end_time": "2020-01-01T00:00:00Z"}}
    paused(kubeflow, trigger=trigger)
    assert "ended at 2020-01-01" in refused("schedule", "resume", "nightly")
    assert len(kubeflow.schedules) == 1


def test_resuming_beside_a_run_that_goes_on_is_said(kubeflow):
    record = paused(kubeflow)
    run = {"run_id": "r-1", "recurring_run_id": record["recurring_run_id"], "state": "RUNNING"}
    kubeflow.runs.append(run)
    assert (
        "its run r-1 continues and is not counted"
        in espalier("schedule", "resume", "nightly").stderr
    )
    assert kubeflow.lost == []


def test_deleting_a_schedule_does_not_end_its_run(kubeflow):
    record = paused(kubeflow)
    run = {"run_id": "r-1", "recurring_run_id": record["recurring_run_id"], "state": "RUNNING"}
    kubeflow.runs.append(run)
    done("schedule", "delete", "nightly")
    assert kubeflow.lost == []


def test_a_start_that_has_passed_is_left_out_and_said(kubeflow):
    result = espalier(*NIGHTLY, "--start", "2020-03-02T00:00:00Z")
    assert "--start 2020-03-02T00:00:00Z is in the past" in result.stderr
    assert kubeflow.schedules[0]["trigger"] == {"cron_schedule": {"cron": "0 0 3 * * *"}}


def test_a_time_zone_is_written_in_that_of_kubeflow(kubeflow):
    result = espalier(*NIGHTLY, "--timezone", "Asia/Tokyo", "--start", "2126-03-02T00:00")
    note = "'0 0 3 * * *' in Asia/Tokyo as '0 0 18 * * *' in UTC"
    assert note in result.stderr
    schedule = kubeflow.schedules[0]["trigger"]["cron_schedule"]
    assert schedule == {"cron": "0 0 18 * * *", "start_time": "2126-03-01T14:59:59+00:00"}
    listed = json.loads(done("schedule", "list", "--json"))
    assert (listed[0]["cron"], listed[0]["timezone"]) == ("0 0 18 * * *", "UTC")


def test_daylight_saving_time_needs_kubeflows_own_zone(kubeflow):
    berlin = ("--timezone", "Europe/Berlin")
    message = refused(*NIGHTLY, *berlin)
    assert "daylight saving time" in message
    assert "cronScheduleTimezone" in message
    assert kubeflow.schedules == []
    done(*NIGHTLY, *berlin, "--set", "kubernetes.kubeflow.timezone=Europe/Berlin")
    assert kubeflow.schedules[0]["trigger"]["cron_schedule"]["cron"] == "0 0 3 * * *"


def test_an_unknown_time_zone_is_refused(kubeflow):
    assert "write it like Europe/Paris" in refused(*NIGHTLY, "--timezone", "Mars/Olympus")
    message = refused("schedule", "list", "--set", "kubernetes.kubeflow.timezone=Mars")
    assert "not a known time zone" in message


def test_without_a_namespace_several_users_are_named(kubeflow):
    kubeflow.is_multi_user = True
    for arguments in (["schedule", "list"], ["runs", "list"], ["submit", "--profile", "smoke"]):
        message = refused(*arguments)
        assert "Set kubernetes.kubeflow.namespace to yours" in message
    assert kubeflow.sent("POST") == []


def test_an_archived_experiment_is_refused_before_anything_is_made(kubeflow):
    kubeflow.kept["/experiments"] = [
        {"experiment_id": "e", "display_name": "espalier", "storage_state": "ARCHIVED"}
    ]
    assert "kubernetes.kubeflow.experiment" in refused("submit", "--profile", "smoke")
    assert kubeflow.sent("POST") == []


def test_a_long_refusal_keeps_what_was_asked_and_its_cause(kubeflow):
    doing = ": ".join(f"Failed to do step {number} of many" for number in range(40))
    stack = "\nmain.main\n\t/go/src/main.go:1\nruntime.goexit\n\t/go/src/asm.s:2\n"
    kubeflow.faults.append(("GET", "recurringruns", Refusal(400, f"{doing}: no such pod{stack}")))
    message = refused("schedule", "list")
    assert "HTTP 400: Failed to do step 0 of many" in message
    assert message.rstrip().endswith("Failed to do step 39 of many: no such pod")
    assert len(message) < 800


def test_the_url_is_given_only_where_kubeflows_pages_are(kubeflow, monkeypatch):
    def url(*settings):
        return json.loads(done("submit", "--profile", "smoke", "--json", *settings))["url"]

    assert url() is None
    assert "https://ui/#/runs/details/" in url("--set", "kubernetes.kubeflow.ui=https://ui/")
    monkeypatch.setenv(kubeflow_module.ENDPOINT_VARIABLE, kubeflow.ui)
    assert f"{kubeflow.ui}/#/runs/details/" in url()
    monkeypatch.setenv(kubeflow_module.UI_VARIABLE, "http://elsewhere")
    assert "http://elsewhere/#/runs/details/" in url()


def test_a_name_that_is_taken_or_unknown_is_refused(kubeflow):
    with_schedules(kubeflow, "nightly")
    assert "a schedule nightly exists already" in refused(*NIGHTLY)
    assert "no schedule weekly; there are: nightly" in refused("schedule", "pause", "weekly")
    with_schedules(kubeflow, "weekly", "nightly")
    assert "give an id: id-0, id-1" in refused("schedule", "delete", "nightly")


@pytest.mark.parametrize("kind", [500, 503, "drop", "slow"])
def test_reading_survives_a_server_that_fails_for_a_while(kubeflow, kind):
    with_schedules(kubeflow, "nightly")
    kubeflow.faults += [("GET", "recurringruns", kind)] * 2
    hasty = ("--set", "kubernetes.kubeflow.timeout_s=0.4") if kind == "slow" else ()
    assert "nightly" in done("schedule", "list", *hasty)
    assert kubeflow.faults == []


@pytest.mark.parametrize("kind", [500, "drop"])
def test_creating_is_never_retried(kubeflow, kind):
    kubeflow.faults.append(("POST", "/runs", kind))
    message = refused("submit", "--profile", "smoke")
    assert kubeflow.endpoint in message
    assert ("may have been done" in message) is (kind == "drop")
    assert kubeflow.sent("POST").count("/runs") == 1


def test_an_unreachable_server_is_named(kubeflow, pauses):
    kubeflow.faults += [("GET", "", 503)] * 9
    message = refused("schedule", "list")
    assert "in 4 attempts" in message
    assert "HTTP 503: a fault that the test asked for" in message
    assert len(kubeflow.requests) == 4
    assert pauses == [0.01, 0.02, 0.04]


def test_a_slow_creation_says_that_it_may_have_been_done(kubeflow):
    kubeflow.faults.append(("POST", "/pipelines$", "slow"))
    message = refused("submit", "--profile", "smoke", "--set", "kubernetes.kubeflow.timeout_s=0.3")
    assert "within 0.3 s" in message
    assert "may have been done" in message


def test_an_invalid_token_is_reported_but_not_shown(kubeflow, monkeypatch):
    monkeypatch.setenv(kubeflow_module.TOKEN_VARIABLE, "another-secret")
    message = refused("schedule", "list")
    assert "refuses the token (HTTP 401: unauthenticated)" in message
    assert "another-secret" not in message


def test_a_token_may_be_in_a_file(kubeflow, monkeypatch, tmp_path):
    monkeypatch.delenv(kubeflow_module.TOKEN_VARIABLE)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    done("schedule", "list", "--set", f"kubernetes.kubeflow.token_file={tmp_path}/token")
    monkeypatch.setenv(kubeflow_module.TOKEN_FILE_VARIABLE, f"{tmp_path}/token")
    done("schedule", "list")
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


def test_a_token_is_in_no_repr(kubeflow):
    with KubeflowApi(
        KubeflowConfig(), {"KF_PIPELINES_ENDPOINT": "http://x", "KF_PIPELINES_TOKEN": TOKEN}
    ) as api:
        assert TOKEN not in repr(api) + repr(vars(api))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cron", "0 3 * * *"], "write '0 0 3 * * *'"),
        (["--cron", "0 0 25 * * *"], "Bad hour"),
        (["--cron", "* * * * * *", "--start", "tomorrow"], "--start tomorrow"),
        (["--cron", "* * * * * *", "--start", "2026-03-04T05:06:07"], "time zone"),
        (
            ["--cron", "* * * * * *", "--start", "2026-03-04T00:00Z", "--end", "2026-03-03T00:00Z"],
            "is not after",
        ),
        (["--cron", "* * * * * *", "--end", "2020-03-04T00:00Z"], "no run would be started"),
        (["--cron", "TZ=Asia/Tokyo 0 0 3 * * *"], "give it as --timezone"),
        (["--cron", "0 0 0 30 2 *"], "Bad day-of-month"),
    ],
)
def test_invalid_times_are_refused_before_any_request(kubeflow, arguments, message):
    assert message in refused("schedule", "create", "nightly", "--profile", "smoke", *arguments)
    assert kubeflow.requests == []


def test_the_stand_in_refuses_what_is_not_published(kubeflow):
    body = {"trigger": {"cron": "* * * * * *"}}
    with connected(kubeflow) as api:
        creating = api.recurring_runs.recurring_run_service_create_recurring_run
        with pytest.raises(ClusterError, match=r"unknown field trigger\.cron"):
            api.write("create a schedule", creating, body)


def test_a_renewed_token_is_read_before_the_next_request(kubeflow, tmp_path):
    (tmp_path / "token").write_text("expired")
    config = KubeflowConfig(endpoint=kubeflow.endpoint, token_file=tmp_path / "token")
    with KubeflowApi(config, {}) as api:
        with pytest.raises(ClusterError, match="refuses the token"):
            schedules(api)
        (tmp_path / "token").write_text(TOKEN)
        assert schedules(api) == []


def test_https_to_a_server_without_tls_is_an_error(kubeflow):
    config = KubeflowConfig(endpoint=kubeflow.endpoint.replace("http:", "https:"), attempts=2)
    with KubeflowApi(config, {}) as api, pytest.raises(ClusterError, match="SSLError"):
        schedules(api)


def test_a_refusal_in_another_encoding_is_reported(kubeflow, monkeypatch):
    monkeypatch.setattr(kubeflow.server, "RequestHandlerClass", _Latin1)
    with connected(kubeflow) as api, pytest.raises(ClusterError, match="not text"):
        schedules(api)


class _Latin1(Handler):
    def do_GET(self):
        self.say(400, "verboten für Gäste".encode("latin-1"))


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
