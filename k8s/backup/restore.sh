#!/bin/bash
# Brings a backup back: BACKUP_NAME names it (TIME.db or TIME.dump), else the newest is taken.
#
# Files come before the manifests that name them, and the database last: an artifact or a version that
# can be seen has its files. No object is deleted, and the same command completes a restore that was
# killed.
set -euo pipefail
here=$(dirname "$0")
. "$here/settings.sh"

met=0
curl --silent --output /dev/null --max-time 5 "$MLFLOW_TRACKING_URI" || met=$?
case $met in
  6 | 7) ;; # no such host, or its connection is refused: there is no server
  *) refuse "MLflow answers at $MLFLOW_TRACKING_URI, or may be running (curl met $met), and its \
database cannot be replaced under it. Stop it: kubectl scale deployment/espalier-mlflow --replicas=0" ;;
esac

whole=$(names databases --files-only) || fail "the backups in $ESPALIER_BACKUPS could not be listed"
replaced=$(names replaced --dirs-only) || fail "the backups in $ESPALIER_BACKUPS could not be listed"
[[ -n $whole ]] || refuse "there is no backup in $ESPALIER_BACKUPS"
name=${BACKUP_NAME:-$(tail --lines=1 <<<"$whole")}
grep --quiet --line-regexp --fixed-strings -- "$name" <<<"$whole" ||
  refuse "there is no backup $name in $ESPALIER_BACKUPS, only ${whole//$'\n'/ }"
[[ $name == *.$kind ]] ||
  refuse "the backup $name is of another kind of database than MLFLOW_BACKEND_STORE_URI names"

echo "$name: reading MLflow's database"
copy=$work/$name
rclone copyto "$backups/databases/$name" "$copy" || fail "the backup $name could not be read"
check_copy "$copy" || refuse "MLflow's database in the backup $name is damaged: restore another one"

# the objects of the newest backup, then what later backups than this one replaced, the latest first
layers=(objects)
for later in $(sort --reverse <<<"$replaced"); do
  if [[ $later > $name ]]; then
    layers+=("replaced/$later")
  fi
done
for what in files manifests; do
  for place in "${places[@]}"; do
    echo "$name: writing the $what of s3://$place"
    for layer in "${layers[@]}"; do
      # 3 is "directory not found": a backup may have replaced nothing in a bucket
      rclone copy --filter-from "$here/$what.filter" "$backups/$layer/$place" "live:$place" ||
        [[ $? == 3 ]] || fail "the $what of s3://$place could not be restored"
    done
  done
done

echo "$name: writing MLflow's database"
if [[ $kind == db ]]; then
  cp "$copy" "$database.restored" && sync "$database.restored" || fail "$database cannot be written"
  former=$database.before-$(date --utc +%Y%m%dT%H%M%SZ)
  for suffix in "" -journal -wal -shm; do # a journal that stayed would be taken for the new file's
    if [[ -e $database$suffix ]]; then
      mv "$database$suffix" "$former$suffix"
      echo "kept $former$suffix"
    fi
  done
  mv "$database.restored" "$database"
else
  pg_restore --clean --if-exists --no-owner --single-transaction --dbname="$database" "$copy" ||
    fail "pg_restore could not restore MLflow's database, and changed nothing in it"
fi
echo "$name: restored"
