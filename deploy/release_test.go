package deploy

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	workerUpdate = "update w --no-traffic --tag=candidate --image=registry/w@sha256:1"
	locksUpdate  = "update d --no-traffic --tag=candidate --image=registry/d@sha256:1"
	workerShare  = "update-traffic w --to-revisions=w-new=10,w-1=90"
	workerShift  = "update-traffic w --to-revisions=w-new=100"
	locksShift   = "update-traffic d --to-revisions=d-new=100"

	workerSettings = "update w --no-traffic --tag=candidate --image=registry/w@sha256:0" // what serves
	locksSettings  = "update d --no-traffic --tag=candidate --image=registry/d@sha256:0"

	workerBack = "update-traffic w --async --to-revisions=w-2=10,w-1=80,w-3=10"
	locksBack  = "update-traffic d --async --to-revisions=d-1=100"
	workerOld  = "update w --async --no-traffic --image=registry/w@sha256:0"
	locksOld   = "update d --async --no-traffic --image=registry/d@sha256:0"

	workerHost, workerCandidate = "w-1.r.run.app", "candidate---w-hash.a.run.app"

	cancel = "kill -TERM $$"
	newer  = "w,8080,registry/w@sha256:5\n" // another build's image
)

var (
	application = []string{"APP=deploy/sidecar/app"}
	// byHand leaves the variables of the module's output environment.
	byHand = []string{
		"PROJECT=", "PROJECT_NUMBER=", "REGION=", "WORKER=", "CALLER=",
		"GOOGLE_CLOUD_PROJECT=p", "CLOUDSDK_RUN_REGION=r", "TASK_TARGET_URL=https://" + workerHost, "TASK_CALLER=caller@p.iam",
	}
)

func TestAReleaseGivesTheTrafficToWhatItHasTested(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verbs, prints string
		extra         []string
		files, other  map[string]string
		changes       []string
	}{
		// By hand, of a worker without a self-test, after roll-backs of the application and of the document lock.
		"settings": {
			verbs: "settings", extra: byHand, prints: "NOT TESTED: this worker has no self-test",
			files: map[string]string{
				"self-test": `404 {"reason":"no_such_route"}`, "d.template": "d,8080,registry/d@sha256:7\n", "w.template": "app,,registry/app@sha256:8\nw,8080,registry/w@sha256:0\n",
			},
			changes: []string{
				"update w --no-traffic --tag=candidate --container=w --image=registry/w@sha256:0 --container=app --image=registry/app@sha256:9", locksSettings, workerShift, locksShift,
				"tags add registry/w@sha256:0 registry/w:serving-w --quiet", "tags add registry/d@sha256:0 registry/d:serving-w --quiet",
			},
			other: map[string]string{"d.traffic": "d-new,100,,\n"},
		},
		"recovery in a service of its own": {
			verbs: "candidate smoke shift", extra: []string{"DOCLOCK=", "RECOVERY=r"},
			files: map[string]string{"r.traffic": "r-1,100,,\n", "r.template": "r,8080,registry/w@sha256:7\n", "r.tagged": "", "r-1.containers": ",8080,registry/w@sha256:7\n"},
			changes: []string{
				workerUpdate, "update r --no-traffic --tag=candidate --image=registry/w@sha256:1", workerShift, "update-traffic r --to-revisions=r-new=100",
				"tags add registry/w@sha256:1 registry/w:serving-w --quiet", "tags add registry/w@sha256:1 registry/w:serving-w --quiet",
			},
			other: map[string]string{"w.template": "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:1\n"},
		},
		"an application, and no input for the analyzer": {
			verbs: "candidate smoke shift", extra: application, prints: "NOT TESTED: its analyzer, because SMOKE_INPUT is not set",
			files:   map[string]string{"w.image": "registry/app@sha256:10", "self-test": `404 {"reason":"not_configured"}`},
			changes: []string{"update w --no-traffic --tag=candidate --container=app --image=registry/app@sha256:10", workerShift, "tags add registry/app@sha256:10 registry/app:serving-w --quiet"},
			other:   map[string]string{"w.template": "app,,registry/app@sha256:10\nw,8080,registry/w@sha256:0\n"},
		},
		"an application's first image": {
			verbs: "candidate smoke shift", extra: application, prints: "w has no container app yet: nothing is released. Its first image is\nregistry/w@sha256:1",
			files: map[string]string{"w.template": "w,8080,registry/w@sha256:0\n"},
			other: map[string]string{"w.template": "w,8080,registry/w@sha256:0\n", "w.traffic": traffic["w"]},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelease(t, c.extra...)
			for file, text := range c.files {
				r.write(file, text)
			}

			for _, verb := range strings.Fields(c.verbs) {
				if !r.call(verb) {
					t.Errorf("%s fails", verb)
				}
			}

			other := map[string]string{"w.traffic": "w-new,100,,\n"}
			maps.Copy(other, c.other)
			r.want(c.prints, c.changes, other)
			if len(c.changes) > 0 {
				r.wantJudged()
			}
		})
	}
}

// A changed setting that reaches the worker alone would leave recovery with the old one, such as a lost database.
func TestTheEnvironmentNamesAllServicesOfARelease(t *testing.T) {
	for name, want := range map[string]string{
		"platform": "taskguard-doclock taskguard-recovery", "everything": "taskguard-doclock ", "application": " ",
	} {
		r := newRelease(t, "RECOVERY=another-deployment's")
		if !r.bash("-c", evaluated(t, name).ShellEnv+"\n"+`printf %s "$DOCLOCK $RECOVERY"`) || r.output.String() != want {
			t.Errorf("%s: the services beside the worker are %q, want %q", name, &r.output, want)
		}
	}
}

func TestAReleaseNamesTheBashThatItNeeds(t *testing.T) {
	r := newRelease(t)
	if r.bash("-c", `OLD=(3 2 57); eval "$(sed 's/BASH_VERSINFO/OLD/g' release.sh)"`) || !strings.Contains(r.output.String(), "release.sh needs bash 4.4") {
		t.Errorf("with bash 3.2 it prints\n%s", &r.output)
	}
}

// releaseInStages releases images, first for a share. Each thing that a check looks for is wrong
// at one try. It returns the release before each call, and an application's before its smoke test.
func releaseInStages(t *testing.T) map[string]*release {
	t.Helper()
	r := newRelease(t, "SHARE=10", "TRIES=6")
	stages := map[string]*release{"settings": newRelease(t, byHand...), "application": newRelease(t, application...)}
	if !stages["application"].call("candidate") {
		t.Error("an application has no candidate")
	}
	wrong := map[string]string{
		"smoke": "token\nunready " + workerCandidate + "\nopen w\nanalysis\nrecover\nopen d\nsweep\nnothing\n",
		"shift": "unready " + workerHost + "\nnothing\n",
	}
	for _, verb := range []string{"candidate", "smoke", "shift"} {
		stages[verb] = r.continued(t, "SHARE=0", "TRIES=2")
		r.write("wrong", wrong[verb])
		if !r.call(verb) {
			t.Errorf("%s fails", verb)
		}
	}

	r.want("", []string{
		workerUpdate, locksUpdate, workerShare, workerShift, locksShift,
		"tags add registry/w@sha256:1 registry/w:serving-w --quiet", "tags add registry/d@sha256:1 registry/d:serving-w --quiet",
	}, map[string]string{
		"w.traffic": "w-new,100,,\n", "w.template": "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:1\n",
		"d.traffic": "d-new,100,,\n", "d.template": "d,8080,registry/d@sha256:1\n",
	})
	r.wantJudged()
	rest := r.output.String()
	for _, complaint := range []string{
		"no token as caller@p.iam", "/health/ready answers 503, not 200", "/tasks/analysis answers 404, not 401|403", "/tasks/analysis answers 404, not 404 with '\"not_found\"'",
		"/tasks/recover answers 404, not 200", "w works at https://" + workerCandidate, "/internal/sweep answers 200, not 401|403", "/internal/sweep answers 404, not 200",
		"d works at https://candidate", "https://" + workerHost + "/health/ready answers 503", "w works at https://" + workerHost, "d works at https://d-1",
	} {
		_, after, found := strings.Cut(rest, complaint)
		if !found {
			t.Errorf("it does not print %q in its place:\n%s", complaint, &r.output)
		}
		rest = after
	}
	return stages
}

// failure changes files before one of the calls, which then fails.
type failure struct {
	verb, stage string // the stage is that of the verb, or another
	env         string
	files       map[string]string
	changes     []string          // that the call makes
	other       map[string]string // files that are not as before
	prints      string
}

func TestAReleaseThatFailsLeavesTheServicesAsTheyWere(t *testing.T) {
	t.Parallel()
	old, back := []string{workerOld, locksOld}, []string{workerShift, locksShift, workerBack, locksBack, workerOld, locksOld}
	first := []string{workerShift, workerBack, workerOld, locksOld}
	share := []string{workerShare, workerBack, workerOld, locksOld}
	stages := releaseInStages(t)
	for name, f := range map[string]failure{
		"image by tag":               {verb: "candidate", files: map[string]string{"w.image": "registry/w:1"}},
		"nothing to go back to":      {verb: "candidate", files: map[string]string{"w.traffic": ""}, other: map[string]string{"w.traffic": ""}, prints: "none to go back to"},
		"the second does not start":  {verb: "candidate", files: map[string]string{"after-update-d": "exit 1"}, changes: []string{workerUpdate, locksUpdate, workerOld, locksOld}},
		"another build is next":      {verb: "candidate", files: map[string]string{"after-update-w": `echo w,8080,registry/w@sha256:5 >"$FAKE/w.template"; exit 1`}, changes: []string{workerUpdate}, other: map[string]string{"w.template": newer}},
		"it has no self-test":        {verb: "smoke", files: map[string]string{"self-test": `404 {"reason":"no_such_route"}`}, changes: old, prints: "/internal/self-test answers 404"},
		"the analyzer is broken":     {verb: "smoke", stage: "application", files: map[string]string{"self-test": `500 {"reason":"self_test_failed","error":"ok"}`}, changes: []string{"update w --async --no-traffic --container=app --image=registry/app@sha256:9"}, prints: "/internal/self-test answers 500"},
		"another build has the tag":  {verb: "smoke", files: map[string]string{"w.tagged": "w-other,,candidate,https://" + workerCandidate + "\n", "w.template": newer}, changes: []string{locksOld}, other: map[string]string{"w.template": newer}, prints: "the tag candidate is w-other's now"},
		"the settings do not start":  {verb: "settings", files: map[string]string{"wrong": "unready " + workerCandidate}, changes: []string{workerSettings, locksSettings}},
		"the share fails":            {verb: "shift", env: "SHARE=10", files: map[string]string{"errors": `{"metric":{},"value":[1,"0.5"]}`}, changes: share, prints: "fails more often"},
		"no delivery of the share":   {verb: "shift", env: "SHARE=10", files: map[string]string{"deliveries": ""}, changes: share, prints: "w: NOT JUDGED: no delivery of the candidate"},
		"the errors are not known":   {verb: "shift", env: "SHARE=10", files: map[string]string{"fail-errors": ""}, changes: share},
		"cancelled during the share": {verb: "shift", env: "SHARE=10", files: map[string]string{"after-update-traffic-w": cancel}, changes: share},
		"the shift has no effect":    {verb: "shift", files: map[string]string{"ignore-w": ""}, changes: back, prints: "the traffic goes to w-2=10,w-1=80,w-3=10, not to w-new"},
		"not ready after the shift":  {verb: "shift", files: map[string]string{"wrong": "unready " + workerHost}, changes: back},
		"cancelled during the shift": {verb: "shift", files: map[string]string{"before-update-traffic-w": cancel}, changes: first}, // and the call continues
		"the undo has no effect": {verb: "shift", files: map[string]string{"after-update-traffic-w": `: >"$FAKE/ignore-w"; exit 1`}, changes: first,
			other: map[string]string{"w.traffic": "w-new,100,,\n"}, prints: "w: NOT DONE. Do:"},
		"another build has the traffic": {verb: "shift", files: map[string]string{"in-" + workerHost: `echo w-other,100,, >"$FAKE/w.traffic"; echo w,8080,registry/w@sha256:5 >"$FAKE/w.template"; echo "unready $host" >"$FAKE/wrong"`},
			changes: []string{workerShift, locksShift, locksBack, locksOld}, other: map[string]string{"w.traffic": "w-other,100,,\n", "w.template": newer}, prints: "left alone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f.happen(t, stages)
		})
	}

	t.Run("it has printed the commands", func(t *testing.T) {
		t.Parallel()
		shifted := map[string]string{"w.traffic": "w-new,100,,\n"}
		r := failure{verb: "shift", files: map[string]string{"after-update-traffic-w": `: >"$FAKE/fail-update-traffic-w"; exit 1`}, changes: first, other: shifted, prints: "w: NOT DONE. Do:"}.happen(t, stages)
		check(t, os.Remove(filepath.Join(r.dir, "fail-update-traffic-w"))) // it could not undo
		r.runPrinted(": NOT DONE. Do:")
		r.want("w: NOT DONE. Do:", r.changes(), nil)

		maps.Copy(shifted, map[string]string{"w.template": "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:1\n", "d.template": "d,8080,registry/d@sha256:1\n"})
		r = failure{verb: "shift", files: map[string]string{"after-update-traffic-w": "kill -KILL $$"}, changes: []string{workerShift}, other: shifted}.happen(t, stages)
		r.runPrinted("put the image back:", "give the traffic back:")
		r.want("", r.changes(), nil)
	})
}

func (f failure) happen(t *testing.T, stages map[string]*release) *release {
	t.Helper()
	stage := stages[f.verb]
	if f.stage != "" {
		stage = stages[f.stage]
	}
	r := stage.continued(t, f.env)
	r.write("calls", "")
	for file, text := range f.files {
		r.write(file, text)
	}
	if r.call(f.verb) {
		t.Errorf("%s succeeds", f.verb)
	}
	r.want(f.prints, f.changes, f.other)
	return r
}

// releaseFakes has functions in place of the programs that release.sh calls: a program takes
// longer to start than to run, and so does a subshell. Their state is the files of $FAKE: a
// service's .traffic and .tagged, as gcloud prints them, and its .template, name,port,image of
// a container a line; a revision's .containers, likewise; the answers self-test, deliveries and
// errors; wrong, what does not work at each try, a line a try, of which the last stays; fail-…, a
// call that fails; ignore-SERVICE, a change of traffic that has no effect; and shell commands to
// run once, before-… and after-… a call of gcloud, or in-HOST.
const releaseFakes = `
print() { local text; mapfile text <"$1"; printf %s "${text[@]}"; }
once() { [[ ! -e $FAKE/$1 || -e $FAKE/$1.done ]] || { : >"$FAKE/$1.done"; . "$FAKE/$1"; }; }
is_wrong() { local now=; [[ ! -e $FAKE/wrong ]] || read -r now <"$FAKE/wrong"; [[ $now == "$1" ]]; }
sleep() { # until the next try
  local tries=()
  [[ $1 != 6 || ! -e $FAKE/wrong ]] || mapfile -t tries <"$FAKE/wrong"
  ((${#tries[@]} < 2)) || printf '%s\n' "${tries[@]:1}" >"$FAKE/wrong"
}

gcloud() { # a change continues when a signal has come
  if [[ $* == *" services update"* ]]; then (cloud_run "$@"); else cloud_run "$@"; fi
}

cloud_run() { # verb and service are $3 and $4
  local container template flag line rest shares share text
  echo "gcloud $*" >>"$FAKE/calls"
  case $* in "auth print-access-token") echo the-access-token; return ;; "artifacts docker tags add "*) return ;; esac
  [[ $* == "run "*" --project=p --region=r"* ]] || return 2
  once "before-$3-$4"
  [[ ! -e $FAKE/fail-$3-$4 ]] || return 1
  case "${*:2}" in
  "services update $4 "*)
    [[ $* == *" --no-traffic"* && $* == *--image=*@sha256:* ]] || return 2
    container=$4 template=$(<"$FAKE/$4.template")
    for flag; do
      case $flag in
      --container=*) container=${flag#*=} ;;
      --image=*) [[ $'\n'$template =~ $'\n'$container,[^,]*, ]] && line=${BASH_REMATCH[0]#?} rest=${template#*"$line"}
        template=${template/"$line${rest%%$'\n'*}"/$line${flag#*=}} ;;
      --tag=*) echo "$4-new,,${flag#*=},https://${flag#*=}---$4-hash.a.run.app" >"$FAKE/$4.tagged" ;;
      esac
    done
    echo "$template" >"$FAKE/$4.template" ;;
  "services update-traffic $4 "*) # the order of the revisions is Cloud Run's own
    [[ $* =~ --to-revisions=([^ ]*) ]] && shares=${BASH_REMATCH[1]}
    for share in ${shares//,/ }; do text="${share/=/,},,"$'\n'${text-}; done
    [[ -e $FAKE/ignore-$4 ]] || printf '%s' "$text" >"$FAKE/$4.traffic" ;;
  *"status.traffic[]"*) print "$FAKE/$4.traffic"; print "$FAKE/$4.tagged" ;;
  *"spec.template.spec.containers[]"*) print "$FAKE/$4.template" ;;
  "revisions describe $4 "*"spec.containers[]"*) print "$FAKE/$4.containers" ;;
  *) return 2 ;;
  esac
  once "after-$3-$4"
}

# answer prints what curl does: the text $1 after its status, or that of the file $2.
answer() {
  local text=$1
  [[ -z ${2-} || ! -e $FAKE/$2 ]] || text=$(<"$FAKE/$2")
  printf '%s\n%s' "${text#* }" "${text%% *}"
}

curl() {
  local authorization result none url=${*: -1} host service token
  echo "curl $*" >>"$FAKE/calls"
  read -r authorization || true
  host=${url#https://} host=${host%%/*} service=${host#candidate---} service=${service%%-*}
  case $url in
  */prometheus/api/v1/query)
    [[ ! -e $FAKE/fail-errors ]] || return 22
    [[ $authorization == "Authorization: Bearer the-access-token" && $(<"$FAKE/w.traffic") == $'w-1,90,,\nw-new,10,,' ]] || return 2
    if [[ $* == *0.05* ]]; then result=errors none=; else result=deliveries none='{"value":[1,"9"]}'; fi
    [[ ! -e $FAKE/$result ]] || none=$(<"$FAKE/$result")
    echo "{\"status\":\"success\",\"data\":{\"resultType\":\"vector\",\"result\":[$none]}}"
    return ;;
  */serviceAccounts/caller@p.iam:generateIdToken)
    [[ $authorization == "Authorization: Bearer the-access-token" && $* =~ \"audience\":\"([^\"]*)\" ]] || return 22
    ! is_wrong token || return 22
    printf '{\n  "token": "the-id-token of %s"\n}\n' "${BASH_REMATCH[1]}"
    return ;;
  esac

  once "in-$host"
  token="Authorization: Bearer the-id-token of https://$service-1.r.run.app"
  if is_wrong "unready $host"; then answer '503 {"status":"not_ready"}'
  elif [[ $url == */internal/* && $* != *" --data "* ]]; then answer '411 POST requests require a Content-Length'
  elif [[ $url == */internal/* && $authorization != "$token" ]] && ! is_wrong "open $service"; then answer '401 {"reason":"unauthenticated"}'
  elif is_wrong "${url##*/}"; then answer '404 {"reason":"no_such_route"}'
  else
    case $url in
    */health/ready) answer '200 {"status":"ready"}' ;;
    */internal/sweep) answer '200 {"swept":0}' ;;
    */internal/self-test) answer '200 {"status":"ok"}' self-test ;;
    */internal/tasks/recover) answer '200 {}' ;;
    */internal/tasks/analysis) [[ $* == *' {"analysis_id":"smoke-test-b"} '* ]] && answer '404 {"reason":"not_found"}' ;;
    *) return 2 ;;
    esac
  fi
}
`

// release holds two services on Cloud Run, and a build of them.
type release struct {
	t      *testing.T
	dir    string
	extra  []string // variables of release.sh
	output bytes.Buffer
}

var (
	traffic   = map[string]string{"w": "w-2,10,,\nw-1,80,,\nw-3,10,,\n", "d": "d-1,100,,\n"}
	templates = map[string]string{"w": "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:0\n", "d": "d,8080,registry/d@sha256:0\n"}
)

// newRelease has the worker on three revisions, with an application beside it, and the
// document lock on one revision.
func newRelease(t *testing.T, extra ...string) *release {
	t.Helper()
	r := &release{t: t, dir: t.TempDir(), extra: extra}
	r.write("fakes", releaseFakes)
	for _, name := range []string{"w", "d"} {
		r.write(name+".traffic", traffic[name])
		r.write(name+".template", templates[name])
		r.write(name+".tagged", "")
		r.write(name+".image", "registry/"+name+"@sha256:1")
	}
	r.write("w-1.containers", "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:0\nmetrics,,registry/metrics@sha256:9\n")
	r.write("d-1.containers", ",,registry/d@sha256:0\n")
	return r
}

// continued returns a copy of r for another test.
func (r *release) continued(t *testing.T, extra ...string) *release {
	t.Helper()
	c := &release{t: t, dir: t.TempDir(), extra: slices.Concat(r.extra, extra)}
	check(t, os.CopyFS(c.dir, os.DirFS(r.dir)))
	c.output.Write(r.output.Bytes())
	return c
}

func (r *release) write(name, text string) {
	r.t.Helper()
	check(r.t, os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600))
}

// bash runs bash with these arguments, and reports whether it succeeded.
func (r *release) bash(args ...string) bool {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "bash", args...)
	cmd.Env = append(os.Environ(), "BASH_ENV="+filepath.Join(r.dir, "fakes"), "FAKE="+r.dir, "STATE="+r.dir, "PROJECT=p", "PROJECT_NUMBER=1", "REGION=r",
		"CALLER=caller@p.iam", "BUILD=b", "WORKER=w", "DOCLOCK=d", "TRIES=2", "SHARE_SECONDS=0")
	cmd.Env = append(cmd.Env, r.extra...)
	cmd.Stdout, cmd.Stderr = &r.output, &r.output
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	return err == nil
}

// call runs release.sh and reports whether it succeeded. A build of settings has not made the
// folder of its state, which holds no images.
func (r *release) call(verb string) bool {
	r.t.Helper()
	if verb == "settings" {
		r.extra = append(r.extra, "STATE="+filepath.Join(r.dir, "build", "state"))
	}
	return r.bash("release.sh", verb)
}

// wantJudged checks that the candidate's analyzer has run once, before it had traffic, and that
// the share's queries compare what is measured.
func (r *release) wantJudged() {
	r.t.Helper()
	before, after, _ := strings.Cut(read(r.t, filepath.Join(r.dir, "calls")), "update-traffic")
	if n := strings.Count(before, "https://"+workerCandidate+"/internal/self-test\n"); n != 1 || strings.Contains(after, "/self-test") {
		r.t.Errorf("%d self-tests of the candidate before it has traffic, want 1 and no other", n)
	}
	want := map[bool][4]int{false: {2, 0, 1, 0}, true: {4, 4, 4, 2}} // the number of deliveries, and the comparison
	for _, call := range strings.Split(after, "--data-urlencode query=")[1:] {
		query, _, _ := strings.Cut(call, "\n")
		checkQuery(r.t, "the share", metrics(readMonitoring(r.t)), strings.ReplaceAll(query, "user_w_", "user_taskguard_"))
		var got [4]int
		for i, part := range []string{`revision_name="w-new"`, `revision_name!="w-new"`, "5xx", "outcome="} {
			got[i] = strings.Count(query, part)
		}
		if got != want[strings.Contains(query, " > 0.05 ")] {
			r.t.Errorf("%v: the query does not count the candidate's deliveries, or compare it with the others: %s", got, query)
		}
	}
}

// runPrinted runs the commands that it printed, each after a line that ends with one of
// the ends.
func (r *release) runPrinted(ends ...string) {
	r.t.Helper()
	lines := strings.Split(r.output.String(), "\n")
	for i, line := range lines {
		if i == 0 || !slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(lines[i-1], end) }) {
			continue
		}
		if !strings.HasPrefix(line, "  gcloud run services update") || !r.bash("-c", line) {
			r.t.Errorf("it printed %q", line)
		}
	}
}

// want checks what was printed, all changes to the services, that no token is shown, and that
// the services are as before, except for the files of other.
func (r *release) want(prints string, changes []string, other map[string]string) {
	r.t.Helper()
	output, calls := r.output.String(), read(r.t, filepath.Join(r.dir, "calls"))
	if got := r.changes(); !slices.Equal(got, changes) {
		r.t.Errorf("it did\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(changes, "\n"))
	}
	if !strings.Contains(output, prints) || strings.Contains(output+calls, "the-id-token") || strings.Contains(output+calls, "the-access-token") {
		r.t.Errorf("it does not print %q, or shows a token: %s", prints, calls)
	}
	if done := !strings.Contains(output, "NOT DONE"); done == strings.Contains(prints, "NOT DONE") {
		r.t.Errorf("it has undone its changes: %v", done)
	}
	for _, name := range []string{"w", "d"} {
		for file, want := range map[string]string{name + ".traffic": traffic[name], name + ".template": templates[name]} {
			if text, ok := other[file]; ok {
				want = text
			}
			if got := read(r.t, filepath.Join(r.dir, file)); sortedLines(got) != sortedLines(want) {
				r.t.Errorf("%s is %q, want %q", file, got, want)
			}
		}
	}
	if r.t.Failed() {
		r.t.Logf("output:\n%s", output)
	}
}

// changes returns the calls that changed a service, or tagged the image that serves.
func (r *release) changes() (all []string) {
	r.t.Helper()
	for _, call := range regexp.MustCompile(`(?m)^gcloud (?:run services (update.*)|artifacts docker (tags .*))$`).FindAllStringSubmatch(read(r.t, filepath.Join(r.dir, "calls")), -1) {
		all = append(all, strings.Replace(call[1]+call[2], "--project=p --region=r --quiet ", "", 1))
	}
	return all
}

func sortedLines(text string) string { return strings.Join(slices.Sorted(strings.Lines(text)), "") }
