"""The dashboard and the rules of k8s/monitoring, against what the programs really answer."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from tests.unit.k8s.rendering import K8S
from tests.unit.monitoring.scrapes import sample_names

MONITORING = K8S / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((MONITORING / "rules.yaml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
OTHERS = {"kube_cronjob_status_last_successful_time"}
"""Of kube-state-metrics (docs/metrics/workload/cronjob-metrics.md there)."""
_STRING = re.compile(r'"[^"]*"')
_LABELS = re.compile(r"\{[^}]*\}|\b(by|on|without|ignoring) *\([^)]*\)")
_NAME = re.compile(r"\b(?:espalier|process|kube)_\w+")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
BY_TARGETS = {"namespace", "pod", "espalier_dev_run", "cronjob", "__name__"}
"""Labels of the scrape and of kube-state-metrics."""

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed (Debian: apt install prometheus)",
)


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries():
    """Every query of the dashboard, its variables filled in."""
    for panel in panels():
        for target in panel["targets"]:
            filled = target["expr"].replace("$__rate_interval", "5m")
            yield panel["title"], re.sub(r"\$\w+", ".*", filled)


def names(expression):
    return set(_NAME.findall(_LABELS.sub("", _STRING.sub('""', expression))))


def promtool(*arguments):
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def exposed(expositions):
    return set().union(*map(sample_names, expositions.values()))


def test_every_name_of_a_panel_or_an_alert_is_exposed(exposed):
    for title, query in [*queries(), *((rule["alert"], rule["expr"]) for rule in ALERTS)]:
        assert names(query), title
        assert names(query) <= exposed | OTHERS, title


def test_labels_in_queries_are_exposed(expositions):
    known = BY_TARGETS | {
        label for text in expositions.values() for label in re.findall(r'[{,](\w+)="', text)
    }
    asked = [query for _, query in queries()] + [rule["expr"] for rule in ALERTS]
    assert {label for query in asked for label in _LABEL.findall(query)} <= known


def test_every_own_metric_is_on_the_dashboard(exposed):
    shown = set().union(*(names(query) for _, query in queries()))
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    own = {re.sub(r"_(bucket|sum|count)$", "", n) for n in exposed if n.startswith("espalier_")}
    assert own - stems == {"espalier_training_start_timestamp_seconds"}


def test_the_dashboard_has_what_grafana_asks_for():
    """Its JSON model: unique ids and places, and a data source that is a variable."""
    assert DASHBOARD.keys() >= {"uid", "title", "panels", "templating", "schemaVersion", "time"}
    assert "id" not in DASHBOARD  # of one Grafana's own database
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        xs, ys = (range(place[a], place[a] + place[b]) for a, b in (("x", "w"), ("y", "h")))
        cells = {(x, y) for x in xs for y in ys}
        assert max(xs) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels():
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        assert all(one["datasource"] == source for one in (panel, *panel["targets"]))
    variables = {entry["name"] for entry in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
    assert used - {"__rate_interval", "__all"} <= variables


def test_the_operators_rules_are_those_of_the_file():
    rule = yaml.safe_load((MONITORING / "operator" / "prometheus-rule.yaml").read_text())
    assert rule["spec"] == RULES


@needs_promtool
def test_promtool_takes_rules_and_queries(tmp_path):
    promtool("check", "rules", str(MONITORING / "rules.yaml"))
    rules = [
        {"record": f"panel:query:{number}", "expr": query}
        for number, (_, query) in enumerate(queries())
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(path))


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then():
    promtool("test", "rules", str(K8S.parent / "tests/unit/monitoring/alert_tests.yaml"))
