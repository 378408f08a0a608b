module espalier.dev/cluster/containerd

go 1.24.0

require github.com/containerd/containerd/v2 v2.1.5
