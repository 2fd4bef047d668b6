#!/usr/bin/env bash
# Brings images, or changed settings, to the services:
#
#   release.sh candidate   deploys them without traffic, under a tag
#   release.sh smoke       calls the candidates at the tag's own address, and lets the
#                          worker's run its analyzer on SMOKE_INPUT
#   release.sh shift       gives them all traffic and calls the services; with $SHARE, first
#                          that percentage of the worker's, and all if errors are no more frequent
#   release.sh settings    the three one after the other, with the images that serve: the
#                          settings of the template, as an apply has left them
#
# If a call fails, it restores the traffic, and the earlier image in the template, where
# --to-latest would find the failed one. In case it is killed, it prints the commands for
# that beforehand. Of two builds at the same time, the last candidate is released,
# whichever commit is newer; the other build stops.
#
# A service's new image is in $STATE/NAME.image, by digest; without this file it is the one
# that serves. It is the image of the container $CONTAINER of the worker, or of each service's
# container with the port. Terraform or service.yaml set the rest.
set -euo pipefail
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || { echo "release.sh needs bash 4.4 or later, not $BASH_VERSION: on a Mac, brew install bash" >&2; exit 1; }
shopt -s inherit_errexit

# By hand, after `eval "$(terraform output -raw environment)"`, all is known.
host=${TASK_TARGET_URL-} host=${host#https://} host=${host%%.*}
: "${PROJECT:=${GOOGLE_CLOUD_PROJECT-}}" "${REGION:=${CLOUDSDK_RUN_REGION-}}" "${PROJECT_NUMBER:=${host##*-}}"
: "${WORKER:=${host%-*}}" "${CALLER:=${TASK_CALLER-}}" "${BUILD:=by-hand-$$}" "${STATE:=$(mktemp -d)}"
: "${PROJECT:?}" "${PROJECT_NUMBER:?}" "${REGION:?}" "${STATE:?}"
[ -d "$STATE" ] || mkdir -p "$STATE" # a build that builds nothing has not made it
: "${WORKER:?}" "${RECOVERY=}" "${DOCLOCK=}" "${CONTAINER=${APP:+app}}" # the services; RECOVERY, which runs the worker's image, and DOCLOCK may be empty
: "${CALLER:?}" "${BUILD:?}"  # the account of the smoke test's calls, and the build's id
: "${TRIES:=20}" "${PAUSE:=6}" "${PATIENCE:=300}" # for an address to be known; seconds
: "${SHARE:=0}" "${SHARE_SECONDS:=1800}" "${SELF_TEST_SECONDS:=1500}"
tag=candidate
[ -z "$CONTAINER" ] || DOCLOCK= RECOVERY=
services=("$WORKER" ${RECOVERY:+"$RECOVERY"} ${DOCLOCK:+"$DOCLOCK"})
declare -A address=() # of a service: the audience of its tokens, too
for service in "${services[@]}"; do address[$service]=https://$service-$PROJECT_NUMBER.$REGION.run.app; done

log() { printf '%s\n' "$@" >&2; }
die() { log "$@"; exit 1; }

# log_command prints $1 and the command that does what run does.
log_command() { log "$1" "  gcloud run services $2 $3 --project=$PROJECT --region=$REGION ${*:4}"; }

# run is gcloud run services, on service $2.
run() { gcloud run services "$1" "$2" --project="$PROJECT" --region="$REGION" --quiet "${@:3}"; }

# read_traffic reads a service's traffic. It sets split to what --to-revisions takes, a=90,b=10;
# main to the revision with the most; tagged and url to the tag's revision and address.
read_traffic() {
  local lines name percent label its most=0
  split='' main='' tagged='' url=''
  lines=$(run describe "$1" --flatten='status.traffic[]' \
    --format='csv[no-heading](status.traffic.revisionName,status.traffic.percent,status.traffic.tag,status.traffic.url)') || return
  while IFS=, read -r name percent label its; do
    if [ "$label" = "$tag" ]; then tagged=$name url=$its; fi
    if ((percent > 0)); then split+=${split:+,}$name=$percent; fi
    if ((percent > most)); then most=$percent main=$name; fi
  done <<<"$lines"
}

# same_split succeeds if $1 and $2 are the same traffic, in any order.
same_split() {
  local share
  [ ${#1} = ${#2} ] || return
  for share in ${1//,/ }; do [[ ,$2, == *",$share,"* ]] || return; done
}

# image_of sets image and container to those of container $1, or without a name of the one with
# the port. $2 has the containers, name,port,image a line.
image_of() {
  local name port its
  image='' container=''
  while IFS=, read -r name port its; do
    if [[ $1 && $name = "$1" || ! $1 && ($port || ! $image) ]]; then image=$its container=$name; fi
  done <<<"$2"
  [ -n "$image" ]
}

# serving prints the containers of the revision with most of the traffic, as image_of takes them.
serving() {
  local split main tagged url
  read_traffic "$1"
  [ -n "$main" ] || die "$1: no revision has the traffic, so there is none to go back to"
  gcloud run revisions describe "$main" --project="$PROJECT" --region="$REGION" --quiet --flatten='spec.containers[]' \
    --format='csv[no-heading](spec.containers.name,spec.containers.ports[0].containerPort,spec.containers.image)'
}

# containers prints those of the service's template, likewise.
containers() {
  local fields=spec.template.spec.containers
  run describe "$1" --flatten="$fields[]" --format="csv[no-heading]($fields.name,$fields.ports[0].containerPort,$fields.image)"
}

# own_candidate sets url to the candidate's address, and fails if another build has the tag.
own_candidate() {
  local split main tagged
  read_traffic "$1"
  [ -n "$tagged" ] || die "$1: no revision has the tag $tag"
  [ "$tagged" = "$(<"$STATE/$1.revision")" ] || die "$1: the tag $tag is $tagged's now, of another build"
}

# call_google calls an API of Google as this build's account.
call_google() {
  local access
  access=$(gcloud auth print-access-token)
  curl --silent --show-error --fail --header @- "$@" < <(printf 'Authorization: Bearer %s' "$access")
}

# get_token sets bearer to an ID token of the caller for service $1, as Cloud Tasks sends it. The
# build may get nothing else of the caller; gcloud would need an access token first.
get_token() {
  local reply
  reply=$(call_google --max-time 30 --header 'Content-Type: application/json' --data "{\"audience\":\"${address[$1]}\",\"includeEmail\":true}" \
    "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/$CALLER:generateIdToken") || reply=''
  [[ $reply =~ \"token\":\ *\"([^\"]+)\" ]] || { log "no token as $CALLER"; return 1; }
  bearer=${BASH_REMATCH[1]}
}

# answers calls $3 with the token $1 ("" for none), and succeeds if the status is $2 (or
# one of several, with |) and the body, which is then $answer, matches $4.
answers() {
  local bearer=$1 want=$2 url=$3 text=$4 got
  answer=$(curl --silent --show-error --max-time 60 --header @- --write-out '\n%{http_code}' "${@:5}" "$url" \
    < <(printf '%s' "${bearer:+Authorization: Bearer $bearer}")) || answer=$'\n000'
  got=${answer##*$'\n'} answer=${answer%$'\n'*}
  answer=${answer:0:300}
  [[ "|$want|" != *"|$got|"* || ! $answer =~ $text ]] || return 0
  log "$url answers $got, not $want with '$text': $answer"
  return 1
}

# works succeeds if service $1 works at the address $2.
works() {
  local bearer ask=(--header 'Content-Type: application/json' --data "{\"analysis_id\":\"smoke-test-$BUILD\"}")
  get_token "$1" || return
  answers "$bearer" 200 "$2/health/ready" '' || return
  if [ "$1" = "$DOCLOCK" ]; then
    answers '' '401|403' "$2/internal/sweep" '' --data '' &&
      answers "$bearer" 200 "$2/internal/sweep" '' --data ''
    return
  fi
  # Recovery needs the index and, if it finds something, the roles to book. Repeated
  # calls do no harm.
  answers '' '401|403' "$2/internal/tasks/analysis" '' "${ask[@]}" &&
    answers "$bearer" 404 "$2/internal/tasks/analysis" '"not_found"' "${ask[@]}" &&
    answers "$bearer" 200 "$2/internal/tasks/recover" '' --data ''
}

# wait_until_it_works repeats works: a new address or split takes time to be known.
wait_until_it_works() {
  local try=1 end=$((SECONDS + PATIENCE))
  until works "$1" "$2"; do
    if ((try++ >= TRIES || SECONDS >= end)); then log "$1 does not work at $2"; return 1; fi
    sleep "$PAUSE"
  done
  log "$1 works at $2"
}

# self_test lets the worker run its analyzer at the address $1, once: it may take long.
self_test() {
  local bearer known='"ok"|"not_configured"'
  # The worker that serves may be older than the route: changed settings need no self-test then.
  [ "$(<"$STATE/$WORKER.image")" != "$(<"$STATE/$WORKER.old")" ] || known+='|"no_such_route"'
  get_token "$WORKER" || return
  answers "$bearer" '200|404' "$1/internal/self-test" "$known" --max-time "$SELF_TEST_SECONDS" --data '' || return
  [[ $answer != *'"no_such_route"'* ]] || log "$WORKER: NOT TESTED: this worker has no self-test"
  [[ $answer != *'"not_configured"'* ]] || log "$WORKER: NOT TESTED: its analyzer, because SMOKE_INPUT is not set"
}

# new_image sets flags to those of gcloud for an image, which belong to one container.
new_image() { flags=(${CONTAINER:+"--container=$CONTAINER"} "--image=$1"); }

# new_images does so for service $1's image $2, and for the image of the application that serves
# beside it, of the containers $3, where the template has another one, as after a roll-back.
new_images() {
  local all image app container
  new_image "$2"
  all=$(containers "$1")
  if [[ $CONTAINER ]] || ! image_of app "$3"; then return; fi
  app=$image
  if ! image_of app "$all" || [ "$image" = "$app" ]; then return; fi
  image_of '' "$all"
  flags=("--container=$container" "--image=$2" --container=app "--image=$app")
}

candidate() {
  local service image old all served container flags split main tagged url
  all=$(containers "$WORKER")
  if [[ $CONTAINER && $'\n'$all != *$'\n'"$CONTAINER,"* ]]; then
    log "$WORKER has no container $CONTAINER yet: nothing is released. Its first image is" "$(<"$STATE/$WORKER.image")"
    : >"$STATE/first"
    return
  fi
  for service in "${services[@]}"; do
    served=$(serving "$service")
    image_of "$CONTAINER" "$served"
    old=$image
    [ "$service" != "$RECOVERY" ] || cp "$STATE/$WORKER.image" "$STATE/$RECOVERY.image"
    [ -e "$STATE/$service.image" ] || printf '%s' "$old" >"$STATE/$service.image"
    image=$(<"$STATE/$service.image")
    [[ $image == *@sha256:* ]] || die "$service: $image is not an image by digest"
    printf '%s' "$old" >"$STATE/$service.old"
    new_image "$old"
    log_command "$service: if this build is cut off before it has released, put the image back:" update "$service" --no-traffic --async "${flags[@]}"
    new_images "$service" "$image" "$served"
    run update "$service" --no-traffic --tag="$tag" "${flags[@]}"
    read_traffic "$service"
    [ -n "$tagged" ] || die "$service: no revision has the tag $tag"
    printf '%s' "$tagged" >"$STATE/$service.revision"
    log "$service: $tagged has no traffic yet"
  done
}

smoke() {
  local service url
  for service in "${services[@]}"; do
    own_candidate "$service"
    { wait_until_it_works "$service" "$url" && { [ "$service" != "$WORKER" ] || self_test "$url"; }; } ||
      die "nothing has been changed for users; the candidate keeps the tag $tag, to be looked at"
  done
}

# queries sets two of PromQL, of the revisions that match $1: the number of their deliveries, if
# there are any, and the failed share.
queries() {
  local name=${WORKER%-worker} here="{monitored_resource=\"cloud_run_revision\",service_name=\"$WORKER\",$1" time="[${SHARE_SECONDS}s]"
  local deliveries="logging_googleapis_com:user_${name//-/_}_deliveries$here"
  # A delivery whose instance crashes has an answer 5xx and no line.
  local crashed="(sum(increase(run_googleapis_com:request_count$here,response_code_class=\"5xx\"}$time)) or vector(0))"
  count="((sum(increase($deliveries}$time)) or vector(0)) + $crashed > 0)"
  failing="((sum(increase($deliveries,outcome=~\"failed|retry\"}$time)) or vector(0)) + $crashed) / $count"
}

# nothing succeeds if Cloud Monitoring has no result for the query $1, and sets $result.
nothing() {
  result=$(call_google --max-time 60 --data-urlencode "query=$1" \
    "https://monitoring.googleapis.com/v1/projects/$PROJECT/location/global/prometheus/api/v1/query") || die "$WORKER: its errors are not known"
  [[ $result =~ \"result\":\ *\[\ *\] ]]
}

# try_share gives the worker's candidate a share of the traffic for a time, the rest to $main, and
# reads from Cloud Monitoring whether it fails more often than the others.
try_share() {
  local revision others count failing result
  revision=$(<"$STATE/$WORKER.revision")
  run update-traffic "$WORKER" --to-revisions="$revision=$SHARE,$main=$((100 - SHARE))"
  log "$WORKER: $revision has $SHARE % of the traffic for $SHARE_SECONDS s"
  sleep "$SHARE_SECONDS" & wait $! # so that a signal ends it
  # It has a result if 5 percentage points more of the candidate's deliveries fail.
  queries "revision_name!=\"$revision\"" && others=$failing
  queries "revision_name=\"$revision\""
  ! nothing "$count" || die "$WORKER: NOT JUDGED: no delivery of the candidate was counted in $SHARE_SECONDS s: repeat it with a longer time or a larger share"
  nothing "$failing > 0.05 + ($others or vector(0))" || die "$WORKER: $revision fails more often than the other revisions: $result"
}

declare -A before=() # the earlier shares, of the services whose traffic it has changed

shift_traffic() {
  local service revision image split main tagged url
  for service in "${services[@]}"; do own_candidate "$service"; done
  for service in "${services[@]}"; do
    read_traffic "$service"
    [ -n "$split" ] || die "$service: no revision has the traffic, so there is none to go back to"
    log_command "$service: if this build is cut off from here on, give the traffic back:" update-traffic "$service" --to-revisions="$split" --async
    before[$service]=$split
    if [ "$service" = "$WORKER" ] && ((SHARE)); then try_share; fi
    run update-traffic "$service" --to-revisions="$(<"$STATE/$service.revision")=100"
  done
  for service in "${services[@]}"; do
    revision=$(<"$STATE/$service.revision")
    read_traffic "$service"
    [ "$split" = "$revision=100" ] || die "$service: the traffic goes to $split, not to $revision"
    wait_until_it_works "$service" "${address[$service]}"
  done
  for service in "${services[@]}"; do # cleanup.json keeps this tag's image
    image=$(<"$STATE/$service.image")
    gcloud artifacts docker tags add "$image" "${image%@*}:serving-$WORKER" --quiet || log "$service: $image has no tag serving-$WORKER"
  done
  log "released: ${services[*]}"
}

# undo_by does what run does, but with --async: to wait, gcloud reads an operation, which
# belongs to the project. Without run.operations.get it fails although the service is
# changed, and an undo that waits would fail like the step before it.
undo_by() { log "$2: undo: $1 ${*:3}"; run "$1" "$2" --async "${@:3}" || not_done "$@"; }
not_done() { log_command "$2: NOT DONE. Do:" "$1" "$2" --async "${@:3}"; }

# restore_traffic undoes the shift, unless another build has shifted since, and waits
# until the service has the earlier shares.
restore_traffic() {
  local try=1 earlier=${before[$1]} split main tagged url
  read_traffic "$1"
  if [ -n "$split" ] && ! same_split "$split" "$earlier" && [[ ,$split != *",$(<"$STATE/$1.revision")="* ]]; then
    log "$1: the traffic goes to $split now, which this build has not done: left alone"
    return
  fi
  undo_by update-traffic "$1" --to-revisions="$earlier"
  until read_traffic "$1" && same_split "$split" "$earlier"; do
    if ((try++ >= TRIES)); then not_done update-traffic "$1" --to-revisions="$earlier"; return; fi
    sleep "$PAUSE"
  done
}

# restore_image puts the earlier image into the template, if our image is there.
restore_image() {
  local image new old container flags
  new=$(<"$STATE/$1.image") old=$(<"$STATE/$1.old")
  image_of "$CONTAINER" "$(containers "$1")" || image=$new
  if [ "$new" = "$old" ] || [ "$new" != "$image" ]; then return; fi
  new_image "$old"
  undo_by update "$1" --no-traffic "${flags[@]}"
}

undo() {
  local status=$? service
  set +e
  trap '' INT TERM
  for service in "${services[@]}"; do [ -z "${before[$service]-}" ] || restore_traffic "$service"; done
  for service in "${services[@]}"; do [ ! -e "$STATE/$service.old" ] || restore_image "$service"; done
  exit $((status ? status : 1))
}

# settings does not build, so the template keeps the settings if it fails.
settings() { candidate; smoke; shift_traffic; }

[[ ${1-} =~ ^(candidate|smoke|shift|settings)$ ]] || die "usage: release.sh candidate|smoke|shift|settings"
trap undo EXIT
trap 'exit 1' INT TERM # after the current call, which would undo what undo does
[ -e "$STATE/first" ] || "${1/#shift/shift_traffic}"
trap - EXIT
