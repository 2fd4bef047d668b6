package deploy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
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
	check(t, os.CopyFS(filepath.Join(c.folder, "deploy"), os.DirFS(".")))
	c.write("fakes", cloudFakes)
	c.write("cloud", "")
	c.write("exports", "")
	c.write("apis", "storage.googleapis.com\n")
	c.write("application_default_credentials.json", `{"type": "authorized_user"}`)
	return c
}

// withFewAlerts removes most files of alerts and log metrics, which the page takes in loops.
func (c *cloud) withFewAlerts() *cloud {
	c.t.Helper()
	for _, kind := range []string{"policies", "metrics"} {
		for _, path := range files(c.t, c.folder+"/deploy/monitoring/"+kind+"/*.json")[2:] {
			check(c.t, os.Remove(path))
		}
	}
	return c
}

func (c *cloud) write(name, text string) {
	c.t.Helper()
	check(c.t, os.WriteFile(filepath.Join(c.folder, name), []byte(text), 0o600))
}

func (c *cloud) read(name string) string {
	c.t.Helper()
	return read(c.t, filepath.Join(c.folder, name))
}

// bash runs bash with these arguments in the folder, and reports whether it succeeded.
func (c *cloud) bash(answers string, args ...string) bool {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), "bash", args...)
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = c.folder, strings.NewReader(answers), time.Minute
	cmd.Env = slices.Concat(c.env, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.folder, "TMPDIR=" + c.folder, "BASH_ENV=" + filepath.Join(c.folder, "fakes"), "FAKE=" + c.folder})
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	c.output = string(out)
	return err == nil
}

// rehearse runs rehearse.sh, with these answers to its questions.
func (c *cloud) rehearse(answers string, args ...string) bool {
	c.t.Helper()
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
	for line := range strings.Lines(c.read("cloud")) {
		if created, ok := strings.CutPrefix(line, "+"); ok && created != but+"\n" && !strings.Contains(c.read("cloud"), "-"+created) {
			c.t.Errorf("it leaves %s", created)
		}
	}
	if got := c.read("theirs-permissions.txt"); !regexp.MustCompile(`^ *2 a@b.c\trun.services.get\tgranted\n *1 x@b.c\trun.operations.get\trefused\n$`).MatchString(got) {
		c.t.Errorf("the permissions are\n%s", got)
	}
	if c.t.Failed() {
		c.t.Logf("output:\n%s", c.output)
	}
}

func TestARehearsalReleasesAndLeavesAnEmptyProject(t *testing.T) {
	t.Parallel()
	steps := map[string][]string{
		"terraform": {"terraform -chdir=production apply\n", "terraform -chdir=production output"},
		"gcloud":    {"gcloud iam roles create taskguardTaskFinder", "gcloud run services replace deploy/service.yaml", "gcloud iam roles create taskguardOperations", "gcloud monitoring policies create"},
	}
	for way, own := range steps {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			rehearseAndRemove(t, way, own)
		})
	}
}

func rehearseAndRemove(t *testing.T, way string, own []string) {
	t.Helper()
	c := newCloud(t).withFewAlerts()
	if !c.rehearse("theirs\nyes\n", way) {
		t.Errorf("%s fails", way)
	}
	c.wantRemoved("")
	if policy := c.read("policy"); !strings.Contains(policy, "bindings: []\nauditConfigs:\n- service: allServices\n") {
		t.Errorf("%s: the policy is\n%s", way, policy)
	}
	rest := c.calls()
	for _, want := range slices.Concat([]string{"gcloud config set project theirs\n", "go install ./cmd/taskguard\n"}, own, []string{
		"taskguard doctor --service taskguard-worker --smoke ",
		"--config=cloudbuild.yaml\n", "--config=deploy/cloudbuild-release.yaml --substitutions=COMMIT_SHA=,_REGION=europe-west1,_DOCLOCK=taskguard-doclock\n",
		",_SETTINGS=yes,_DOCLOCK=taskguard-doclock\n", "_SHARE=50", "--to-revisions=w-1=100\n", "taskguard submit --wait", "--to-revisions=w-2=100\n",
		"ANALYZER=http://localhost:1/", "_SETTINGS=yes\n", "ANALYZER=builtin:document\n", "query=up", "create-http-task",
		"gcloud tasks queues pause", "taskguard cancel ", "taskguard requeue ", "gcloud tasks queues resume",
		"gcloud scheduler jobs run taskguard-export ", "gcloud firestore import gs://theirs-taskguard-backup/7 ", "gcloud firestore import gs://theirs-taskguard-restore/", "taskguard restore",
		"gcloud firestore databases delete", "gcloud logging read",
	}) {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Errorf("%s does not call %q in its place:\n%s", way, want, c.calls())
			break
		}
		rest = after
	}
	if way == "terraform" && (strings.Count(c.calls(), "_APP=deploy/sidecar/app\n") != 2 || !strings.Contains(c.calls(), "plan -detailed-exitcode\n")) {
		t.Errorf("no sidecar and no plan:\n%s", c.calls())
	}
	if calls := strings.ReplaceAll(c.calls(), "projects/my-project/notificationChannels/7", ""); strings.Contains(calls, "auth login") || strings.Contains(calls, "my-project") || strings.Contains(calls, "oncall@") {
		t.Errorf("%s: a call is not of this project:\n%s", way, calls)
	}

	saved := regexp.MustCompile(`(?s) CALLER=.* DOCLOCK_DATABASE=.* TASK_QUEUE=.* WORKER_IMAGE=.*\nretry \(\)`)
	if variables := c.read("theirs-rehearsal/.variables"); way == "gcloud" && !saved.MatchString(variables) {
		t.Errorf("for steps that are run alone it has saved\n%s", variables)
	}

	c.write("calls", "") // steps that are run alone
	if !c.rehearse("", way, "rollback", "plan") || !strings.Contains(c.calls(), "w-1=100") || strings.Contains(c.calls(), "builds submit") {
		t.Errorf("%s: the steps alone fail, or call\n%s", way, c.calls())
	}
	for fail, step := range map[string]string{
		"gcloud run revisions describe": "settings", "curl .*prometheus": "queries", "terraform .*detailed-exitcode": "plan",
		"released": "broken", "refused": "broken", // with traffic for a broken analyzer; and without its self-test
		"nothing":   "alert",   // which has not arrived
		"no export": "restore", // although Cloud Scheduler has run the job
	} {
		if c.write("fail", fail); way == "terraform" && c.rehearse("no\n", way, step) {
			t.Errorf("the step %s succeeds:\n%s", step, c.output)
		}
	}
}

func TestARehearsalTakesEachStepAsTheAccountOfItsRole(t *testing.T) {
	t.Parallel()
	c := newCloud(t).withFewAlerts()
	c.env = []string{"OPERATOR=o@x", "RESPONDER=r@x", "SUBMITTER=s@x"}
	if !c.rehearse("theirs\nyes\n", "terraform") {
		t.Error("it fails")
	}
	c.wantRemoved("")
	for call := range strings.Lines(c.calls()) {
		want := ""
		switch {
		case strings.HasPrefix(call, "taskguard submit "):
			want = "s@x"
		case regexp.MustCompile(`^taskguard (status|restore|cancel|requeue) |(operations|backups) list `).MatchString(call):
			want = "o@x"
		case strings.HasPrefix(call, "taskguard doctor ") && strings.Contains(call, "a test"): // after changed settings
			want = "o@x"
		case strings.Contains(call, "-00001=100"): // the first revision is pinned by whoever sets all up
		case regexp.MustCompile(`update-traffic|(queues|jobs) (pause|resume|run) |snoozes|release.sh settings`).MatchString(call):
			want = "r@x"
		}
		if _, who, _ := strings.Cut(strings.TrimSpace(call), " as "); who != want && (want == "" || who != want+".json") && !strings.Contains(call, "policies list") {
			t.Errorf("as %q, want %q: %s", who, want, call)
		}
	}
	if !strings.Contains(c.calls(), "\nbash deploy/release.sh settings as r@x.json\n") {
		t.Error("no responder changes a setting")
	}
	config := c.read("theirs-rehearsal/production/main.tf")
	for _, want := range []string{`["serviceAccount:s@x"]`, `["serviceAccount:o@x", "serviceAccount:r@x"]`, `responders = ["serviceAccount:r@x"]`} {
		if !strings.Contains(config, want) {
			t.Errorf("the configuration has no %s:\n%s", want, config)
		}
	}
	if left, _ := filepath.Glob(c.folder + "/theirs-rehearsal/.as-*"); left != nil {
		t.Errorf("it leaves %s", left)
	}

	c.write("calls", "")
	c.write("fail", "gcloud firestore export")
	paused, failed := "gcloud tasks queues pause ", c.rehearse("", "terraform", "restore")
	if _, after, found := strings.Cut(c.calls(), paused); failed || !found || !strings.Contains(after, "gcloud tasks queues resume ") || strings.Contains(after, " import ") {
		t.Errorf("a restore that fails goes on, or leaves the queue paused:\n%s", c.calls())
	}
	c.write("calls", "")
	c.env = c.env[:2]
	if c.rehearse("theirs\n", "terraform") || strings.Contains(c.calls(), "enable") {
		t.Errorf("it begins without one of the accounts:\n%s", c.calls())
	}
}

func TestARehearsalThatFailsRemovesWhatItMadeAndListsTheRest(t *testing.T) {
	t.Parallel()
	for fail, c := range map[string]struct{ way, next, left string }{
		"gcloud (artifacts.* create|firestore.* list)":   {"gcloud", "gcloud firestore databases create", "unknown"}, // nothing is made, and variables are unset
		"gcloud (beta builds submit|firestore.* delete)": {"terraform", "cloudbuild-release", "(default)"},
	} {
		t.Run(fail, func(t *testing.T) {
			t.Parallel()
			p := newCloud(t).withFewAlerts()
			p.write("fail", fail)
			if ok := p.rehearse("theirs\nyes\n", c.way); ok || strings.Contains(p.calls(), c.next) {
				t.Errorf("%s goes on after the failure", c.way)
			}
			want := "Left in theirs: firestore databases: " + c.left + "\nThe clone, with Terraform's state, is " + p.folder
			if !strings.Contains(p.output, want) {
				t.Errorf("it does not print %q:\n%s", want, p.output)
			}
			p.wantRemoved("firestore databases:" + c.left)
		})
	}
}

func TestARehearsalChangesNothingUnlessTheProjectIsEmptyAndNamed(t *testing.T) {
	t.Parallel()
	for resources, want := range map[string]string{
		"+run services:other\n+storage buckets:other\n": "theirs is not empty: run services: other\nstorage buckets: other\n",
		"+iam roles:taskguardOperations\n":              "theirs has been rehearsed",
		"+iam roles:taskguardTaskFinder\n":              "theirs has been rehearsed",
		"":                                              "nothing has been changed", // the answer is not the project's name
	} {
		c, answer := newCloud(t), "yes\n"
		if resources != "" {
			c.write("cloud", resources)
			c.write("apis", "storage.googleapis.com\nrun.googleapis.com\n")
			answer = "theirs\n"
		}
		if ok := c.rehearse(answer, "gcloud"); ok || !strings.Contains(c.output, want) || c.read("cloud") != resources {
			t.Errorf("with %q it succeeds: %v, makes %s, and prints\n%s", resources, ok, c.read("cloud"), c.output)
		}
		for call := range strings.Lines(c.calls()) {
			if !regexp.MustCompile(`^gcloud (config get-value|auth application-default print-access-token|.* list |iam roles describe )`).MatchString(call) {
				t.Errorf("with %q it calls %s", resources, call)
			}
		}
	}
}
