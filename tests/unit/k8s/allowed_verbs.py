"""What each service account may do: the one source, for the manifests, the README and a cluster.

Account -> (namespace, API group, resource) -> verbs. What is not here is refused; the accounts that
are missing here may do nothing. A right on one object alone is written "resource NAME:name".
"""

PIPELINE = "espalier-pipeline"
SANDBOXES = "espalier-sandboxes"
AGENT_SANDBOX = "extensions.agents.x-k8s.io"

ALLOWED_VERBS = {
    "espalier-trainer": {
        (SANDBOXES, "", "pods"): "create delete get list watch",
        (SANDBOXES, "coordination.k8s.io", "leases"): "create delete get patch",
        (SANDBOXES, AGENT_SANDBOX, "sandboxtemplates"): "create delete get list watch",
        (SANDBOXES, AGENT_SANDBOX, "sandboxwarmpools"): "create delete get list watch",
        (SANDBOXES, AGENT_SANDBOX, "sandboxclaims"): "create delete get list watch",
    },
    "espalier-step-runner": {
        (PIPELINE, "batch", "jobs"): "create delete get list watch",
        (PIPELINE, "", "pods"): "get list watch",
        (PIPELINE, "", "pods/log"): "get",
    },
    "espalier-training-launcher": {
        (PIPELINE, "ray.io", "rayjobs"): "create delete get",
        (PIPELINE, "trainer.kubeflow.org", "trainjobs"): "create delete get",
    },
    "espalier-serving-controller": {
        (PIPELINE, "apps", "deployments NAME:espalier-serving"): "get patch",
        (PIPELINE, "", "pods"): "list",
        (PIPELINE, "", "events"): "create",
    },
    "espalier-sandbox-gc": {
        (SANDBOXES, "", "pods"): "delete list",
        (SANDBOXES, "coordination.k8s.io", "leases"): "delete list",
    },
}

KSERVE_VERBS = {
    "espalier-serving-controller": {
        (PIPELINE, "serving.kserve.io", "llminferenceservices NAME:espalier-serving"): (
            "create get patch"
        ),
        (PIPELINE, "apps", "deployments NAME:espalier-serving-kserve"): "get",
        (PIPELINE, "", "pods"): "list",
        (PIPELINE, "", "events"): "create",
    }
}
"""In the place of the account's rights above, in k8s/overlays/kserve."""

KUBEFLOW_VERBS = {
    "espalier-kubeflow": {
        (PIPELINE, "argoproj.io", "workflowtaskresults"): "create patch",
        (PIPELINE, "", "configmaps NAME:kfp-launcher"): "get",
        (PIPELINE, "", "secrets NAME:espalier-s3"): "get",
        (PIPELINE, "", "secrets NAME:mlpipeline-minio-artifact"): "get",
        (PIPELINE, "", "pods"): "get",
        **ALLOWED_VERBS["espalier-training-launcher"],
        **ALLOWED_VERBS["espalier-trainer"],
    },
    "espalier-training-gc": {
        (PIPELINE, "ray.io", "rayjobs"): "delete list",
        (PIPELINE, "trainer.kubeflow.org", "trainjobs"): "delete list",
        (PIPELINE, "argoproj.io", "workflows"): "get",
        (PIPELINE, "batch", "jobs"): "get",
    },
}
"""Accounts of k8s/kubeflow besides; where Kubeflow has one user, its namespace is in the place of
the pipeline's."""

WITHOUT_RIGHTS = {
    PIPELINE: {"default", "espalier-step", "espalier-serving", "espalier-mlflow"},
    SANDBOXES: {"default", "espalier-sandbox"},
}
"""Accounts of every overlay that may do nothing; espalier-minio (local) and -rollout (gpu) too."""
