"""A real single-node Kubernetes with gVisor and S3, out of Go modules and Debian packages.

No registry, no kind, no uplink: everything runs in a network namespace of its own.

places          where programs are kept between clusters, and where a running one keeps its state
prerequisites   what the machine must have, and what to install
building        programs from Go modules, kept by the versions that they were built from
certificates    who is who: one authority, and a certificate for each part
network         the namespace without uplink
configuration   what containerd, the kubelet, kube-proxy and CoreDNS read
processes       starting, waiting for, and ending the parts
traces          what the parts write elsewhere, and its removal
parts           their commands, in order, and when each is ready
images          what pods run: the node's own environment, MinIO
sandbox_images  the image of sandbox-images/ that the tests' sandboxes run
objects         what is applied once the API server answers
cluster         up and down
chain           the whole pipeline as Jobs
faults          the same, while the cluster breaks under it

by hand         python -m tests.cluster build | up | status | run COMMAND... | chain | faults | down
"""
