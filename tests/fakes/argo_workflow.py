"""A workflow as Argo keeps it for a pipeline of Kubeflow, without running anything.

Names, ids, kinds and phases of its nodes are those that KFP's compiler and Argo make:
backend/src/v2/compiler/argocompiler (dag.go, container.go), and attempts "(0)" for every node,
because KFP's workflow-controller-configmap gives each template a retry strategy.
"""

import json
import re
from datetime import UTC, datetime

from tests.factories.compiled_steps import compiled_steps

NOT_YET = -62135596800  # Go's zero time, as seconds
FINAL = ("Succeeded", "Failed", "Error")
IMPL = "retry-system-container-impl"


def fnv32a(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


class Step:
    def __init__(self, name, after, exit_code, seconds, part=""):
        self.name = name
        self.after = after  # names of all steps that have to succeed before it
        self.part = part  # nested pipeline
        self.exit_code = exit_code  # of every attempt
        self.seconds = seconds
        self.fails_in_driver = False
        self.message = None  # of a pod that waits or failed
        self.attempts = 1
        self.clear()

    def clear(self):
        self.phase = None  # none: the driver did not start it
        self.started = self.ended = None


class Workflow:
    """Goes on by one state at every `tick`: a step runs in one, and ends in the next.

    Its clock does too, by five seconds.
    """

    def __init__(self, name, steps, now):
        self.name = name
        self.steps = steps
        self.phase = ""
        self.is_terminating = False
        self.created = self.started = self.clock = now
        self.finished = None

    @classmethod
    def of_pipeline(cls, name, pipeline, now):
        executors = pipeline["deploymentSpec"]["executors"]
        steps = []
        for task, compiled in compiled_steps(pipeline).items():
            container = executors[compiled.component["executorLabel"]].get("container", {})
            script = " ".join([*container.get("command", []), *container.get("args", [])])
            exits, sleeps = re.search(r"exit (\d+)$", script), re.search(r"sleep (\d+)", script)
            exit_code, seconds = (int(found[1]) if found else 0 for found in (exits, sleeps))
            steps.append(Step(task, compiled.after, exit_code, seconds, compiled.part))
        return cls(name, {step.name: step for step in steps}, now)

    @property
    def is_over(self):
        return self.phase in FINAL

    def tick(self):
        if self.is_over:
            return
        self.clock += 5
        now = self.clock
        self.phase = self.phase or "Running"
        for step in self.steps.values():
            is_done = self.is_terminating or (step.started or 0) + step.seconds < now
            if step.phase in ("Pending", "Running") and is_done:
                self._end(step, now)
        done = {step.name for step in self.steps.values() if step.phase == "Succeeded"}
        for step in self.steps.values():
            if step.phase is None and done.issuperset(step.after) and not self.is_terminating:
                step.phase, step.started = "Running", now
                if step.fails_in_driver:
                    step.phase, step.ended = "Failed", now
        if any(step.phase == "Running" for step in self.steps.values()):
            return
        failed = self.is_terminating or len(done) < len(self.steps)
        self.phase, self.finished = ("Failed" if failed else "Succeeded"), now

    def _end(self, step, now):
        step.ended = now
        if self.is_terminating:
            step.phase, step.message = "Failed", "Step exceeded its deadline"
        elif step.exit_code:
            step.phase = "Failed"
            # of every exit code the launcher makes 1 (cmd/launcher-v2/main.go)
            step.message = step.message or "main: Error (exit code 1)"
        else:
            step.phase = "Succeeded"

    def retry(self):
        """As workflow.go, GenerateRetryExecution: what succeeded is kept."""
        self.phase, self.finished, self.is_terminating = "Running", None, False
        for step in self.steps.values():
            if step.phase != "Succeeded":
                step.clear()
                step.message = None

    def pod(self, step):
        name = f"{self._above(step)}.{step.name}(0).executor({step.attempts - 1})"
        return f"{self.name}-{IMPL}-{fnv32a(name)}"

    def _above(self, step):
        """The DAG that a step is a task of."""
        root = f"{self.name}(0).root(0)"
        return f"{root}.{step.part}(0)" if step.part else root

    def nodes(self):
        """As `status.nodes` of the workflow; nothing before Argo has seen it."""
        if not self.phase:
            return {}
        kept = {}

        def add(name, kind, phase, start, end, template, message="", *children):
            node_id = self.name if name == self.name else f"{self.name}-{fnv32a(name)}"
            display = name if name.startswith(f"{self.name}(") and "." not in name else None
            kept[node_id] = {
                "id": node_id,
                "name": name,
                "displayName": display or name.rpartition(".")[2] or name,
                "type": kind,
                "templateName": template,
                "phase": phase,
                "message": message,
                "startedAt": _time(start),
                "finishedAt": _time(end),
                "children": [f"{self.name}-{fnv32a(child)}" for child in children],
            }

        top, root = f"{self.name}(0)", f"{self.name}(0).root(0)"
        times = (self.started, self.finished)
        add(self.name, "Retry", self.phase, *times, "entrypoint", "", top)
        add(top, "DAG", self.phase, *times, "entrypoint", "", f"{top}.root-driver")
        ok = ("Succeeded", self.started, self.started)
        add(f"{top}.root-driver", "Retry", *ok, "system-dag-driver", "", f"{top}.root-driver(0)")
        add(f"{top}.root-driver(0)", "Pod", *ok, "system-dag-driver", "", f"{top}.root")
        add(f"{top}.root", "Retry", self.phase, *times, "root", "", root)
        add(root, "DAG", self.phase, *times, "root", "")
        for part in dict.fromkeys(step.part for step in self.steps.values()):
            inner = [step for step in self.steps.values() if step.part == part]
            if part and not self._part_nodes(part, inner, f"{root}.{part}", add):
                continue
            for step in inner:
                if step.phase is not None or self.is_over:
                    self._step_nodes(step, self._above(step), add)
        return kept

    def _part_nodes(self, part, inner, name, add):
        """Whether the nested pipeline has begun; its nodes, if it has a state."""
        begun = [step for step in inner if step.phase is not None]
        driver = f"{name}-driver"
        if not begun:
            if self.is_over:
                omitted = ("Skipped", "Omitted", self.finished, self.finished)
                add(driver, *omitted, "system-dag-driver")
                add(name, *omitted, f"comp-{part}")
            return False
        started = min(step.started for step in begun) - 1  # its driver comes before theirs
        phases = {step.phase for step in inner}
        phase = "Succeeded" if phases == {"Succeeded"} else "Running"
        if "Failed" in phases and not phases & {"Running", "Pending"}:
            phase = "Failed"
        ended = None if phase == "Running" else max(step.ended for step in begun)
        ok = ("Succeeded", started, started, "system-dag-driver")
        add(driver, "Retry", *ok, "", f"{driver}(0)")
        add(f"{driver}(0)", "Pod", *ok, "", name)
        now = (phase, started, ended, f"comp-{part}")
        add(name, "Retry", *now, "", f"{name}(0)")
        add(f"{name}(0)", "DAG", *now)
        return True

    def _step_nodes(self, step, root, add):
        name, driver = f"{root}.{step.name}", f"{root}.{step.name}-driver"
        if step.phase is None:
            add(
                driver,
                "Skipped",
                "Omitted",
                self.finished,
                self.finished,
                "system-container-driver",
            )
            add(
                name,
                "Skipped",
                "Omitted",
                self.finished,
                self.finished,
                "system-container-executor",
            )
            return
        if step.fails_in_driver:
            failed = ("Failed", step.started, step.ended, "system-container-driver")
            add(driver, "Retry", *failed, "No more retries left", f"{driver}(0)")
            add(f"{driver}(0)", "Pod", *failed, step.message or "main: Error (exit code 1)")
            add(name, "Skipped", "Omitted", step.ended, step.ended, "system-container-executor")
            return
        ok = ("Succeeded", step.started, step.started, "system-container-driver")
        add(driver, "Retry", *ok, "", f"{driver}(0)")
        add(f"{driver}(0)", "Pod", *ok, "", name)
        now = (step.phase, step.started, step.ended)
        add(name, "Retry", *now, "system-container-executor", "", f"{name}(0)")
        add(f"{name}(0)", "DAG", *now, "system-container-executor", "", f"{name}(0).executor")
        attempts = [f"{name}(0).executor({number})" for number in range(step.attempts)]
        message = "No more retries left" if step.phase == "Failed" else ""
        add(f"{name}(0).executor", "Retry", *now, IMPL, message, *attempts)
        for attempt in attempts[:-1]:
            add(attempt, "Pod", "Error", step.started, step.started, IMPL, "pod deleted")
        add(attempts[-1], "Pod", *now, IMPL, step.message or "")

    def manifest(self, run_id):
        metadata = {"name": self.name, "labels": {"pipeline/runid": run_id}}
        return json.dumps(
            {
                "metadata": metadata,
                "spec": {"entrypoint": "entrypoint"},
                "status": {"phase": self.phase, "nodes": self.nodes()},
            }
        )

    def task_details(self, run_id):
        """As api_converter.go makes of the nodes (toModelTasks, toApiPipelineTaskDetail)."""
        tasks = []
        for node_id, node in sorted(self.nodes().items()):
            state = {"Error": "FAILED", "Omitted": ""}.get(node["phase"], node["phase"].upper())
            task = {
                "run_id": run_id,
                "task_id": f"task-of-{node_id}",
                "display_name": node["displayName"],
                "create_time": rfc3339(self.created),
                "start_time": node["startedAt"] or rfc3339(NOT_YET),
                "end_time": node["finishedAt"] or rfc3339(NOT_YET),
            }
            task |= {"state": state} if state else {}  # zero values are left out
            if node["children"]:
                task["child_tasks"] = [{"pod_name": child} for child in node["children"]]
            tasks.append(task)
        return tasks


def rfc3339(seconds):
    if seconds == NOT_YET:
        return "0001-01-01T00:00:00Z"
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(seconds):
    return None if seconds is None else rfc3339(seconds)
