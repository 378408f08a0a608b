"""Kueue, KubeRay, agent-sandbox, JobSet and Kubeflow Trainer, built from source, on our cluster.

    python -m tests.cluster neighbours --sources DIR          the tests
    python -m tests.cluster neighbours --sources DIR --up     only the cluster, left running
    python -m tests.cluster neighbours --sources DIR tests/cluster/neighbours/test_kueue.py -x

DIR has checkouts named kueue, kuberay, agent-sandbox, trainer, and kserve for its CRD files alone;
JobSet comes from Go's module proxy, in the version that the trainer was made for. Each is installed
by its own kustomize manifests, of which only images, requests and namespaces are changed
(`manifests`). One that cannot be built here is named with its error, and what espalier makes for it
is still checked against its CRD files (`test_objects`).
"""
