#!/usr/bin/env bash
# Rehearses deploy/README.md in an empty project:
#
#   deploy/rehearse.sh PROJECT terraform|gcloud
#
# It runs the page's own commands in a clone of the last commit: the preparation, one of
# the two paths, a release with Cloud Build, and the removal, also after a failure. It
# turns on all audit logs of the project first, and at the end writes each permission that
# an account used, or was refused, to PROJECT-permissions.txt. You must be logged in to
# gcloud, also with application-default login, as an owner of the project.
#
# Use a new project each time: after the removal, Cloud Tasks refuses the queue's name for
# three days, and IAM the custom role's ID for up to 37 days.
set -euo pipefail
shopt -s inherit_errexit

PROJECT=${1-} way=${2-} REGION=${REGION:-europe-west1}
: "${PAUSE:=180}" # seconds until roles have taken effect, and until logs have arrived
permissions=$PWD/$PROJECT-permissions.txt

log() { printf '%s\n' "$@" >&2; }
die() { log "$@"; exit 1; }

# section prints the commands of a section of the page that may run unattended.
section() {
  awk -v heading="$1" '/^```$/ { code = 0 } code { print } /^##/ { here = $0 ~ "^##+ " heading "$" } here && /^```sh$/ { code = 1 }' deploy/README.md |
    sed -e "s|^PROJECT=.*|PROJECT=$PROJECT REGION=$REGION|" -e "s|^SUBMITTER=.*|SUBMITTER=$caller OPERATOR=$caller ALERTS=${caller#*:}|" \
      -e '/^gcloud auth login/d' -e '/^gcloud auth application-default login/d' \
      -e "/^taskguard doctor --service taskguard-worker/i sleep $PAUSE" -e 's/^taskguard submit /&--wait /' \
      -e '/^curl /,$d' # the task of an analysis that does not exist
}

follow() {
  local commands
  commands=$(section "$1")
  [ -n "$commands" ] || die "deploy/README.md has no commands under $1"
  log '' "== $1" "$commands"
  eval "$commands"
}

# resources lists the project's resources that cost money or keep data.
resources() {
  local enabled api kind
  enabled=$(gcloud services list --enabled --project="$PROJECT" --format='value(config.name)') || { echo "unknown resources"; return; }
  while read -r api kind; do
    ! grep -qx "$api.googleapis.com" <<<"$enabled" ||
      gcloud $kind list --project="$PROJECT" --format='value(firstof(name,metadata.name))' </dev/null | sed "s|^|$kind: |" || echo "$kind: unknown"
  done <<'END'
run run services
firestore firestore databases
secretmanager secrets
artifactregistry artifacts repositories
storage storage buckets
END
}

remove() {
  local status=$? left
  set +eu # after an early failure, variables of the page are unset
  trap '' INT TERM
  follow "Made with ${paths[$way]/With /}"
  follow "On either path"
  log '' "== Permissions"
  sleep "$PAUSE"
  gcloud logging read "logName:\"cloudaudit.googleapis.com\" AND timestamp>=\"$start\"" --project="$PROJECT" --flatten='protoPayload.authorizationInfo[]' \
    --format='value(protoPayload.authenticationInfo.principalEmail,protoPayload.authorizationInfo.permission,protoPayload.authorizationInfo.granted.yesno(yes=granted,no=refused))' |
    sort | uniq -c >"$permissions"
  log "$(wc -l <"$permissions") lines are in $permissions"
  left=$(resources)
  [ -z "$left" ] || { log "Left in $PROJECT: $left" "The clone, with Terraform's state, is $clone"; status=1; }
  log "The audit logs of $PROJECT stay on, its APIs enabled, and roles in its policy: delete the project if it was for this only."
  exit "$status"
}

declare -A paths=([terraform]="With Terraform" [gcloud]="With gcloud alone")
[[ $PROJECT && ${paths[$way]-} ]] || die "usage: rehearse.sh PROJECT terraform|gcloud" "PROJECT is a new, empty project each time."
caller=user:$(gcloud config get-value account)
[[ $caller != *.gserviceaccount.com ]] || caller=serviceAccount:${caller#*:}
gcloud auth application-default print-access-token >/dev/null
left=$(resources)
[ -z "$left" ] || die "$PROJECT is not empty: $left"
# For seven days, IAM also describes a deleted role.
! gcloud iam roles describe taskguardOperations --project="$PROJECT" --quiet </dev/null >/dev/null 2>&1 ||
  die "$PROJECT has been rehearsed, or has the role taskguardOperations: use a new project"

log "This deploys everything to $PROJECT in $REGION, as ${caller#*:}, and removes it again, in" \
  "about an hour and a half. It makes $PROJECT the configured project of gcloud." \
  "It costs a few US dollars: two builds on E2_HIGHCPU_8 (about 45 minutes), and cents for" \
  "Firestore, Cloud Run, images, logs and alerts. Prices: https://cloud.google.com/build/pricing" \
  "If the removal fails, the resources that it lists as left continue to cost money."
read -r -p "Type the project's name to begin: " answer
[ "$answer" = "$PROJECT" ] || die "nothing has been changed"

export CLOUDSDK_CORE_DISABLE_PROMPTS=1 TF_INPUT=0 TF_CLI_ARGS_apply=-auto-approve TF_CLI_ARGS_destroy=-auto-approve
SERVICES="taskguard-worker taskguard-doclock"
start=$(date -u +%Y-%m-%dT%H:%M:%SZ)
clone=$(mktemp -d)
git clone --quiet "$(dirname "$0")/.." "$clone"
log "The commands run in $clone"
cd "$clone"
gcloud projects get-iam-policy "$PROJECT" --format=yaml >policy.yaml
if ! grep -q '^auditConfigs:' policy.yaml; then
  cat >>policy.yaml <<END
auditConfigs:
- service: allServices
  auditLogConfigs: [{logType: ADMIN_READ}, {logType: DATA_READ}, {logType: DATA_WRITE}]
END
  gcloud projects set-iam-policy "$PROJECT" policy.yaml >/dev/null
fi

trap remove EXIT
trap 'exit 1' INT TERM
follow "First, on either path"
follow "${paths[$way]}"
follow "With Cloud Build"
