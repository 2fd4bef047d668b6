package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskguard/internal/testing/must"
)

// releaseFakes has functions in place of the programs that release.sh calls. Their state is the files of $FAKE: a
// service's .traffic and .tagged, as gcloud prints them, and its .template, name,port,image of a container a line; a
// revision's .containers, likewise; the answers self-test, deliveries and errors; wrong, what does not work at each
// try, a line a try, of which the last stays; ignore-SERVICE, a change of traffic has no effect; and shell commands to
// run once, after-VERB-SERVICE of gcloud, or in-HOST.
const releaseFakes = `
once() { [[ ! -e $FAKE/$1 ]] || { mv "$FAKE/$1" "$FAKE/done"; . "$FAKE/done"; }; }
is_wrong() { local now; read -r now <"$FAKE/wrong"; [[ $now == "$1" ]]; }
sleep() { [[ $1 != 6 ]] || sed -i.orig '1{$!d;}' "$FAKE/wrong"; } # until the next try

gcloud() { # verb and service are $3 and $4
  local call=$* container=${4-} flag share shares traffic=
  echo "gcloud $*" >>"$FAKE/calls"
  case $* in "auth print-access-token") echo the-access-token; return ;; "artifacts docker tags add "*) return ;; esac
  [[ $* == "run "*" --project=p --region=r"* ]] || return 2
  # To wait, gcloud reads an operation, for which the account has no permission: an undo does not wait.
  [[ $* == *--async* || $* != *=w-2=10,* && $* != *--no-traffic\ --image=*@sha256:0* ]] || return 1
  case "${*:2}" in
  "services update $4 "*" --no-traffic"*)
    for flag; do
      case $flag in
      --container=*) container=${flag#*=} ;;
      --image=*@sha256:*) sed -i.orig "s|^\($container,[^,]*,\).*|\1${flag#*=}|" "$FAKE/$4.template" ;;
      --tag=*) echo "$4-new,,${flag#*=},https://${flag#*=}---$4-hash.a.run.app" >"$FAKE/$4.tagged" ;;
      esac
    done ;;
  "services update-traffic $4 "*) # the order of the revisions is Cloud Run's own
    shares=${call##*--to-revisions=} shares=${shares%% *}
    for share in ${shares//,/ }; do traffic="${share/=/,},,"$'\n'$traffic; done
    [[ -e $FAKE/ignore-$4 ]] || printf %s "$traffic" >"$FAKE/$4.traffic" ;;
  *"status.traffic[]"*) cat "$FAKE/$4.traffic" "$FAKE/$4.tagged" ;;
  *"spec.template.spec.containers[]"*) cat "$FAKE/$4.template" ;;
  "revisions describe $4 "*"spec.containers[]"*) cat "$FAKE/$4.containers" ;;
  *) return 2 ;;
  esac
  once "after-$3-$4"
}

curl() { # answers with a body, and its status in a line below
  local authorization url=${*: -1} host service token answer
  echo "curl $*" >>"$FAKE/calls"
  read -r authorization || true
  host=${url#https://} host=${host%%/*} service=${host#candidate---} service=${service%%-*}
  token="Authorization: Bearer the-id-token of https://$service-1.r.run.app"
  case $url in
  */prometheus/api/v1/query)
    [[ $authorization == *" the-access-token" ]] || return 22
    if [[ $* == *" > 0.05 "* ]]; then cat "$FAKE/errors"; else cat "$FAKE/deliveries"; fi
    return ;;
  */serviceAccounts/caller@p.iam:generateIdToken)
    [[ $authorization == *" the-access-token" && $* =~ \"audience\":\"([^\"]*)\" ]] && ! is_wrong token || return 22
    echo "{\"token\": \"the-id-token of ${BASH_REMATCH[1]}\"}"
    return ;;
  esac

  once "in-$host"
  answer='404 {"reason":"no_such_route"}'
  if is_wrong "unready $host"; then answer='503 {}'
  elif [[ $url == */internal/* && $* != *" --data "* ]]; then answer='411 {}'
  elif [[ $url == */internal/* && $authorization != "$token" ]] && ! is_wrong "open $service"; then answer='401 {}'
  elif ! is_wrong "${url##*/}"; then
    case $url in
    */health/ready | */internal/sweep | */internal/tasks/recover) answer='200 {}' ;;
    */internal/self-test) answer=$(<"$FAKE/self-test"); echo "500 a second run" >"$FAKE/self-test" ;;
    */internal/tasks/analysis) [[ $* != *' {"analysis_id":"smoke-test-b"} '* ]] || answer='404 {"reason":"not_found"}' ;;
    esac
  fi
  printf '%s\n%s' "${answer#* }" "${answer%% *}"
}
`

const (
	workerHost      = "w-1.r.run.app"
	workerCandidate = "candidate---w-hash.a.run.app"
	newer           = "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:5\n" // another build's image
)

// texts are the texts of files, by name.
type texts = map[string]string

// release is a project with a worker w, which has an application beside it, recovery r, and a document lock d. A build
// has new images of them.
type release struct {
	t      *testing.T
	dir    string
	env    []string
	output bytes.Buffer
}

func newRelease(t *testing.T, files texts, env ...string) *release {
	t.Helper()
	r := &release{t: t, dir: t.TempDir()}
	all := texts{
		"fakes": releaseFakes, "wrong": "nothing\n", "self-test": `200 {"status":"ok"}`,
		"deliveries": `{"result":[{"value":[1,"9"]}]}`, "errors": `{"result":[]}`,

		"w.traffic":      "w-2,10,,\nw-1,80,,\nw-3,10,,\n",
		"w.template":     "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:0\n",
		"w-1.containers": "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:0\nmetrics,,registry/metrics@sha256:9\n",
		"w.image":        "registry/w@sha256:1",
		"r.traffic":      "r-1,100,,\n", "r.template": "r,8080,registry/w@sha256:0\n",
		"r-1.containers": ",8080,registry/w@sha256:0\n",
		"d.traffic":      "d-1,100,,\n", "d.template": "d,8080,registry/d@sha256:0\n",
		"d-1.containers": ",,registry/d@sha256:0\n", "d.image": "registry/d@sha256:1",
		"w.tagged": "", "r.tagged": "", "d.tagged": "",
	}
	for name, text := range all {
		r.write(name, text)
	}
	for name, text := range files {
		r.write(name, text)
	}
	r.env = slices.Concat(os.Environ(), []string{
		"BASH_ENV=" + filepath.Join(r.dir, "fakes"), "FAKE=" + r.dir, "STATE=" + r.dir,
		"PROJECT=p", "PROJECT_NUMBER=1", "REGION=r", "CALLER=caller@p.iam", "BUILD=b",
		"WORKER=w", "RECOVERY=r", "DOCLOCK=d", "TRIES=2", "SHARE_SECONDS=0",
	}, env)
	return r
}

func (r *release) write(name, text string) {
	r.t.Helper()
	must.OK(r.t, os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600))
}

// bash runs bash with these arguments, and reports whether it succeeded.
func (r *release) bash(args ...string) bool {
	cmd := exec.CommandContext(r.t.Context(), "bash", args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = r.env, &r.output, &r.output
	return cmd.Run() == nil
}

var threeSteps = []string{"candidate", "smoke", "shift"}

// run runs the steps until one fails, and returns that one.
func (r *release) run(steps ...string) (failed string) {
	r.t.Helper()
	for _, step := range steps {
		if !r.bash("release.sh", step) {
			failed = step
			break
		}
	}
	for _, secret := range []string{"the-id-token", "the-access-token"} {
		if strings.Contains(r.output.String()+read(r.t, filepath.Join(r.dir, "calls")), secret) {
			r.t.Errorf("it shows %s", secret)
		}
	}
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("output:\n%s", &r.output)
		}
	})
	return failed
}

// changes returns the calls that changed a service, or tagged the image that serves.
func (r *release) changes() (all []string) {
	r.t.Helper()
	for call := range strings.Lines(read(r.t, filepath.Join(r.dir, "calls"))) {
		call = strings.Replace(strings.TrimSpace(call), " --project=p --region=r --quiet", "", 1)
		if change, ok := strings.CutPrefix(call, "gcloud run services "); ok && strings.HasPrefix(change, "update") {
			all = append(all, change)
		}
		if tag, ok := strings.CutPrefix(call, "gcloud artifacts docker "); ok {
			all = append(all, tag)
		}
	}
	return all
}

// services returns the traffic and the templates, by the names of their files.
func (r *release) services() texts {
	r.t.Helper()
	all := texts{}
	for _, name := range []string{"w.traffic", "w.template", "r.traffic", "r.template", "d.traffic", "d.template"} {
		text := read(r.t, filepath.Join(r.dir, name))
		all[name] = strings.Join(slices.Sorted(strings.Lines(text)), "")
	}
	return all
}

func TestRelease_Changes(t *testing.T) {
	t.Parallel()
	const serving = "tags add registry/w@sha256:1 registry/w:serving-w --quiet"
	for name, tc := range map[string]struct {
		env     []string
		files   texts
		steps   []string
		changes []string
		prints  string
	}{
		// Each thing that a check looks for is wrong at one try.
		"images, first for a share": {
			env: []string{"SHARE=10", "TRIES=6"},
			files: texts{"wrong": "token\nunready " + workerCandidate + "\nopen w\nanalysis\nrecover\n" +
				"open d\nsweep\nunready " + workerHost + "\nnothing\n"},
			steps: threeSteps,
			changes: []string{
				"update w --no-traffic --tag=candidate --image=registry/w@sha256:1",
				"update r --no-traffic --tag=candidate --image=registry/w@sha256:1",
				"update d --no-traffic --tag=candidate --image=registry/d@sha256:1",
				"update-traffic w --to-revisions=w-new=10,w-1=90",
				"update-traffic w --to-revisions=w-new=100",
				"update-traffic r --to-revisions=r-new=100",
				"update-traffic d --to-revisions=d-new=100",
				serving, serving, "tags add registry/d@sha256:1 registry/d:serving-w --quiet",
			},
		},
		// By hand, with the variables of the module's output, of a worker without a self-test, after a roll-back.
		"settings": {
			env: []string{
				"PROJECT=", "PROJECT_NUMBER=", "REGION=", "WORKER=", "CALLER=", "RECOVERY=", "DOCLOCK=",
				"STATE=" + filepath.Join(t.TempDir(), "not", "made"), // by no build
				"GOOGLE_CLOUD_PROJECT=p", "CLOUDSDK_RUN_REGION=r",
				"TASK_TARGET_URL=https://" + workerHost, "TASK_CALLER=caller@p.iam",
			},
			files: texts{
				"self-test":  `404 {"reason":"no_such_route"}`,
				"w.template": "app,,registry/app@sha256:8\nw,8080,registry/w@sha256:0\n",
			},
			steps: []string{"settings"},
			changes: []string{
				"update w --no-traffic --tag=candidate --container=w --image=registry/w@sha256:0" +
					" --container=app --image=registry/app@sha256:9",
				"update-traffic w --to-revisions=w-new=100",
				"tags add registry/w@sha256:0 registry/w:serving-w --quiet",
			},
			prints: "NOT TESTED",
		},
		"an application, and no input for the analyzer": {
			env:   []string{"APP=deploy/sidecar/app"},
			files: texts{"w.image": "registry/app@sha256:10", "self-test": `404 {"reason":"not_configured"}`},
			steps: threeSteps,
			changes: []string{
				"update w --no-traffic --tag=candidate --container=app --image=registry/app@sha256:10",
				"update-traffic w --to-revisions=w-new=100",
				"tags add registry/app@sha256:10 registry/app:serving-w --quiet",
			},
			prints: "SMOKE_INPUT",
		},
		"an application's first image": {
			env:    []string{"APP=deploy/sidecar/app"},
			files:  texts{"w.template": "w,8080,registry/w@sha256:0\n"},
			steps:  threeSteps,
			prints: "registry/w@sha256:1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelease(t, tc.files, tc.env...)
			if failed := r.run(tc.steps...); failed != "" {
				t.Errorf("%s fails", failed)
			}
			if diff := cmp.Diff(tc.changes, r.changes()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if wrong := read(t, filepath.Join(r.dir, "wrong")); wrong != "nothing\n" {
				t.Errorf("no check has noticed %s", wrong)
			}
			if !strings.Contains(r.output.String(), tc.prints) {
				t.Errorf("it does not print %s", tc.prints)
			}
		})
	}
}

// The share's queries compare what is measured.
func TestRelease_Queries(t *testing.T) {
	t.Parallel()
	r := newRelease(t, nil, "SHARE=10")
	r.run(threeSteps...)
	queries := strings.Split(read(t, filepath.Join(r.dir, "calls")), "--data-urlencode query=")[1:]
	if len(queries) != 2 {
		t.Fatalf("%d queries, want the number of deliveries and the comparison", len(queries))
	}
	for i, query := range queries {
		query, _, _ = strings.Cut(query, "\n")
		checkQuery(t, "the share", metrics(readMonitoring(t)), strings.ReplaceAll(query, "user_w_", "user_taskguard_"))
		others := strings.Contains(query, `revision_name!="w-new"`)
		if !strings.Contains(query, `revision_name="w-new"`) || others != (i == 1) {
			t.Errorf("it does not count the candidate, or compare it: %s", query)
		}
	}
}

// A release that fails leaves the services as they were, but for what another build has changed.
func TestRelease_Undo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fails  string
		env    string
		files  texts
		others texts // what another build has changed
		prints string
	}{
		"an image by tag":         {fails: "candidate", files: texts{"w.image": "registry/w:1"}},
		"the last does not start": {fails: "candidate", files: texts{"after-update-d": "false"}},
		"there is no self-test":   {fails: "smoke", files: texts{"self-test": `404 {"reason":"no_such_route"}`}},
		"the analyzer is broken": {
			fails: "smoke", env: "APP=deploy/sidecar/app",
			files: texts{"w.image": "registry/app@sha256:10", "self-test": `500 {"error":"ok"}`},
		},
		"the share fails": {
			fails: "shift", env: "SHARE=10",
			files: texts{"errors": `{"result":[{"value":[1,"0.5"]}]}`},
		},
		"no delivery of the share": {
			fails: "shift", env: "SHARE=10", prints: "NOT JUDGED",
			files: texts{"deliveries": `{"result":[]}`},
		},
		"a cancel during the shift": {fails: "shift", files: texts{"after-update-traffic-w": "kill -TERM $$"}},
		"the shift has no effect":   {fails: "shift", files: texts{"ignore-w": ""}},
		"not ready after the shift": {fails: "shift", files: texts{"wrong": "unready " + workerHost}},
		"the undo has no effect": {
			fails: "shift", prints: "NOT DONE",
			files:  texts{"after-update-traffic-w": `: >"$FAKE/ignore-w"; false`},
			others: texts{"w.traffic": "w-new,100,,\n"},
		},
		"another build has the tag": {
			fails: "smoke",
			files: texts{"after-update-d": `cp "$FAKE/newer" "$FAKE/w.template"
				echo w-other,,candidate,https://` + workerCandidate + ` >"$FAKE/w.tagged"`},
			others: texts{"w.template": newer},
		},
		"another build has the traffic": {
			fails: "shift",
			files: texts{"in-" + workerHost: `cp "$FAKE/newer" "$FAKE/w.template"
				echo w-other,100,, >"$FAKE/w.traffic"; echo "unready $host" >"$FAKE/wrong"`},
			others: texts{"w.traffic": "w-other,100,,\n", "w.template": newer},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelease(t, tc.files, tc.env)
			r.write("newer", newer)
			want := r.services()
			if failed := r.run(threeSteps...); failed != tc.fails {
				t.Errorf("the step %q fails, want %q", failed, tc.fails)
			}
			for file, text := range tc.others {
				want[file] = text
			}
			if diff := cmp.Diff(want, r.services()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if !strings.Contains(r.output.String(), tc.prints) {
				t.Errorf("it does not print %s", tc.prints)
			}
		})
	}

	t.Run("by the commands that a killed build has printed", func(t *testing.T) {
		t.Parallel()
		r := newRelease(t, texts{"after-update-traffic-d": "kill -KILL $$"})
		before := r.services()
		if failed := r.run(threeSteps...); failed != "shift" {
			t.Errorf("the step %q fails, want shift", failed)
		}
		for line := range strings.Lines(r.output.String()) {
			if strings.HasPrefix(line, "  gcloud ") && !r.bash("-c", line) {
				t.Errorf("it printed %s", line)
			}
		}
		if diff := cmp.Diff(before, r.services()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// A changed setting that reaches the worker alone would leave recovery with the old one, such as a lost database.
func TestRelease_Environment(t *testing.T) {
	for name, want := range map[string]string{
		"platform": "taskguard-doclock taskguard-recovery", "everything": "taskguard-doclock ", "application": " ",
	} {
		r := newRelease(t, nil, "RECOVERY=another-deployment's")
		r.bash("-c", evaluated(t, name).ShellEnv+"\n"+`printf %s "$DOCLOCK $RECOVERY"`)
		if got := r.output.String(); got != want {
			t.Errorf("%s: the services beside the worker are %q, want %q", name, got, want)
		}
	}
}
