"""Kubeflow Pipelines 2.17 on loopback: API server, UI server, scheduled workflow controller.

Fields are checked against kfp-server-api, which Kubeflow generates from its own protocol files; an
unknown one is refused, as its gateway does (common/utils.go, CustomMarshaler). An answer names the
Go file below backend/src/apiserver that it follows. Nothing runs: the steps of a run go on by one
state whenever the run is read (`Workflow.tick`).

tests/unit/cluster/test_kubeflow_server.py holds for this and for a real server.
"""

import json
import re
import time
import uuid
from contextlib import contextmanager, suppress
from datetime import datetime
from urllib.parse import parse_qsl, unquote_plus, urlsplit

import kfp_server_api
import yaml

from tests.fakes.argo_workflow import Workflow, rfc3339
from tests.fakes.loopback import Handler, Server, serving
from tests.fakes.robfig_cron import Cron, CronError

TOKEN = "a-token-of-mine"
API = "/apis/v2beta1"
PAGE = 2
PAGING = {"page_token", "page_size", "sort_by", "filter", "namespace"}
QUERIES = {
    "/pipelines/upload_version": {"name", "display_name", "pipelineid", "description", "tags"},
    "/recurringruns": PAGING | {"experiment_id"},
    "/runs": PAGING | {"experiment_id"},
    "/experiments": PAGING,
    "/pipelines": PAGING,
}
CREATED = {
    "/runs": (kfp_server_api.V2beta1Run, "run_id"),
    "/experiments": (kfp_server_api.V2beta1Experiment, "experiment_id"),
    "/pipelines": (kfp_server_api.V2beta1Pipeline, "pipeline_id"),
    "/recurringruns": (kfp_server_api.V2beta1RecurringRun, "recurring_run_id"),
}
LISTED = {"/experiments": "experiments", "/recurringruns": "recurringRuns", "/runs": "runs"}
SORTED = {"created_at", "display_name", "finished_at", "state", "storage_state"}
KINDS = {"/experiments": "An experiment", "/runs": "A run", "/recurringruns": "a recurring run"}
INVALID, NOT_FOUND, ABORTED, UNAUTHENTICATED, INTERNAL = 3, 5, 10, 16, 13
STATUS = {INVALID: 400, NOT_FOUND: 404, ABORTED: 409, UNAUTHENTICATED: 401, INTERNAL: 500}
ACTIVE = ("PENDING", "RUNNING", "CANCELING", "PAUSED")


class Refusal(Exception):
    """`external` is what UserError (src/common/util/error.go) puts into the details."""

    def __init__(self, status, message, code=INVALID, external=None):
        super().__init__(message)
        self.status = status
        self.code = code
        self.external = external or message


def refusal(code, message, external=None):
    return Refusal(STATUS[code], message, code, external)


class Text(Exception):
    """An answer that is not JSON."""

    def __init__(self, status, content, kind="text/plain; charset=utf-8"):
        super().__init__(content)
        self.status, self.kind = status, kind


def check_fields(body, model, where=""):
    """Whether `body` is made of published fields alone, down to the last nested one."""
    published = {json_name: name for name, json_name in model.attribute_map.items()}
    for key, value in body.items():
        if key not in published:
            raise Refusal(400, f"unknown field {where}{key}")
        kind = model.openapi_types[published[key]]
        nested = getattr(kfp_server_api, kind, None)
        if nested is not None and hasattr(nested, "attribute_map") and nested.attribute_map:
            check_fields(value, nested, f"{where}{key}.")
        elif nested is not None and value not in nested.allowable_values:
            raise Refusal(400, f"{where}{key} cannot be {value!r}")
        elif kind in ("str", "datetime") and not isinstance(value, str):
            raise Refusal(400, f"{where}{key} is no text")
        elif kind == "bool" and not isinstance(value, bool):
            raise Refusal(400, f"{where}{key} is no boolean")


class KubeflowStandIn:
    def __init__(self):
        self.kept = {path: [] for path in CREATED}
        self.versions = []
        self.pipelines = {}  # version id: what was uploaded
        self.workflows = {}  # run id: Workflow
        self.logs = {}  # pod: text
        self.last_due = {}  # schedule id: status.trigger.lastTriggeredTime of its ScheduledWorkflow
        self.lost = []  # ids of runs whose workflow was deleted while it ran
        self.requests = []  # (method, path, token)
        self.faults = []  # (method, pattern, kind), each met once; kind: a status, slow, drop, pass
        self.is_multi_user = False
        self.runs_steps = True  # by one state whenever a run is read
        self.plan = {}  # name of a step: what it has of tests.fakes.argo_workflow.Step
        self.ahead_s = 0.0  # of the machine's clock
        self.server = Server(_Handler)
        self.server.stand_in = self

    @property
    def endpoint(self):
        """Of the API server, as a port-forward of ml-pipeline reaches it."""
        return self.server.address

    @property
    def ui(self):
        """Of the UI server, which passes the API on."""
        return f"{self.server.address}/pipeline"

    @property
    def schedules(self):
        return self.kept["/recurringruns"]

    @property
    def runs(self):
        return self.kept["/runs"]

    def now(self):
        return time.time() + self.ahead_s

    def sent(self, method):
        return [path for sent, path, _ in self.requests if sent == method]

    def take_fault(self, method, path):
        for fault in self.faults:
            if fault[0] == method and re.search(fault[1], path):
                self.faults.remove(fault)
                return fault[2]
        return None

    def pass_time(self, seconds):
        """Let time pass, in which the controller looks at each schedule as it does every 30 s."""
        until = self.ahead_s + seconds
        while self.ahead_s < until:
            self.ahead_s = min(until, self.ahead_s + 30)
            for schedule in list(self.schedules):
                self._start_if_due(schedule)

    def answer(self, method, path, query, body, content_type):
        if path == "/pipelines/upload_version":
            return self._upload(query, body, content_type)
        if method == "POST" and path in CREATED:
            return self._create(path, json.loads(body))
        if changed := re.fullmatch(r"/recurringruns/([\w-]+)(:enable|:disable)?", path):
            return self._change(method, *changed.groups(), query)
        if named := re.fullmatch(r"/pipelines/names/([\w-]+)", path):
            return self._named(named[1], query)
        if re.fullmatch(r"/pipelines/[\w-]+/versions", path):
            return self._page(self.versions, "pipeline_versions", query)
        if method == "GET" and path in LISTED:
            return self._list(path, query)
        if changed := re.fullmatch(r"/runs/([\w-]+)(:terminate|:retry)?", path):
            return self._of_run(method, *changed.groups())
        if changed := re.fullmatch(r"/experiments/([\w-]+):(archive|unarchive)", path):
            return self._archive(*changed.groups())
        raise refusal(NOT_FOUND, "Not Found")

    # -- experiments ------------------------------------------------------------------------------

    def _archive(self, experiment_id, verb):
        """storage/experiment_store.go: archiving takes the runs along, restoring does not."""
        experiment = self._experiment(experiment_id)
        experiment["storage_state"] = "ARCHIVED" if verb == "archive" else "AVAILABLE"
        if verb == "archive":
            for run in self.runs:
                if run["experiment_id"] == experiment_id:
                    run["storage_state"] = "ARCHIVED"
            for schedule in self.schedules:
                if schedule.get("experiment_id") == experiment_id:
                    schedule |= {"status": "DISABLED", "mode": "DISABLE"}
        return {}

    def _experiment(self, experiment_id):
        for one in self.kept["/experiments"]:
            if one["experiment_id"] == experiment_id:
                return one
        raise refusal(
            NOT_FOUND,
            f"Failed to fetch namespace for experiment {experiment_id}: Failed to fetch namespace "
            f"from experiment {experiment_id}: ResourceNotFoundError: Experiment {experiment_id} "
            "not found",
            f"Experiment {experiment_id} not found",
        )

    # -- creating ---------------------------------------------------------------------------------

    def _create(self, path, body):
        model, key = CREATED[path]
        check_fields(body, model)
        if path in ("/runs", "/recurringruns"):
            body = body | {"namespace": self._checked_namespace(path, body)}
        if path == "/experiments":
            self._check_experiment(body)
        number = f"{key.removesuffix('_id')}-{len(self.kept[path])}"
        made = body | {key: str(uuid.uuid4()) if path in ("/runs", "/recurringruns") else number}
        made["created_at"] = rfc3339(self.now())
        if path == "/recurringruns":
            self._check_schedule(body)
            enabled = body.get("mode") == "ENABLE"
            made["status"] = "ENABLED" if enabled else "DISABLED"
            made["mode"] = "ENABLE" if enabled else "DISABLE"
            made["updated_at"] = made["created_at"]
            made.setdefault("service_account", "pipeline-runner")
        if path == "/experiments":
            made["storage_state"] = "AVAILABLE"
        if path == "/runs":
            del made["namespace"]  # V2beta1Run has none
            self._start(made)
        self.kept[path].append(made)
        return self._answered(path, made)

    def _check_experiment(self, body):
        if self.is_multi_user and not body.get("namespace"):
            raise self._empty_namespace("/experiments", "Failed to create a experiment")
        for one in self.kept["/experiments"]:
            same = one.get("namespace") == body.get("namespace")
            if same and one["display_name"] == body["display_name"]:
                raise Refusal(
                    409,
                    "Failed to create a experiment: Already exist error: Failed to create a new "
                    f"experiment. The name {body['display_name']} already exists. Please specify a "
                    "new name",
                    6,
                )

    def _checked_namespace(self, path, body):
        """resource_manager.go, GetValidExperimentNamespacePair."""
        what = "run" if path == "/runs" else "recurring run"
        given, experiment_id = body.get("namespace", ""), body.get("experiment_id")
        if not experiment_id:
            if not self.is_multi_user:
                return given
            raise refusal(
                INVALID,
                f"Failed to create a new {what}: Failed to create a {what} due to invalid "
                "experimentId and namespace combination: Invalid input error: Experiment id can "
                "not be empty in multi-user mode",
            )
        namespace = self._experiment(experiment_id).get("namespace", "")
        if given and given != namespace:
            theirs = f"'{namespace}' instead of '{given}'"
            said = f"Experiment {experiment_id} belongs to namespace {theirs}"
            raise refusal(
                INVALID,
                f"Failed to create a {what}: Failed to create a {what} due to invalid experimentId "
                f"and namespace combination: Invalid input error: {said}",
                said,
            )
        return namespace

    def _check_schedule(self, body):
        """api_converter.go, toModelJob."""
        around = "Failed to create a recurring run due to conversion error: Invalid input error: "
        count = int(body.get("max_concurrency", 0))
        if not 1 <= count <= 10:
            raise refusal(
                INVALID,
                f"{around}Max concurrency of a recurring run must be at least 1 and at most 10. "
                f"Received {count}",
            )
        cron = body.get("trigger", {}).get("cron_schedule", {}).get("cron")
        if cron is not None:
            try:
                Cron(cron)
            except CronError as error:
                raise refusal(
                    INVALID,
                    f"{around}Schedule cron is not a supported format("
                    f"https://godoc.org/github.com/robfig/cron). Error: {error}",
                ) from error

    def _start(self, run):
        """resource_manager.go, CreateRun; an archived experiment is no hindrance."""
        run |= {
            "state": "PENDING", "storage_state": "AVAILABLE",
            "scheduled_at": run["created_at"], "finished_at": rfc3339(0),
            "state_history": [{"update_time": run["created_at"], "state": "PENDING"}],
        }  # fmt: skip
        run.setdefault("service_account", "pipeline-runner")
        version = run.get("pipeline_version_reference", {}).get("pipeline_version_id")
        if version in self.pipelines:
            pipeline = self.pipelines[version]
            name = f"{pipeline['pipelineInfo']['name']}-{run['run_id'][:5]}"
            workflow = Workflow.of_pipeline(name, pipeline, int(self.now()))
            for step, plan in self.plan.items():
                for key, value in plan.items():
                    setattr(workflow.steps[step], key, value)
            self.workflows[run["run_id"]] = workflow

    # -- listing ----------------------------------------------------------------------------------

    def _list(self, path, query):
        namespace = query.get("namespace")
        found = list(self.kept[path])
        if self.is_multi_user:
            if not namespace:
                raise self._empty_namespace(path, f"Failed to list {LISTED[path]}")
            found = [one for one in found if self._namespace(one) == namespace]
        field, _, direction = query.get("sort_by", "created_at").partition(" ")
        if field not in SORTED:
            raise refusal(
                INVALID,
                f"Failed to create list options: Invalid input error: Invalid sorting field: "
                f"{field!r} on listable type",
            )
        if direction == "desc":
            found = found[::-1]
        for predicate in self._predicates(query.get("filter", "")):
            assert predicate["operation"] == "EQUALS"
            found = [one for one in found if one.get(predicate["key"]) == predicate["string_value"]]
        return self._page([self._answered(path, one) for one in found], LISTED[path], query)

    def _namespace(self, one):
        if "namespace" in one:
            return one["namespace"]
        return self._experiment(one["experiment_id"]).get("namespace")

    @staticmethod
    def _predicates(text):
        """server/list_request_util.go, parseAPIFilter: unquoted once more than the URL."""
        if not text:
            return []
        try:
            return json.loads(unquote_plus(text))["predicates"]
        except ValueError as error:
            raise refusal(INVALID, f"failed to parse valid filter from {text!r}") from error

    @staticmethod
    def _empty_namespace(path, doing):
        """server/*_server.go, canAccess...: what a namespace was not given for."""
        said = f"{KINDS[path]} cannot have an empty namespace in multi-user mode"
        return refusal(
            INVALID,
            f"{doing}: {doing} due to authorization error. Check if you have permission to access "
            f"namespace : Invalid input error: {said}",
            said,
        )

    # -- runs -------------------------------------------------------------------------------------

    def _run(self, run_id, doing):
        for run in self.runs:
            if run["run_id"] == run_id:
                return run
        raise refusal(
            NOT_FOUND,
            f"Failed to {doing} a run: Failed to fetch run {run_id}: ResourceNotFoundError: Run "
            f"{run_id} not found",
            f"Run {run_id} not found",
        )

    def _of_run(self, method, run_id, verb):
        run = self._run(run_id, (verb or ":get")[1:])
        if method == "POST" and verb == ":terminate":
            return self._terminate(run)
        if method == "POST" and verb == ":retry":
            return self._retry(run)
        if method != "GET" or verb:
            raise Refusal(501, "Method Not Allowed", 12)
        answer = json.loads(json.dumps(self._answered("/runs", run)))
        if self.runs_steps:
            self.tick(run)
        return answer

    def tick(self, run):
        """What the persistence agent would report next (resource_manager.go)."""
        workflow = self.workflows.get(run["run_id"])
        if workflow is None or workflow.is_over or run["run_id"] in self.lost:
            return
        workflow.tick()
        self._set_state(run, workflow.phase.upper())
        if workflow.is_over:
            run["finished_at"] = rfc3339(workflow.finished)

    def _set_state(self, run, state):
        if run["state"] != state:
            run["state"] = state
            run["state_history"].append({"update_time": rfc3339(self.now()), "state": state})

    def _terminate(self, run):
        """storage/run_store.go, TerminateRun."""
        if run["state"] not in ACTIVE:
            said = f"Failed to terminate a run {run['run_id']}. Row not found"
            raise refusal(
                INVALID,
                f"Failed to terminate a run: Failed to terminate run {run['run_id']}: Invalid "
                f"input error: {said}",
                said,
            )
        self._set_state(run, "CANCELING")
        self.workflows[run["run_id"]].is_terminating = True
        return {}

    def _retry(self, run):
        """resource_manager.go, RetryRun; src/common/util/workflow.go, GenerateRetryExecution."""
        workflow = self.workflows[run["run_id"]]
        if not workflow.phase:
            raise refusal(
                ABORTED,
                f"Failed to retry a run: BadRequestError: Failed to retry run {run['run_id']} due "
                "to error fetching workflow manifest: Invalid input error: Workflow manifest "
                "cannot be empty",
            )
        if workflow.phase != "Failed":
            raise refusal(
                ABORTED,
                f"Failed to retry a run: Failed to retry run {run['run_id']}: BadRequestError: "
                "Workflow must be Failed/Error to retry: workflow cannot be retried",
                "Workflow must be Failed/Error to retry",
            )
        workflow.retry()
        run["finished_at"] = rfc3339(0)
        self._set_state(run, "RUNNING")
        return {}

    def _answered(self, path, one):
        """Of a run, api_converter.go, toApiRun; anything else as it is kept."""
        workflow = self.workflows.get(one.get("run_id"))
        if path != "/runs" or workflow is None or not workflow.nodes():
            return one
        return one | {"run_details": {"task_details": workflow.task_details(one["run_id"])}}

    def v1_run(self, run_id):
        """api_converter.go, toApiRunDetailV1."""
        run = self._run(run_id, "get")
        workflow = self.workflows.get(run_id)
        runtime = {"pipeline_manifest": "{}"}
        if workflow is not None and workflow.phase:
            runtime["workflow_manifest"] = workflow.manifest(run_id)
        return {"run": {"id": run_id, "name": run["display_name"]}, "pipeline_runtime": runtime}

    def log(self, run_id, pod):
        """server/run_log_server.go: errors follow a status of 200."""
        if pod in self.logs:
            return self.logs[pod]
        error = f"Failed to read logs for run {run_id}"
        return json.dumps({"error_message": f"BadRequestError: {error}", "error_details": error})

    # -- recurring runs ---------------------------------------------------------------------------

    def _change(self, method, recurring_run_id, verb, query):
        for one in self.schedules:
            if one["recurring_run_id"] == recurring_run_id:
                if method == "GET" and verb is None:
                    return one
                if method == "DELETE" and verb is None:
                    self._delete(one, query.get("propagation_policy"))
                elif method == "POST" and verb:
                    one["status"] = {":enable": "ENABLED", ":disable": "DISABLED"}[verb]
                    one["mode"] = verb[1:].upper()
                else:
                    raise Refusal(501, "Method Not Allowed", 12)
                return {}
        raise refusal(
            NOT_FOUND,
            f"Failed to fetch a recurring run: ResourceNotFoundError: Job {recurring_run_id} not "
            "found",
        )

    def _delete(self, schedule, policy):
        """resource_manager.go, DeleteJob: Kubernetes deletes what the schedule owns, by default."""
        self.schedules.remove(schedule)
        if policy != "ORPHAN":
            self.lost += [run["run_id"] for run in self._active(schedule)]

    def _active(self, schedule):
        of_it = [r for r in self.runs if r.get("recurring_run_id") == schedule["recurring_run_id"]]
        return [run for run in of_it if run["state"] in ACTIVE]

    def _start_if_due(self, schedule):
        """src/crd/controller/scheduledworkflow/util: scheduled_workflow.go, cron_schedule.go."""
        due = self._due(schedule)
        enabled = schedule["status"] == "ENABLED"
        if not enabled or self._active(schedule) or due is None or due > self.now():
            return
        self.last_due[schedule["recurring_run_id"]] = due
        run = {
            "run_id": str(uuid.uuid4()),
            "display_name": f"{schedule['display_name']}-{len(self.runs)}",
            "recurring_run_id": schedule["recurring_run_id"],
            "experiment_id": schedule["experiment_id"],
            "created_at": rfc3339(self.now()),
        }
        run |= {
            key: schedule[key]
            for key in ("runtime_config", "pipeline_version_reference")
            if key in schedule
        }
        self._start(run)
        self.runs.append(run)

    def _due(self, schedule):
        cron_schedule = schedule["trigger"]["cron_schedule"]
        cron = Cron(cron_schedule["cron"])
        start, end = (_seconds(cron_schedule.get(key)) for key in ("start_time", "end_time"))
        last = self.last_due.get(schedule["recurring_run_id"])
        since = last or start or _seconds(schedule["created_at"])
        due = cron.next(max(since, start or 0))
        if end is not None and end < due:
            return None
        while schedule.get("no_catchup"):
            later = cron.next(due)
            if later > self.now() or (end is not None and later > end):
                break
            due = later
        return due

    # -- pipelines --------------------------------------------------------------------------------

    def _named(self, name, query):
        for one in self.kept["/pipelines"]:
            if one["name"] == name and one.get("namespace") == query.get("namespace"):
                return one
        raise refusal(NOT_FOUND, f"no pipeline {name}")

    def _upload(self, query, body, content_type):
        boundary = re.fullmatch(r"multipart/form-data; boundary=(\S+)", content_type)[1]
        head, _, rest = body.partition(b"\r\n\r\n")
        if b'name="uploadfile"' not in head:
            raise Refusal(400, "no uploadfile")
        package = rest.rpartition(f"\r\n--{boundary}".encode())[0]
        pipeline, *platform = yaml.safe_load_all(package)
        if pipeline["pipelineInfo"]["name"] == "data-to-model":
            assert "kubernetes" in platform[0]["platforms"]
        if query["pipelineid"] not in {one["pipeline_id"] for one in self.kept["/pipelines"]}:
            raise refusal(NOT_FOUND, "no such pipeline")
        made = {
            "pipeline_version_id": f"version-{len(self.versions)}",
            "pipeline_id": query["pipelineid"],
            "display_name": query["name"],
        }
        self.versions.append(made)
        self.pipelines[made["pipeline_version_id"]] = pipeline
        return made

    @staticmethod
    def _page(found, key, query):
        size = min(PAGE, int(query.get("page_size") or PAGE))
        start = int(query.get("page_token") or 0)
        more = start + size < len(found)
        page = {key: found[start : start + size]} if found else {}
        return page | ({"next_page_token": str(start + size)} if more else {})


def _seconds(text):
    if text is None:
        return None
    return datetime.fromisoformat(text).timestamp()


@contextmanager
def kubeflow_stand_in():
    stand_in = KubeflowStandIn()
    with serving(stand_in.server):
        yield stand_in


class _Handler(Handler):
    def _answer(self):
        with suppress(ConnectionError):  # the other side may have given up waiting
            self._answer_or_fail()

    def _answer_or_fail(self):
        stand_in = self.server.stand_in
        body = self.read_body()
        parts = urlsplit(self.path)
        through_ui = parts.path.startswith("/pipeline")
        path = parts.path.removeprefix("/pipeline")
        short = path.removeprefix(API)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        stand_in.requests.append((self.command, short, token))
        kind = stand_in.take_fault(self.command, short)
        if kind == "drop":
            self.close_connection = True
            return
        if kind == "slow":
            time.sleep(1.0)
        headers = {}
        try:
            status, content = (
                200,
                self._content(stand_in, kind, path, parts.query, body, through_ui),
            )
        except Text as text:
            status, content = text.status, str(text).encode()
            headers = {"Content-Type": text.kind}
        except Refusal as refused:
            status = refused.status
            detail = {
                "@type": "type.googleapis.com/google.rpc.Status",
                "code": refused.code,
                "message": refused.external,
            }
            content = {"code": refused.code, "message": str(refused), "details": [detail]}
        self.say(status, content, {"Location": "/login"} if status == 302 else headers)

    def _content(self, stand_in, kind, path, query, body, through_ui):
        if isinstance(kind, int):
            raise Refusal(kind, "a fault that the test asked for")
        if isinstance(kind, Refusal):
            raise kind
        if kind == "html":
            return b"<html>hello</html>"
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise refusal(UNAUTHENTICATED, "unauthenticated")
        given = dict(parse_qsl(query))
        if through_ui:
            self._of_ui(stand_in, path, given)
        elif log := re.fullmatch(r"/apis/v1alpha1/runs/([\w-]+)/nodes/([\w-]+)/log", path):
            raise Text(200, stand_in.log(*log.groups()))
        if v1 := re.fullmatch(r"/apis/v1beta1/runs/([\w-]+)", path):
            return stand_in.v1_run(v1[1])
        if not path.startswith(API):
            raise Text(404, "404 page not found\n")  # gorilla/mux
        path = path.removeprefix(API)
        if strange := given.keys() - QUERIES.get(path, PAGING | {"propagation_policy"}):
            raise Refusal(400, f"unknown parameters {sorted(strange)}")
        kind_of_body = self.headers.get("Content-Type", "")
        return stand_in.answer(self.command, path, given, body, kind_of_body)

    @staticmethod
    def _of_ui(stand_in, path, query):
        """frontend/server/app.ts: pages, logs, and the API of two versions passed on."""
        html = "text/html; charset=utf-8"
        if path in ("", "/", "/index.html"):
            raise Text(200, "<!doctype html><title>Kubeflow Pipelines</title>", html)
        if path == "/k8s/pod/logs":
            if stand_in.is_multi_user and "podnamespace" not in query:
                raise Text(422, "podnamespace argument is required", html)
            if query["podname"] not in stand_in.logs:
                raise Text(500, "Could not get main container logs: Error: not found", html)
            raise Text(200, stand_in.logs[query["podname"]])
        if not path.startswith(("/apis/v1beta1/", "/apis/v2beta1/")):
            raise Text(404, f"Cannot GET {path}", html)

    do_GET = do_POST = do_DELETE = _answer
