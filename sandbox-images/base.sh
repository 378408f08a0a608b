#!/bin/sh
# Makes a base for images where no registry is reached: Debian 12 with its Python, by debootstrap (as
# root, once). Prints its name.
#   sandbox-images/base.sh
set -eu
PODMAN=${PODMAN:-podman}
BASE=localhost/espalier-base:bookworm

if ! $PODMAN image exists "$BASE"; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$folder" >&2
  rm -rf "$folder"/var/lib/apt/lists/* "$folder"/var/cache/apt/* "$folder"/usr/share/doc \
    "$folder"/usr/share/man "$folder"/usr/share/locale "$folder"/dev/*
  tar -C "$folder" -c . | $PODMAN import - "$BASE" >&2
fi
echo "$BASE"
