package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"
)

// cloudFakes has functions in place of the programs that deploy's pages and deploy/rehearse.sh
// call. A call is a line of $FAKE/calls, with tabs between its words. What is created and
// deleted, KIND:NAME, is a line of $FAKE/cloud after + or -; $FAKE/apis has the enabled APIs. A
// call that begins as the expression in $FAKE/fail fails.
const cloudFakes = `
for name in gcloud go terraform taskguard openssl git curl bash; do eval "$name() { fake $name \"\$@\"; }"; done
unset name

# The script's next submission waits until the release beside it has ended.
sleep() { fake sleep "$@"; [[ $* != 10 || -z ${!-} ]] || wait $!; }
basename() { local name=${1##*/}; echo "${name%"$2"}"; }

create() { echo "+$*" >>"$FAKE/cloud"; }
exists() {
  local all=$'\n'$(<"$FAKE/cloud")$'\n'
  [[ $all == *$'\n+'"$*"$'\n'* && $all != *$'\n-'"$*"$'\n'* ]]
}
delete() { exists "$@" && echo "-$*" >>"$FAKE/cloud"; }
list() { # prints the names of a kind
  local line all
  mapfile -t all <"$FAKE/cloud"
  for line in "${all[@]}"; do
    [[ $line != "+$1:"* ]] || ! exists "${line#?}" || echo "${line#*:}"
  done
}

# fake is no subshell: a fork takes longer than everything else here.
fake() {
  local call="$*" words=() database='(default)' fail= word named kind name IFS=$'\t'
  [[ -z ${CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT-} ]] || set -- "$@" "as ${GOOGLE_APPLICATION_CREDENTIALS##*/.as-}"
  echo "$*" >>"$FAKE/calls"
  IFS=' '
  shift
  for word; do
    case $word in --database=*) database=${word#*=} ;; -*) ;; *) words+=("${word%%@*}") ;; esac
  done
  named=${words[*]: -1} named=${named##*/} kind=${words[*]:0:2}
  [[ ! -e $FAKE/fail ]] || fail=$(<"$FAKE/fail")
  [[ -z $fail || ! $call =~ ^$fail ]] || { echo "ERROR: $call" >&2; return 1; }

  case $call in
  "go run "*) echo "europe-west1-docker.pkg.dev/my-project/taskguard/$named@sha256:0000000000000000000000000000000000000000000000000000000000000000" ;;
  "openssl "*) echo secret ;;
  "git clone "*) cp -R deploy "${*: -1}" ;;
  "terraform -chdir=failover apply") create "firestore databases:failover" ;;
  "terraform -chdir=failover destroy") ;;
  "terraform "*" apply") create terraform:everything; exists "firestore databases:(default)" || create "firestore databases:(default)" ;;
  "terraform "*" destroy") delete terraform:everything ;;
  "curl "*"/prometheus/api/v1/query") read -r _ || true; echo '{"status": "success"}' ;; # else the writer gets SIGPIPE
  "gcloud config get-value account") echo me@example.com ;;
  "gcloud info "*) echo "$FAKE" ;;
  "gcloud projects describe "*) echo 123456789012 ;;
  "gcloud projects get-iam-policy "*) echo 'bindings: []' ;;
  "gcloud projects set-iam-policy "*) cp "$4" "$FAKE/policy" ;;
  "gcloud services list "*) echo "$(<"$FAKE/apis")" ;;
  "gcloud services enable "*) printf '%s\n' "${words[@]:2}" >>"$FAKE/apis" ;;
  "gcloud run services update "*localhost:1*) : >"$FAKE/broken" ;;
  "gcloud run services update "*) rm -f "$FAKE/broken" ;;
  "gcloud beta builds submit "*_SETTINGS=yes*)
    [[ $fail == refused ]] || echo "https://a/internal/self-test answers 500, not 200"
    [[ ! -e $FAKE/broken || $fail == released ]] ;;
  "gcloud run services describe "*latestReadyRevisionName*) echo "$named-00001" ;;
  "gcloud run services describe "*) printf '100,w-2\n,w-3\n' ;;
  "gcloud run revisions list "*) printf 'w-2\nw-1\n' ;;
  "gcloud run revisions describe w-2 "*) printf -- "- name: MAX_ATTEMPTS\n  value: '9'\n" ;;
  "gcloud monitoring "*" describe "*) echo up ;;
  "gcloud artifacts docker images list "*) echo "registry/app@sha256:7" ;;
  "gcloud iam roles describe "*) exists "iam roles:$4" ;;
  "gcloud logging read "*) printf 'a@b.c\trun.services.get\tgranted\na@b.c\trun.services.get\tgranted\nx@b.c\trun.operations.get\trefused\n' ;;
  "gcloud run services replace "*) [[ $(<"$4") =~ $'\n  name: '([a-z-]+) ]] && create "$kind:${BASH_REMATCH[1]}" ;;
  "gcloud monitoring snoozes create "*) ;; # it ends by itself
  "gcloud monitoring "*" create "*) create "$kind:${4##*/}" ;;
  "gcloud beta monitoring channels create "*) create "beta monitoring channels:7"; echo projects/my-project/notificationChannels/7 ;;
  "gcloud firestore databases create "*) create "$kind:$database" ;;
  "gcloud firestore databases delete "*) delete "$kind:$database" ;;
  "gcloud scheduler jobs run "*) [[ $fail == "no export" ]] || echo gs://theirs-taskguard-backup/7/7.overall_export_metadata >>"$FAKE/exports" ;;
  "gcloud storage ls "*) echo "$(<"$FAKE/exports")" ;;
  "gcloud storage rm "*) delete "storage buckets:$named" ;;
  "gcloud firestore indexes "*) ;;
  "gcloud secrets create "*) read -r _ || true; create "secrets:$named" ;;
  "gcloud firestore backups "*) ;; # they end with time
  "gcloud "*" create "*) kind=${words[*]}; create "${kind%% create *}:$named" ;;
  "gcloud "*" delete "*) kind=${words[*]}; for name in ${kind#* delete }; do delete "${kind%% delete *}:${name##*/}"; done ;;
  "gcloud "*" list "*) kind=${words[*]}; list "${kind%% list*}" ;;
  esac
}
`

// cloud is a project, and a folder with a copy of deploy.
type cloud struct {
	t      *testing.T
	folder string
	env    []string // more variables of the script
	output string
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{t: t, folder: t.TempDir()}
	must.OK(t, os.CopyFS(filepath.Join(c.folder, "deploy"), os.DirFS(".")))
	for name, text := range map[string]string{
		"fakes": cloudFakes, "cloud": "", "exports": "", "apis": "storage.googleapis.com\n",
		"application_default_credentials.json": `{"type": "authorized_user"}`,
	} {
		c.write(name, text)
	}
	return c
}

// newRehearsal has few alerts and log metrics, which the page takes in loops.
func newRehearsal(t *testing.T, env ...string) *cloud {
	t.Helper()
	c := newCloud(t)
	c.env = env
	for _, kind := range []string{"policies", "metrics"} {
		for _, path := range files(t, c.folder+"/deploy/monitoring/"+kind+"/*.json")[2:] {
			must.OK(t, os.Remove(path))
		}
	}
	return c
}

func (c *cloud) write(name, text string) {
	c.t.Helper()
	must.OK(c.t, os.WriteFile(filepath.Join(c.folder, name), []byte(text), 0o600))
}

func (c *cloud) read(name string) string {
	c.t.Helper()
	return read(c.t, filepath.Join(c.folder, name))
}

// bash runs bash with these arguments in the folder, and reports whether it succeeded.
func (c *cloud) bash(answers string, args ...string) bool {
	cmd := exec.CommandContext(c.t.Context(), "bash", args...)
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = c.folder, strings.NewReader(answers), time.Minute
	cmd.Env = slices.Concat(c.env, []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + c.folder, "TMPDIR=" + c.folder,
		"BASH_ENV=" + filepath.Join(c.folder, "fakes"), "FAKE=" + c.folder,
	})
	out, err := cmd.CombinedOutput()
	c.output = string(out)
	return err == nil
}

// rehearse runs rehearse.sh, with these answers to its questions, and reports whether it succeeded.
func (c *cloud) rehearse(answers string, args ...string) bool {
	c.write("calls", "")
	return c.bash(answers, append([]string{"deploy/rehearse.sh", "theirs"}, args...)...)
}

// calls returns the calls, with spaces between their words.
func (c *cloud) calls() string {
	c.t.Helper()
	return strings.ReplaceAll(c.read("calls"), "\t", " ")
}

// wantRemoved checks that the project is empty again but for this, and that the permissions are known.
func (c *cloud) wantRemoved(but string) {
	c.t.Helper()
	cloud := c.read("cloud")
	for line := range strings.Lines(cloud) {
		created, ok := strings.CutPrefix(line, "+")
		if ok && !strings.Contains(cloud+"-"+but+"\n", "-"+created) {
			c.t.Errorf("it leaves %s\n%s", created, c.output)
		}
	}
	want := []string{"2", "a@b.c", "run.services.get", "granted", "1", "x@b.c", "run.operations.get", "refused"}
	if got := strings.Fields(c.read("theirs-permissions.txt")); !slices.Equal(got, want) {
		c.t.Errorf("the permissions are %q", got)
	}
}

func TestRehearsal(t *testing.T) {
	t.Parallel()
	for way, tc := range map[string]struct {
		own string // call
		env []string
	}{
		"terraform": {"plan -detailed-exitcode", []string{"OPERATOR=o@x", "RESPONDER=r@x", "SUBMITTER=s@x"}},
		"gcloud":    {own: "gcloud run services replace deploy/service.yaml"},
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			c := newRehearsal(t, tc.env...)
			if !c.rehearse("theirs\nyes\n", way) {
				t.Errorf("it fails\n%s", c.output)
			}
			c.wantRemoved("")
			calls := c.calls()
			for _, want := range []string{
				tc.own, "--config=cloudbuild.yaml", "_SHARE=50", "--to-revisions=w-1=100",
				"ANALYZER=http://localhost:1/", "query=up", "create-http-task", "queues pause", "taskguard restore",
				"gcloud firestore databases delete",
				"gcloud firestore import gs://theirs-taskguard-restore/",
			} {
				if !strings.Contains(calls, want) {
					t.Errorf("it does not call %s:\n%s", want, calls)
				}
			}
			others := strings.ReplaceAll(calls, "projects/my-project/notificationChannels/7", "")
			for _, wrong := range []string{"my-project", "oncall@", "auth login"} {
				if strings.Contains(others, wrong) {
					t.Errorf("a call is about %s:\n%s", wrong, others)
				}
			}
			if tc.env != nil {
				c.wantRoles()
			}

			if !c.rehearse("", way, "rollback", "plan") || strings.Contains(c.calls(), "builds submit") {
				t.Errorf("two steps alone fail, or take another:\n%s", c.output)
			}
		})
	}

	t.Run("a step notices its failure", func(t *testing.T) {
		t.Parallel()
		c := newRehearsal(t)
		c.rehearse("theirs\nyes\n", "terraform") // leaves its folder
		for fail, step := range map[string]string{
			"gcloud run revisions describe": "settings", "curl .*prometheus": "queries",
			"terraform .*detailed-exitcode": "plan",
			"released":                      "broken",  // a broken analyzer has traffic
			"refused":                       "broken",  // without its self-test
			"nothing":                       "alert",   // has arrived
			"no export":                     "restore", // although Cloud Scheduler has run the job
		} {
			c.write("fail", fail)
			if c.rehearse("no\n", "terraform", step) {
				t.Errorf("the step %s succeeds after %s:\n%s", step, fail, c.output)
			}
		}

		c.write("fail", "gcloud firestore export")
		c.rehearse("", "terraform", "restore")
		if _, after, _ := strings.Cut(c.calls(), "queues pause "); !strings.Contains(after, "queues resume ") {
			t.Errorf("a restore that fails leaves the queue paused:\n%s", c.calls())
		}
	})

	t.Run("a failure removes what was made and lists the rest", func(t *testing.T) {
		t.Parallel()
		c := newRehearsal(t)
		c.write("fail", "gcloud (beta builds submit|firestore.* delete)")
		if c.rehearse("theirs\nyes\n", "terraform") || strings.Contains(c.calls(), "cloudbuild-release") {
			t.Errorf("it goes on:\n%s", c.calls())
		}
		if !strings.Contains(c.output, "firestore databases: (default)") {
			t.Errorf("it does not list the database:\n%s", c.output)
		}
		c.wantRemoved("firestore databases:(default)")
	})

	t.Run("a project that is not empty, or not meant, is left alone", func(t *testing.T) {
		t.Parallel()
		for resources, answer := range map[string]string{
			"+run services:other\n":            "theirs\n",
			"+iam roles:taskguardTaskFinder\n": "theirs\n", // it has been rehearsed
			"":                                 "yes\n",
		} {
			c := newCloud(t)
			c.write("cloud", resources)
			c.write("apis", "storage.googleapis.com\nrun.googleapis.com\n")
			if c.rehearse(answer, "gcloud") || c.read("cloud") != resources {
				t.Errorf("with %q it makes %s by\n%s", resources, c.read("cloud"), c.calls())
			}
			if strings.Contains(c.calls(), " set ") {
				t.Errorf("with %q it changes a setting:\n%s", resources, c.calls())
			}
		}
	})
}

// taker is who takes the steps with calls like these.
type taker struct {
	who   string // empty: you
	calls *regexp.Regexp
}

var takers = []taker{
	{"s@x", regexp.MustCompile(`^taskguard submit `)},
	{"o@x", regexp.MustCompile(`^taskguard (status|restore|cancel|requeue) |(operations|backups) list `)},
	{"o@x", regexp.MustCompile(`^taskguard doctor .*a test`)}, // after changed settings
	{"", regexp.MustCompile(`-00001=100`)},                    // sets all up
	{"r@x", regexp.MustCompile(`update-traffic|(queues|jobs) (pause|resume|run) |snoozes|release.sh settings`)},
	{"", regexp.MustCompile(``)},
}

// wantRoles checks that each took the steps of their role, which the configuration gives them.
func (c *cloud) wantRoles() {
	c.t.Helper()
	took := map[string]bool{}
	for call := range strings.Lines(c.calls()) {
		call, who, _ := strings.Cut(strings.TrimSpace(call), " as ")
		who = strings.TrimSuffix(who, ".json")
		i := slices.IndexFunc(takers, func(k taker) bool { return k.calls.MatchString(call) })
		if takers[i].who != who && !strings.Contains(call, "policies list") { // which anybody may call
			c.t.Errorf("as %q, want %q: %s", who, takers[i].who, call)
		}
		took[who] = true
	}
	if len(took) != 4 {
		c.t.Errorf("somebody takes no step: %v", took)
	}
	config := c.read("theirs-rehearsal/production/main.tf")
	for _, want := range []string{
		`["serviceAccount:s@x"]`, `["serviceAccount:o@x", "serviceAccount:r@x"]`, `responders = ["serviceAccount:r@x"]`,
	} {
		if !strings.Contains(config, want) {
			c.t.Errorf("the configuration has no %s:\n%s", want, config)
		}
	}
	if left, _ := filepath.Glob(c.folder + "/theirs-rehearsal/.as-*"); left != nil {
		c.t.Errorf("it leaves %s", left)
	}
}
