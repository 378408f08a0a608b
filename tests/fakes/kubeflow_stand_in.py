"""Kubeflow's API on loopback: keeps what it is sent, refuses what v2beta1 does not publish.

Fields are checked against kfp-server-api, which Kubeflow generates from its own protocol files; an
unknown one is refused, as its gateway does. It proves nothing about a live server.
"""

import json
import re
import time
from contextlib import contextmanager, suppress
from urllib.parse import parse_qsl, urlsplit

import kfp_server_api
import yaml

from tests.fakes.loopback import Handler, Server, serving

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
LISTED = {"/experiments": "experiments", "/recurringruns": "recurringRuns"}


class Refusal(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


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
        self.requests = []  # (method, path, token)
        self.faults = []  # (method, pattern, kind), each met once; kind is a status, slow or drop
        self.server = Server(_Handler)
        self.server.stand_in = self

    @property
    def endpoint(self):
        return f"{self.server.address}/pipeline"

    @property
    def schedules(self):
        return self.kept["/recurringruns"]

    @property
    def runs(self):
        return self.kept["/runs"]

    def sent(self, method):
        return [path for sent, path, _ in self.requests if sent == method]

    def take_fault(self, method, path):
        for fault in self.faults:
            if fault[0] == method and re.search(fault[1], path):
                self.faults.remove(fault)
                return fault[2]
        return None

    def answer(self, method, path, query, body, content_type):
        if path == "/pipelines/upload_version":
            return self._upload(query, body, content_type)
        if method == "POST" and path in CREATED:
            return self._create(path, json.loads(body))
        if changed := re.fullmatch(r"/recurringruns/([\w-]+)(:enable|:disable)?", path):
            return self._change(method, *changed.groups())
        if named := re.fullmatch(r"/pipelines/names/([\w-]+)", path):
            return self._named(named[1], query)
        if re.fullmatch(r"/pipelines/[\w-]+/versions", path):
            return self._page(self.versions, "pipeline_versions", query)
        if method == "GET" and path in LISTED:
            namespace = query.get("namespace")
            found = [one for one in self.kept[path] if one.get("namespace") == namespace]
            return self._page(found, LISTED[path], query)
        raise Refusal(404, f"no {method} {path}")

    def _create(self, path, body):
        model, key = CREATED[path]
        check_fields(body, model)
        made = body | {key: f"{key.removesuffix('_id')}-{len(self.kept[path])}"}
        if path == "/recurringruns":
            made["status"] = "ENABLED" if body["mode"] == "ENABLE" else "DISABLED"
        self.kept[path].append(made)
        return made

    def _change(self, method, recurring_run_id, verb):
        for one in self.schedules:
            if one["recurring_run_id"] == recurring_run_id:
                if method == "DELETE" and verb is None:
                    self.schedules.remove(one)
                elif method == "POST" and verb:
                    one["status"] = {":enable": "ENABLED", ":disable": "DISABLED"}[verb]
                else:
                    raise Refusal(405, "no such method")
                return {}
        raise Refusal(404, "no such recurring run")

    def _named(self, name, query):
        for one in self.kept["/pipelines"]:
            if one["name"] == name and one.get("namespace") == query.get("namespace"):
                return one
        raise Refusal(404, f"no pipeline {name}")

    def _upload(self, query, body, content_type):
        boundary = re.fullmatch(r"multipart/form-data; boundary=(\S+)", content_type)[1]
        head, _, rest = body.partition(b"\r\n\r\n")
        if b'name="uploadfile"' not in head:
            raise Refusal(400, "no uploadfile")
        package = rest.rpartition(f"\r\n--{boundary}".encode())[0]
        pipeline, platform = yaml.safe_load_all(package)
        assert pipeline["pipelineInfo"]["name"] == "data-to-model"
        assert "kubernetes" in platform["platforms"]
        if query["pipelineid"] not in {one["pipeline_id"] for one in self.kept["/pipelines"]}:
            raise Refusal(404, "no such pipeline")
        made = {
            "pipeline_version_id": f"version-{len(self.versions)}",
            "pipeline_id": query["pipelineid"],
            "display_name": query["name"],
        }
        self.versions.append(made)
        return made

    @staticmethod
    def _page(found, key, query):
        start = int(query.get("page_token") or 0)
        more = start + PAGE < len(found)
        page = {key: found[start : start + PAGE]} if found else {}
        return page | ({"next_page_token": str(start + PAGE)} if more else {})


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
        path = parts.path.removeprefix("/pipeline").removeprefix(API)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        stand_in.requests.append((self.command, path, token))
        kind = stand_in.take_fault(self.command, path)
        if kind == "drop":
            self.close_connection = True
            return
        if kind == "slow":
            time.sleep(1.0)
        try:
            status, content = 200, self._content(stand_in, kind, path, parts.query, body)
        except Refusal as refusal:
            status = refusal.status
            content = {"code": 3, "message": str(refusal), "details": []}
        self.say(status, content, {"Location": "/login"} if status == 302 else {})

    def _content(self, stand_in, kind, path, query, body):
        if isinstance(kind, int):
            raise Refusal(kind, "a fault that the test asked for")
        if kind == "html":
            return b"<html>hello</html>"
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refusal(401, "unauthenticated")
        given = dict(parse_qsl(query))
        if strange := given.keys() - QUERIES.get(path, PAGING):
            raise Refusal(400, f"unknown parameters {sorted(strange)}")
        kind_of_body = self.headers.get("Content-Type", "")
        return stand_in.answer(self.command, path, given, body, kind_of_body)

    do_GET = do_POST = do_DELETE = _answer
