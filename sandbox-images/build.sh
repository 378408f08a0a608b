#!/bin/sh
# Builds images of sandbox-images/, as localhost/espalier-sandbox-NAME:0.2.0.
#   sandbox-images/build.sh [NAME...]
#   BASE=registry.example/python@sha256:... sandbox-images/build.sh python
# Without BASE it makes one with debootstrap (base.sh, as root), so that no registry is needed.
# PODMAN may be another command of the same language: podman with its own --root.
set -eu
cd "$(dirname "$0")/.."
PODMAN=${PODMAN:-podman}
VERSION=${VERSION:-0.2.0}
export PODMAN

[ -n "${BASE:-}" ] || BASE=$(sandbox-images/base.sh)
[ $# -gt 0 ] || set -- python search shop swe
for name in "$@"; do
  # no runtime and no new network: what a build runs is written here, and comes from nobody else
  $PODMAN build --isolation chroot --network host --volume /etc/ssl/certs:/etc/ssl/certs:ro \
    --build-arg "BASE=$BASE" --file "sandbox-images/$name/Containerfile" \
    --tag "localhost/espalier-sandbox-$name:$VERSION" .
done
