# What backup.sh and restore.sh share: where everything lies, and how a failure is said. Environment:
#   MLFLOW_BACKEND_STORE_URI       sqlite:////PATH or postgresql://..., as MLflow's server has it
#   MLFLOW_ARTIFACTS_DESTINATION   s3://BUCKET of MLflow's files, as its server has it
#   ESPALIER_ARTIFACTS             s3://BUCKET/PREFIX of the runs
#   ESPALIER_BACKUPS               s3://BUCKET/PREFIX of the backups, which are there, by TIME in UTC:
#     databases/TIME.db, .dump       the database of a backup, written last: one that has it is whole
#     objects/BUCKET/...             every object as it was at the newest backup
#     replaced/TIME/BUCKET/...       what the backup of TIME replaced or deleted below objects/

export LC_ALL=C # names are compared by their bytes
export RCLONE_CONFIG=$here/rclone.conf
export RCLONE_S3_ENDPOINT=$AWS_ENDPOINT_URL_S3 RCLONE_S3_REGION=$AWS_REGION
export RCLONE_FAST_LIST=true # fewer requests
# rclone cannot take the certificates of a private authority the way AWS's libraries do
if [[ -n ${AWS_CA_BUNDLE:-} ]]; then
  export RCLONE_CA_CERT=$AWS_CA_BUNDLE
  unset AWS_CA_BUNDLE
fi

# A failure may pass, so a Job tries again; what is refused would be refused again (podFailurePolicy).
fail() {
  echo "error: $1" >&2
  exit 1
}
refuse() {
  echo "refused: $1" >&2
  exit 2
}

backups=backups:${ESPALIER_BACKUPS#s3://}
places=("${MLFLOW_ARTIFACTS_DESTINATION#s3://}" "${ESPALIER_ARTIFACTS#s3://}")

case $MLFLOW_BACKEND_STORE_URI in
  sqlite:///*)
    kind=db
    database=${MLFLOW_BACKEND_STORE_URI#sqlite:///}
    ;;
  postgresql*://*) # perhaps with SQLAlchemy's driver, as postgresql+psycopg2://
    kind=dump
    database=postgresql://${MLFLOW_BACKEND_STORE_URI#*://}
    ;;
  *) refuse "MLFLOW_BACKEND_STORE_URI is neither sqlite:///PATH nor postgresql://..." ;;
esac

# Fails unless the file is a whole copy of MLflow's database.
check_copy() {
  local found
  if [[ $kind == db ]]; then
    found=$(sqlite3 "$1" "PRAGMA integrity_check(1); SELECT count(*) FROM alembic_version") &&
      [[ $found == $'ok\n1' ]]
  else
    found=$(pg_restore --list "$1") && [[ $found == *alembic_version* ]]
  fi
}

# names FOLDER FLAG...: what lies in a folder of the backups, a line each, the oldest first.
names() {
  # where there is no folder yet there are no names; in S3 a folder is nothing that can be made
  rclone mkdir "$backups/$1" && rclone lsf --dir-slash=false "${@:2}" "$backups/$1" | sort
}

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
