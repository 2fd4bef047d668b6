#!/usr/bin/env bash
# Rehearses the pages of deploy/ in an empty project (rehearse.md):
#
#   deploy/rehearse.sh PROJECT terraform|gcloud [STEP…]
#
# It runs the pages' own commands in a clone of the last commit, PROJECT-rehearsal: all the
# steps below in their order, and removes everything, also after a failure. With steps, it
# takes these alone, on what an earlier call has left. It turns on all audit logs of the
# project first, and at the end writes each permission that an account used, or was refused,
# to PROJECT-permissions.txt. You must be logged in to gcloud, also with application-default
# login, as an owner of the project. UPGRADE_FROM=COMMIT deploys that commit first.
#
# OPERATOR=, RESPONDER= and SUBMITTER=, the e-mail addresses of three service accounts, get these roles and take
# these people's steps. You need roles/iam.serviceAccountTokenCreator on each. Without them, you take all steps.
#
# Use a new project each time: after the removal, Cloud Tasks refuses the queue's name for
# three days, and IAM the custom roles' IDs for up to 37 days.
set -euo pipefail
shopt -s inherit_errexit extglob

PROJECT=${1-} way=${2-} REGION=${REGION:-europe-west1}
: "${PAUSE:=180}" # seconds until roles have taken effect, and until logs have arrived
: "${BUILD_REGION:=$REGION}" "${BACKUP_REGION:=europe-north1}" "${UPGRADE_FROM=}"
operator=${OPERATOR-} responder=${RESPONDER-} submitter=${SUBMITTER-}
permissions=$PWD/$PROJECT-permissions.txt clone=$PWD/$PROJECT-rehearsal

log() { printf '%s\n' "$@" >&2; }
die() { log "$@"; exit 1; }

# as runs a command of gcloud or taskguard as an account; empty: as you.
as() {
  local account=$1
  shift
  [ -n "$account" ] || { "$@"; return; }
  CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT=$account GOOGLE_APPLICATION_CREDENTIALS=$clone/.as-$account.json "$@"
}

# impersonate writes the credentials with which as runs taskguard.
impersonate() {
  local account source=${GOOGLE_APPLICATION_CREDENTIALS-}
  [ -n "$source" ] || source=$(gcloud info --format='value(config.paths.global_config_dir)')/application_default_credentials.json
  for account in $operator $responder $submitter; do
    (umask 077 && printf '{"type": "impersonated_service_account", "source_credentials": %s, "service_account_impersonation_url": "%s"}' "$(<"$source")" \
      "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/$account:generateAccessToken" >"$clone/.as-$account.json")
  done
}

# section prints the commands of a section of the pages that may run unattended.
section() {
  awk -v heading="$1" 'FNR == 1 { here = 0 } /^```$/ { code = 0 } code { print } /^##/ { here = $0 ~ "^##+ " heading "$" } here && /^```sh$/ { code = 1 }' deploy/*.md |
    sed -e "s|^PROJECT=.*|PROJECT=$PROJECT REGION=$REGION BUILD_REGION=$BUILD_REGION BACKUP_REGION=$BACKUP_REGION|" -e "s|^SUBMITTER=.*|SUBMITTER=${submitter:+serviceAccount:}${submitter:-$caller} OPERATOR=${operator:+serviceAccount:}${operator:-$caller} ALERTS=${caller#*:}|" \
      ${responder:+-e "s|^  operators .*|  operators = [\"\$OPERATOR\", \"serviceAccount:$responder\"]|" -e "s|^  responders .*|  responders = [\"serviceAccount:$responder\"]|"} \
      -e '/^gcloud auth login/d' -e '/^gcloud auth application-default/d' \
      -e "/^taskguard doctor --service taskguard-worker/i sleep $PAUSE" \
      -e '/^curl /,$d' # the task of an analysis that does not exist
}

follow() {
  local commands
  commands=$(section "$1")
  [ -n "$commands" ] || die "no page of deploy/ has commands under $1"
  log '' "== $1" "$commands"
  eval "$commands"
  # What steps that are run alone need.
  { declare -p start head operator responder submitter $(compgen -v -X '!@(NUMBER|WORKER|DOCLOCK|CALLER|BUILD|SUBMITTER|OPERATOR|ALERTS|CHANNEL|KO_DOCKER_REPO|*_IMAGE|TASK_*|*_DATABASE)'); declare -f ko retry submit || true; } >"$clone/.variables"
}

# The steps.

prepare() {
  gcloud projects get-iam-policy "$PROJECT" --format=yaml >policy.yaml
  if ! grep -q '^auditConfigs:' policy.yaml; then
    cat >>policy.yaml <<END
auditConfigs:
- service: allServices
  auditLogConfigs: [{logType: ADMIN_READ}, {logType: DATA_READ}, {logType: DATA_WRITE}]
END
    gcloud projects set-iam-policy "$PROJECT" policy.yaml >/dev/null
  fi
  follow "First, on either path"
}

deploy() { follow "${paths[$way]}"; }

# upgrade takes the steps of docs/operations.md; the release follows.
upgrade() {
  [ -n "$UPGRADE_FROM" ] || return 0
  git checkout --quiet --force "$head"
  [ "$way" != terraform ] || terraform -chdir=production apply
}

release() { follow "With Cloud Build"; }

# release_with submits a release with these substitutions.
release_with() { submit --config=deploy/cloudbuild-release.yaml --substitutions="_REGION=$REGION,$1"; }

# worker is gcloud run services $1, on the worker.
worker() { gcloud run services "$1" taskguard-worker --project="$PROJECT" --region="$REGION" "${@:2}"; }

# shares prints the traffic, percent,revision a line.
shares() { worker describe --flatten='status.traffic[]' --format='csv[no-heading](status.traffic.percent,status.traffic.revisionName)' | grep '^[1-9]'; }

# settings changes one after a release, which must reach the revision with the traffic. A responder
# takes the steps of "Change a setting", and an operator the last one.
settings() {
  local revision
  if [ "$way" = terraform ]; then
    sed -i.orig 's|^  region .*|&\n  max_attempts = 9|' production/main.tf
    terraform -chdir=production apply
  else
    worker update --no-traffic --update-env-vars=MAX_ATTEMPTS=9
  fi
  if [ -n "$responder" ]; then
    eval "$(terraform -chdir=production output -raw environment)"
    as "$responder" bash deploy/release.sh settings
  else
    release_with _SETTINGS=yes,_DOCLOCK=taskguard-doclock
  fi
  revision=$(shares | sed -n 's/^100,//p')
  gcloud run revisions describe "$revision" --project="$PROJECT" --region="$REGION" --format=yaml | grep -A 1 'name: MAX_ATTEMPTS' | grep -q "value: '9'" ||
    die "$revision has the traffic, and not MAX_ATTEMPTS=9"
  as "$operator" taskguard doctor --service taskguard-worker --smoke '{"text": "a test"}' # which fails if it may not read something
}

# share releases the same programs with 50 percent first, while there are deliveries.
share() {
  release_with _SETTINGS=yes,_SHARE=50,_SHARE_SECONDS=300 &
  while kill -0 $! 2>/dev/null; do as "$submitter" taskguard submit --input '{"text": "a share"}' && sleep 10; done
  wait $!
}

# rollback gives the traffic to an older revision by hand, and back.
rollback() {
  local now old
  now=$(shares | sed -n 's/^100,//p')
  old=$(gcloud run revisions list --service=taskguard-worker --project="$PROJECT" --region="$REGION" --format='value(name)' | grep -vx "$now" | sed -n 1p)
  as "$responder" worker update-traffic --to-revisions="$old=100"
  as "$submitter" taskguard submit --wait --input '{"text": "after a roll-back"}'
  as "$responder" worker update-traffic --to-revisions="$now=100"
}

# broken releases an analyzer that does not answer: it must get no traffic, because of the self-test.
broken() {
  local before
  before=$(shares)
  worker update --no-traffic --update-env-vars=ANALYZER=http://localhost:1/
  ! release_with _SETTINGS=yes 2>&1 | tee broken.log || die "a broken analyzer was released"
  grep -q '/internal/self-test answers' broken.log || die "the release failed, but not by the self-test"
  worker update --no-traffic --update-env-vars=ANALYZER=builtin:document
  [ "$(shares)" = "$before" ] || die "the broken release changed the traffic: $(shares)"
}

# ask sends a query to Cloud Monitoring, which refuses one that it does not understand.
ask() {
  local access reply
  access=$(gcloud auth print-access-token)
  reply=$(printf 'Authorization: Bearer %s' "$access" | curl --silent --show-error --header @- --data-urlencode "query=$1" \
    "https://monitoring.googleapis.com/v1/projects/$PROJECT/location/global/prometheus/api/v1/query")
  [[ $reply =~ \"status\":\ *\"success\" ]] || { log "Cloud Monitoring refuses $1"; return 1; }
}

queries() {
  local policy query board
  for policy in $(gcloud monitoring policies list --project="$PROJECT" --format='value(name)'); do
    ask "$(gcloud monitoring policies describe "$policy" --format='value(conditions[0].conditionPrometheusQueryLanguage.query)')"
  done
  board=$(gcloud monitoring dashboards list --project="$PROJECT" --filter=displayName=taskguard --format='value(name)')
  gcloud monitoring dashboards describe "$board" --flatten='mosaicLayout.tiles[].widget.xyChart.dataSets[]' \
    --format='value(mosaicLayout.tiles.widget.xyChart.dataSets.timeSeriesQuery.prometheusQuery)' </dev/null >charts
  while read -r query; do ask "$query" </dev/null; done <charts
}

# alert sends a task that can never succeed, and waits for a person to have been told.
alert() {
  local answer
  gcloud tasks create-http-task --queue=analyses --location="$REGION" --project="$PROJECT" --url="$WORKER/internal/tasks/analysis" \
    --method=post --header=Content-Type:application/json --body-content='{}' \
    --oidc-service-account-email="$CALLER" --oidc-token-audience="$WORKER"
  read -r -p "In about ten minutes $ALERTS gets \"tasks can never succeed\". Type yes when it has arrived: " answer
  [ "$answer" = yes ] || die "the alert did not arrive"
}

# sidecar deploys the example, and releases its image by the build.
sidecar() {
  local image
  [ "$way" = terraform ] || return 0
  release_with _APP=deploy/sidecar/app # only the image: there is no such container yet
  image=$(gcloud artifacts docker images list "$KO_DOCKER_REPO/app" --sort-by=~UPDATE_TIME --format='value[separator="@"](package,version)' | sed -n 1p)
  sed -i.orig "s|^  region .*|&\n  app = { image = \"$image\", env = { APP_PORT = \"9000\", APP_SLOTS = \"10\" } }|" production/main.tf
  terraform -chdir=production apply
  release_with _SETTINGS=yes
  release_with _APP=deploy/sidecar/app
  as "$submitter" taskguard submit --wait --input '{"text": "the lamp and the moon"}'
}

# plan applies after the releases; nothing may be left to do then.
plan() {
  [ "$way" = terraform ] || return 0
  terraform -chdir=production apply
  terraform -chdir=production plan -detailed-exitcode
}

# deliveries pauses or resumes the queue and recovery.
deliveries() {
  as "$responder" gcloud tasks queues "$1" analyses --location="$REGION" --project="$PROJECT"
  as "$responder" gcloud scheduler jobs "$1" taskguard-recover --location="$REGION" --project="$PROJECT"
}

# paused takes a step while deliveries are paused. It resumes them also after a failure.
paused() {
  local status=0
  { deliveries pause; "$@"; } & # of a command before ||, bash would ignore the failures
  wait $! || status=$?
  deliveries resume
  return $status
}

pause() {
  paused snoozed
  as "$submitter" taskguard submit --wait --input '{"text": "after a pause"}'
}

snoozed() {
  local policies
  policies=$(as "$responder" gcloud monitoring policies list --project="$PROJECT" --format='value(name)' | paste -sd, -)
  as "$responder" gcloud monitoring snoozes create --project="$PROJECT" --display-name=pause --criteria-policies="$policies" \
    --start-time="$(date -u +%Y-%m-%dT%H:%M:%SZ)" --end-time="$(TZ=UTC printf '%(%Y-%m-%dT%H:%M:%SZ)T' $(($(date +%s) + 600)))"
  as "$submitter" taskguard submit --id paused --input '{"text": "in a pause"}'
  as "$operator" taskguard status --unfinished
  as "$operator" taskguard cancel paused
  as "$operator" taskguard requeue paused
}

# exported runs the daily export, and waits ten minutes for its last file. Its folder is in .daily.
exported() {
  local files before try
  before=$(exports)
  as "$responder" gcloud scheduler jobs run taskguard-export --location="$REGION" --project="$PROJECT"
  for ((try = 0; try < 40; try++)); do
    sleep 15
    files=$(exports)
    [ "$files" = "$before" ] || break
  done
  as "$operator" gcloud firestore operations list --database='(default)' --project="$PROJECT"
  as "$operator" gcloud firestore backups list --project="$PROJECT"
  [ "$files" != "$before" ] || die "taskguard-export has left no finished export in ten minutes"
  files=${files##*$'\n'}
  echo "${files%/*}" >.daily
}

# exports prints the last file of each finished export, by their time.
exports() { gcloud storage ls "gs://$PROJECT-taskguard-backup/*/*.overall_export_metadata" || true; } # there may be none

# restore brings back the daily export, and then the state of a minute ago, by an owner; the operator raises the tokens.
restore() {
  local bucket=gs://$PROJECT-taskguard-restore
  exported
  gcloud storage buckets create "$bucket" --location="$REGION" --uniform-bucket-level-access --project="$PROJECT"
  echo "$bucket/$(date +%s)" >.export
  paused imported
  as "$submitter" taskguard submit --wait --input '{"text": "after a restore"}'
}

imported() {
  sleep 60
  gcloud firestore export "$(<.export)" --snapshot-time="$(date -u +%Y-%m-%dT%H:%M:00Z)" --collection-ids=analyses --project="$PROJECT"
  gcloud firestore import "$(<.daily)" --project="$PROJECT"
  gcloud firestore import "$(<.export)" --project="$PROJECT"
  as "$operator" taskguard restore --min-token now
}

# failover brings the daily export to a second deployment, beside the first one.
failover() {
  [ "$way" = terraform ] || return 0
  mkdir failover
  sed -E -e 's|^  region .*|&\n  name = "failover"\n  deletion_protection = false|' \
    -e '/^  (doclock_image|session_secret(_version)?|build_source_bucket|backup_bucket) /d' production/main.tf >failover/main.tf
  terraform -chdir=failover init
  terraform -chdir=failover apply
  gcloud firestore import "$(<.daily)" --database=failover --project="$PROJECT"
  sleep "$PAUSE"
  (
    eval "$(terraform -chdir=failover output -raw environment)"
    as "$operator" taskguard restore --min-token now
    as "$submitter" taskguard submit --wait --input '{"text": "after a failover"}'
  )
  fail_back
}

fail_back() {
  terraform -chdir=failover destroy
  gcloud firestore databases update --database=failover --project="$PROJECT" --no-delete-protection
  gcloud firestore databases delete --database=failover --project="$PROJECT" --quiet
  rm -r failover
}

# resources lists the project's resources that cost money or keep data.
resources() {
  local enabled api kind
  enabled=$(gcloud services list --enabled --project="$PROJECT" --format='value(config.name)') || { echo "unknown resources"; return; }
  while read -r api kind; do
    [[ $'\n'$enabled$'\n' != *$'\n'"$api.googleapis.com"$'\n'* ]] ||
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
  trap - EXIT
  [ ! -e failover ] || fail_back
  [ ! -e .export ] || gcloud storage rm --recursive "gs://$PROJECT-taskguard-restore"
  follow "Made with ${paths[$way]/With /}"
  follow "On either path"
  follow "The database, if nothing else uses it"
  log '' "== Permissions"
  sleep "$PAUSE"
  gcloud logging read "logName:\"cloudaudit.googleapis.com\" AND timestamp>=\"$start\"" --project="$PROJECT" --flatten='protoPayload.authorizationInfo[]' \
    --format='value(protoPayload.authenticationInfo.principalEmail,protoPayload.authorizationInfo.permission,protoPayload.authorizationInfo.granted.yesno(yes=granted,no=refused))' |
    sort | uniq -c >"$permissions"
  log "$(wc -l <"$permissions") lines are in $permissions"
  rm -f .as-*.json
  left=$(resources)
  [ -z "$left" ] || { log "Left in $PROJECT: $left" "The clone, with Terraform's state, is $clone"; status=1; }
  log "The audit logs of $PROJECT stay on, its APIs enabled, and roles in its policy: delete the project if it was for this only."
  exit "$status"
}

steps=(prepare deploy upgrade release settings share rollback broken queries alert sidecar plan pause restore failover)
declare -A paths=([terraform]="With Terraform" [gcloud]="With gcloud alone")
[[ $PROJECT && ${paths[$way]-} ]] || die "usage: rehearse.sh PROJECT terraform|gcloud [STEP…]" "PROJECT is a new, empty project each time." "steps: ${steps[*]} remove"
for step in "${@:3}"; do [[ " ${steps[*]} remove " == *" $step "* ]] || die "there is no step $step, but: ${steps[*]} remove"; done
caller=user:$(gcloud config get-value account)
[[ $caller != *.gserviceaccount.com ]] || caller=serviceAccount:${caller#*:}
gcloud auth application-default print-access-token >/dev/null
[[ ! $operator$responder$submitter || ($operator && $responder && $submitter) ]] || die "want all of OPERATOR, RESPONDER and SUBMITTER, or none"
for account in $operator $responder $submitter; do gcloud auth print-access-token --impersonate-service-account="$account" >/dev/null; done
[ "$way" = terraform ] || responder= # the page gives that role no permissions by gcloud: you take its steps

export CLOUDSDK_CORE_DISABLE_PROMPTS=1 TF_INPUT=0 TF_CLI_ARGS_apply=-auto-approve TF_CLI_ARGS_destroy=-auto-approve
SERVICES="taskguard-worker taskguard-doclock"

if (($# > 2)); then
  cd "$clone"
  . ./.variables
  impersonate
  for step in "${@:3}"; do $step; done
  exit
fi

left=$(resources)
[ -z "$left" ] || die "$PROJECT is not empty: $left"
# For seven days, IAM also describes a deleted role.
for role in taskguard{Operations,TaskFinder,QueueKeeper,JobKeeper,Exporter}; do
  ! gcloud iam roles describe $role --project="$PROJECT" --quiet </dev/null >/dev/null 2>&1 ||
    die "$PROJECT has been rehearsed, or has the role $role: use a new project"
done

log "This deploys everything to $PROJECT in $REGION, as ${caller#*:}, and removes it again, in" \
  "about three hours. It makes $PROJECT the configured project of gcloud." \
  "It costs a few US dollars: builds on E2_HIGHCPU_8 (about 90 minutes), and cents for" \
  "Firestore, Cloud Run, images, logs and alerts. Prices: https://cloud.google.com/build/pricing" \
  "If the removal fails, the resources that it lists as left continue to cost money."
read -r -p "Type the project's name to begin: " answer
[ "$answer" = "$PROJECT" ] || die "nothing has been changed"

mkdir "$clone"
git clone --quiet "$(dirname "$0")/.." "$clone"
log "The commands run in $clone"
cd "$clone"
impersonate
start=$(date -u +%Y-%m-%dT%H:%M:%SZ)
head=$(git rev-parse HEAD)
[ -z "$UPGRADE_FROM" ] || git checkout --quiet "$UPGRADE_FROM"
trap remove EXIT
trap 'exit 1' INT TERM
for step in "${steps[@]}"; do
  log '' "== Step $step"
  $step
done
