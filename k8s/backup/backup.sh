#!/bin/bash
# Backs up MLflow's database and the buckets, while both are in use.
#
# The database is copied before the objects, and the manifests are read before the files: both are
# written after the files that they name, so what they name is there. In the backup a manifest is
# written after its files, so that none ever lies there without them.
set -euo pipefail
here=$(dirname "$0")
. "$here/settings.sh"

now=$(date --utc +%Y%m%dT%H%M%SZ)
copy=$work/$now.$kind

echo "$now: copying MLflow's database"
if [[ $kind == db ]]; then
  sqlite3 -readonly -cmd ".timeout 60000" "$database" ".backup '$copy'" ||
    fail "$database cannot be copied: it is missing, locked for a minute, or damaged"
else
  pg_dump --format=custom --file="$copy" --dbname="$database" ||
    fail "pg_dump could not copy MLflow's database"
fi
check_copy "$copy" || fail "the copy of MLflow's database is damaged, or not MLflow's database"

# transfer files|manifests FROM PLACE copy|sync FLAG...: what it replaces or deletes is kept aside
transfer() {
  rclone "${@:4}" --filter-from "$here/$1.filter" --backup-dir "$backups/replaced/$now/$3" \
    "$2" "$backups/objects/$3" || fail "the $1 of s3://$3 could not be copied to $ESPALIER_BACKUPS"
}

for place in "${places[@]}"; do
  echo "$now: copying s3://$place"
  manifests=$work/manifests/$place
  mkdir --parents "$manifests"
  rclone copy --filter-from "$here/manifests.filter" "live:$place" "$manifests" ||
    fail "the manifests of s3://$place could not be read"
  transfer files "live:$place" "$place" copy
  transfer manifests "$manifests" "$place" sync
  # only now may files go that no manifest of the backup names any more
  transfer files "live:$place" "$place" sync --ignore-existing
done

rclone copyto "$copy" "$backups/databases/$now.$kind" ||
  fail "MLflow's database could not be copied to $ESPALIER_BACKUPS"
echo "$now: the backup is whole"

whole=$(names databases --files-only) || fail "the backups in $ESPALIER_BACKUPS could not be listed"
replaced=$(names replaced --dirs-only) || fail "the backups in $ESPALIER_BACKUPS could not be listed"
oldest=$(tail --lines="$KEEP" <<<"$whole" | sed --quiet 1p)
for name in $whole; do
  if [[ $name < $oldest ]]; then
    echo "$now: deleting the backup $name"
    rclone deletefile "$backups/databases/$name" || fail "the backup $name could not be deleted"
  fi
done
# what a backup replaced is needed to go back to an earlier one, and there is none any more
for name in $replaced; do
  if [[ $name < $oldest ]]; then
    rclone purge "$backups/replaced/$name" || fail "$backups/replaced/$name could not be deleted"
  fi
done
