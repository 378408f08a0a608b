#!/bin/sh
# Builds images of sandbox-images/, as localhost/espalier-sandbox-NAME:0.1.0.
#   sandbox-images/build.sh [NAME...]
#   BASE=registry.example/python@sha256:... sandbox-images/build.sh python
# Without BASE it makes one with debootstrap (as root), so that no registry is needed.
# PODMAN may be another command of the same language: docker, or podman with its own --root.
set -eu
cd "$(dirname "$0")/.."
PODMAN=${PODMAN:-podman}
VERSION=0.1.0
OWN_BASE=localhost/espalier-sandbox-base:bookworm

make_base() {
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  debootstrap --variant=minbase --include=python3,python3-venv bookworm "$folder" >&2
  rm -rf "$folder"/var/lib/apt/lists/* "$folder"/var/cache/apt/* "$folder"/usr/share/doc \
    "$folder"/usr/share/man "$folder"/usr/share/locale "$folder"/dev/*
  tar -C "$folder" -c . | $PODMAN import - "$OWN_BASE"
}

if [ -z "${BASE:-}" ]; then
  $PODMAN image exists "$OWN_BASE" || make_base
  BASE=$OWN_BASE
fi
[ $# -gt 0 ] || set -- python search shop swe
for name in "$@"; do
  # no runtime and no new network: what a build runs is written here, and comes from nobody else
  $PODMAN build --isolation chroot --network host --volume /etc/ssl/certs:/etc/ssl/certs:ro \
    --build-arg "BASE=$BASE" --file "sandbox-images/$name/Containerfile" \
    --tag "localhost/espalier-sandbox-$name:$VERSION" .
done
