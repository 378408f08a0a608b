"""A real Kubeflow Pipelines on the tests' cluster, from source checkouts that the user has.

    make test-kubeflow SOURCES=DIR
    python -m tests.cluster kubeflow --sources DIR
    python -m tests.cluster kubeflow --sources DIR --mode single-user

DIR holds `pipelines` (kubeflow/pipelines, release 2.17.0 or later) and `argo-workflows` or `argo`
(argoproj/argo-workflows, the release that the other's go.mod names); neither is changed.

sources      its programs, built once and kept
pages        its own pages, built with npm where that and a browser are installed
images       an image for each of them
servers      what it needs beside Kubernetes: a database, ML Metadata, an S3 server
manifests    its own manifests, for one user and for many, without what cannot run here
backend      up: all of this on a cluster that is up
browsing     its pages in that browser, as a user has them
runs         pipelines of espalier on it: submitted, followed, broken
form         runs as the run form of its pages sends them
test_*       what is shown on it
"""
