"""Schemas of custom resources, written by hand: no CRD is at hand where the unit tests run.

They hold the fields that we use and refuse every other, so a misspelt one is seen; they prove
nothing about a controller. tests/cluster/neighbours/test_objects.py checks the same objects against
the projects' own CRD files, where checkouts of them are there, and test_kserve.py those of KServe.
Sources: RayJob ray-operator/apis/ray/v1 (KubeRay 1.7.0), Kueue apis/kueue/v1beta2 (0.19),
agent-sandbox extensions/api/v1beta1, Kubeflow Trainer pkg/apis/trainer/v1alpha1 (2.3.0), KServe
pkg/apis/serving/v1alpha2 (0.20.0).
"""

NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
TEXT_MAP = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT, POSITIVE = ({"type": "integer", "minimum": least} for least in (0, 1))
TEXT, BOOLEAN = {"type": "string", "minLength": 1}, {"type": "boolean"}
POD_TEMPLATE = {"type": "object", "required": ["metadata", "spec"]}
"""Checked against the client's model of a pod template, see kinds.py."""


def record(required, **optional):
    return {
        "type": "object",
        "additionalProperties": False,
        "required": sorted(required),
        "properties": {**required, **optional},
    }


def one_of(*values):
    return {"enum": list(values)}


def several(item, **bounds):
    return {"type": "array", "items": item, **bounds}


REFERENCE = record({"name": NAME})

RAY_GROUP = {"rayStartParams": TEXT_MAP, "template": POD_TEMPLATE}
RAY_WORKERS = record(
    {
        **RAY_GROUP, "groupName": NAME,
        "replicas": COUNT, "minReplicas": COUNT, "maxReplicas": COUNT,
    }
)  # fmt: skip
RAY_CLUSTER = record(
    {"headGroupSpec": record(RAY_GROUP)},
    rayVersion={"type": "string"},
    authOptions=record({}, mode=one_of("disabled", "token")),
    # Kueue counts at most 8 pod sets: head, submitter, and these
    workerGroupSpecs=several(RAY_WORKERS, maxItems=6),
)
RAY_JOB = record(
    {
        "entrypoint": TEXT, "rayClusterSpec": RAY_CLUSTER,
        "shutdownAfterJobFinishes": {"const": True},  # without it Kueue refuses the job
    },
    entrypointNumCpus=COUNT, entrypointNumGpus=COUNT,
    submissionMode=one_of("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
    ttlSecondsAfterFinished=COUNT, activeDeadlineSeconds=POSITIVE, backoffLimit=COUNT,
    submitterPodTemplate=POD_TEMPLATE,
)  # fmt: skip

QUANTITY = {"type": "string", "pattern": r"^\d+(m|[KMGT]i?)?$"}
FLAVOR_RESOURCE = record({"name": TEXT, "nominalQuota": QUANTITY})
FLAVOR = record({"name": NAME, "resources": several(FLAVOR_RESOURCE, minItems=1)})
RESOURCE_GROUP = record(
    {"coveredResources": several(TEXT, minItems=1), "flavors": several(FLAVOR, minItems=1)}
)
PREEMPTION = one_of("Never", "LowerPriority", "LowerOrNewerEqualPriority")
CLUSTER_QUEUE = record(
    {},
    namespaceSelector=record({}, matchLabels=TEXT_MAP),
    queueingStrategy=one_of("StrictFIFO", "BestEffortFIFO"),
    preemption=record({}, withinClusterQueue=PREEMPTION),
    resourceGroups=several(RESOURCE_GROUP, maxItems=16),
)
EFFECT = one_of("NoSchedule", "PreferNoSchedule", "NoExecute")
TAINT = record({"key": TEXT, "effect": EFFECT}, value={"type": "string"})
RESOURCE_FLAVOR = record(
    {}, nodeLabels={**TEXT_MAP, "maxProperties": 8}, nodeTaints=several(TAINT, maxItems=8)
)
LOCAL_QUEUE = record({"clusterQueue": NAME})

POLICY = one_of("Allowed", "Overrides", "Disallowed")
SANDBOX_TEMPLATE = record(
    {"podTemplate": POD_TEMPLATE}, service=BOOLEAN,
    networkPolicyManagement=one_of("Managed", "Unmanaged"),
    envVarsInjectionPolicy=POLICY, volumeClaimTemplatesPolicy=POLICY,
)  # fmt: skip
SANDBOX_WARM_POOL = record(
    {"sandboxTemplateRef": REFERENCE},
    replicas=COUNT,
    updateStrategy=record({"type": one_of("Recreate", "OnReplenish")}),
)
LIFECYCLE = record(
    {},
    shutdownTime={"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
    shutdownPolicy=one_of("Delete", "DeleteForeground", "Retain"),
    ttlSecondsAfterFinished=COUNT,
)
SANDBOX_CLAIM = record({"warmPoolRef": REFERENCE}, lifecycle=LIFECYCLE)

LLM_INFERENCE_SERVICE = record(
    {},
    model=record({"uri": {"type": "string"}}, name={"type": "string"}),
    baseRefs=several(REFERENCE), replicas=COUNT, labels=TEXT_MAP, annotations=TEXT_MAP,
    router=record({}, route=record({}, http=record({}))),
    template={"type": "object", "required": ["containers"]},
)  # fmt: skip
ENVIRONMENT_ENTRY = record(
    {"name": TEXT}, value={"type": "string"}, valueFrom={"type": "object", "minProperties": 1}
)
WORDS, NUMBER = several({"type": "string"}, maxItems=128), {"type": "integer"}
TRAINER = record(
    {},
    image={"type": "string", "maxLength": 500}, command=WORDS, args=WORDS,
    env=several(ENVIRONMENT_ENTRY, maxItems=128), numNodes=NUMBER, numProcPerNode=NUMBER,
    resourcesPerNode=record({}, requests=TEXT_MAP, limits=TEXT_MAP),
)  # fmt: skip
# what a manager may patch of the runtime's pods; the environment of `node` is the trainer's
CONTAINER_PATCH = record(
    {"name": NAME}, volumeMounts=several({"type": "object", "required": ["name", "mountPath"]})
)
POD_SPEC_PATCH = record(
    {},
    containers=several(CONTAINER_PATCH, maxItems=64), nodeSelector=TEXT_MAP,
    tolerations=several({"type": "object"}, maxItems=128),
    volumes=several({"type": "object", "required": ["name"]}, maxItems=128),
)  # fmt: skip
POD_PATCH = record(
    {}, metadata=record({}, labels=TEXT_MAP, annotations=TEXT_MAP), spec=POD_SPEC_PATCH
)
JOB_PATCH = record({"name": NAME}, template=record({}, spec=record({}, template=POD_PATCH)))
JOBS_PATCH = record({}, spec=record({}, replicatedJobs=several(JOB_PATCH, maxItems=100)))
RUNTIME_PATCH = record(
    {"manager": {"type": "string", "pattern": r"^[^/]+\.[^/]+/[^/]+$", "maxLength": 253}},
    trainingRuntimeSpec=record({}, template=JOBS_PATCH),
)
RUNTIME_REFERENCE = record(
    {"name": NAME},
    apiGroup={"const": "trainer.kubeflow.org"},
    kind=one_of("ClusterTrainingRuntime", "TrainingRuntime"),
)
TRAIN_JOB = record(
    {"runtimeRef": RUNTIME_REFERENCE}, trainer=TRAINER, suspend=BOOLEAN,
    runtimePatches=several(RUNTIME_PATCH, maxItems=16), activeDeadlineSeconds=POSITIVE,
)  # fmt: skip
ANCESTOR = {"const": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
NODE_SPEC = {"type": "object", "required": ["template"]}
NODE_JOB = record({"metadata": {"properties": {"labels": ANCESTOR}}, "spec": NODE_SPEC})
REPLICATED_JOB = record({"name": {"const": "node"}, "template": NODE_JOB})
"""Its Job is checked against the client's model of one, see kinds.py."""
RUNTIME_JOBS = record({"replicatedJobs": several(REPLICATED_JOB, minItems=1)})
ML_POLICY = record({}, numNodes=NUMBER, torch=record({}))
TRAINING_RUNTIME = record({"mlPolicy": ML_POLICY, "template": record({"spec": RUNTIME_JOBS})})
METRIC_TEXT = {"type": "string", "minLength": 1, "maxLength": 64}
TRAINER_STATUS = record(
    {"lastUpdatedTime": {"type": "string", "format": "date-time"}},
    progressPercentage={"type": "integer", "minimum": 0, "maximum": 100},
    estimatedRemainingSeconds={"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    metrics=several(record({"name": METRIC_TEXT, "value": METRIC_TEXT}), maxItems=256),
)
"""TrainerStatus of a TrainJob, as a pod reports it."""

SPECS = {
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): TRAIN_JOB,
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): TRAINING_RUNTIME,
    ("ray.io/v1", "RayJob"): RAY_JOB,
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): RESOURCE_FLAVOR,
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): CLUSTER_QUEUE,
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): LOCAL_QUEUE,
    ("extensions.agents.x-k8s.io/v1beta1", "SandboxTemplate"): SANDBOX_TEMPLATE,
    ("extensions.agents.x-k8s.io/v1beta1", "SandboxWarmPool"): SANDBOX_WARM_POOL,
    ("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim"): SANDBOX_CLAIM,
    ("serving.kserve.io/v1alpha2", "LLMInferenceService"): LLM_INFERENCE_SERVICE,
    ("serving.kserve.io/v1alpha2", "LLMInferenceServiceConfig"): LLM_INFERENCE_SERVICE,
}


def is_custom(manifest):
    return (manifest["apiVersion"], manifest["kind"]) in SPECS


def whole(manifest):
    """The schema of a whole object of the manifest's kind."""
    required = {"apiVersion": {}, "kind": {}, "metadata": {"type": "object", "required": ["name"]}}
    spec = SPECS[manifest["apiVersion"], manifest["kind"]]
    if spec is RESOURCE_FLAVOR:  # one without a spec fits every node
        return record(required, spec=spec)
    return record({**required, "spec": spec})
