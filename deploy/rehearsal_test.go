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

// fakeCloud replaces the programs that deploy/rehearse.sh and deploy/README.md call. The
// project's resources are the files of $CLOUD, named by their kind and name.
const fakeCloud = fakeProgram + `
set -eu
call="${0##*/} $*" words=()
for w; do [[ $w == -* ]] || words+=("$w"); done
resource() { # kind, name
  local name=${2%%@*}
  printf '%s/%s:%s' "$CLOUD" "${1// /-}" "${name##*/}"
}
[[ $call =~ --database=[^\ ]* ]] && database=${BASH_REMATCH[0]} || database='=(default)'
[[ ! -e "$FAIL" || ! $call =~ ^$(<"$FAIL") ]] || { echo "ERROR: $call" >&2; exit 1; }
case $call in
"gcloud config get-value account") echo "$ACCOUNT" ;;
"gcloud run services update "*localhost:1*) touch "$CLOUD.broken" ;;
"gcloud run services update "*) rm -f "$CLOUD.broken" ;;
"gcloud beta builds submit "*_SETTINGS=yes*) fail=$(cat "$FAIL" 2>&1) || true
  [[ $fail == refused ]] || echo "https://a/internal/self-test answers 500, not 200"
  [[ ! -e "$CLOUD.broken" || $fail == released ]] ;;
"gcloud run services describe "*) printf '100,w-2\n,w-3\n' ;;
"gcloud run revisions list "*) printf 'w-2\nw-1\n' ;;
"gcloud run revisions describe w-2 "*) printf -- "- name: MAX_ATTEMPTS\n  value: '9'\n" ;;
"gcloud monitoring "*" describe "*) echo up ;;
"gcloud artifacts docker images list "*) echo "registry/app@sha256:7" ;;
"curl "*"/prometheus/api/v1/query") echo '{"status": "success"}' ;;
"gcloud services list "*) cat "$APIS" ;;
"gcloud services enable "*) printf '%s\n' "${words[@]:2}" >>"$APIS" ;;
"gcloud iam roles describe "*) test -e "$(resource "iam roles" "$4")" ;;
"gcloud projects get-iam-policy "*) echo 'bindings: []' ;;
"gcloud projects set-iam-policy "*) cp "$4" "$POLICY" ;;
"gcloud logging read "*) printf 'a@b.c\trun.services.get\tgranted\na@b.c\trun.services.get\tgranted\nx@b.c\trun.operations.get\trefused\n' ;;
"gcloud run services replace "*) touch "$(resource "run services" "$(sed -n 's/^  name: //p' "$4")")" ;;
"gcloud scheduler jobs create http "*) touch "$(resource "scheduler jobs" "$5")" ;;
"gcloud monitoring "*" create "*) touch "$(resource "${words[*]:0:2}" "$(basename "${4#*=}")")" ;;
"gcloud beta monitoring channels create "*) touch "$(resource "beta monitoring channels" 7)" ;;
"gcloud firestore databases "*"create "*) touch "$(resource "firestore databases" "${database#*=}")" ;;
"gcloud firestore databases delete "*) rm "$(resource "firestore databases" "${database#*=}")" ;;
"gcloud storage rm "*) rm "$(resource "storage buckets" "${words[2]}")" ;;
"gcloud firestore indexes "*) ;;
"gcloud "*" create "*) kind=${words[*]} name=${kind#* create }; touch "$(resource "${kind%% create *}" "${name%% *}")" ;;
"gcloud "*" delete "*) kind=${words[*]}; for name in ${kind#* delete }; do rm "$(resource "${kind%% delete *}" "$name")"; done ;;
"gcloud "*" list "*) kind=${call#gcloud } kind=${kind%% list*}; ls "$CLOUD" | sed -n "s|^${kind// /-}:||p" ;;
"git clone "*) cp -R deploy "${*: -1}" ;;
"terraform "*" apply") touch "$(resource terraform everything)" "$(resource "firestore databases" '(default)')" ;;
"terraform "*" destroy") rm "$(resource terraform everything)" ;;
esac
`

// rehearsal is a project and the programs that stand in for Google's.
type rehearsal struct {
	t      *testing.T
	folder string
	output string
}

// rehearse runs rehearse.sh in an empty project, with an answer to its question, where
// calls that begin as the expression fail are refused.
func rehearse(t *testing.T, way, answer, fail string, resources ...string) (r *rehearsal, ok bool) {
	t.Helper()
	r = &rehearsal{t: t, folder: t.TempDir()}
	for _, name := range []string{"gcloud", "go", "terraform", "taskguard", "openssl", "git", "curl", "sleep"} {
		r.write("bin/"+name, fakeCloud)
	}
	r.write("apis", "storage.googleapis.com\n")
	for _, name := range resources {
		r.write("cloud/"+name, "")
		r.write("apis", "storage.googleapis.com\nrun.googleapis.com\n")
	}
	check(t, os.MkdirAll(filepath.Join(r.folder, "cloud"), 0o700))
	if fail != "" {
		r.write("fail", fail)
	}
	check(t, os.CopyFS(filepath.Join(r.folder, "deploy"), os.DirFS(".")))
	ok = r.run(answer+"\nyes\n", way)
	return r, ok
}

// run runs rehearse.sh with these arguments and reports whether it succeeded.
func (r *rehearsal) run(answers string, args ...string) bool {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "bash", append([]string{"deploy/rehearse.sh", "theirs"}, args...)...)
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = r.folder, strings.NewReader(answers), time.Minute
	cmd.Env = []string{"PATH=" + filepath.Join(r.folder, "bin") + ":" + os.Getenv("PATH"), "HOME=" + r.folder, "TMPDIR=" + r.folder, "PAUSE=1", "ACCOUNT=me@example.com"}
	for _, name := range []string{"calls", "cloud", "apis", "policy", "fail"} {
		cmd.Env = append(cmd.Env, strings.ToUpper(name)+"="+filepath.Join(r.folder, name))
	}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	r.output = string(out)
	return err == nil
}

func (r *rehearsal) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil { //nolint:gosec // some are programs
		r.t.Fatal(err)
	}
}

// calls returns the calls, with spaces between their words.
func (r *rehearsal) calls() string {
	r.t.Helper()
	return strings.ReplaceAll(read(r.t, filepath.Join(r.folder, "calls")), "\t", " ")
}

// wantRemoved checks that the project is empty again, and that the permissions are known.
func (r *rehearsal) wantRemoved() {
	r.t.Helper()
	if left := r.left(); len(left) > 0 {
		r.t.Errorf("left: %q", left)
	}
	if got := read(r.t, filepath.Join(r.folder, "theirs-permissions.txt")); !regexp.MustCompile(`^ *2 a@b.c\trun.services.get\tgranted\n *1 x@b.c\trun.operations.get\trefused\n$`).MatchString(got) {
		r.t.Errorf("the permissions are\n%s", got)
	}
	if r.t.Failed() {
		r.t.Logf("output:\n%s", r.output)
	}
}

func (r *rehearsal) left() (names []string) {
	r.t.Helper()
	files, err := os.ReadDir(filepath.Join(r.folder, "cloud"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

func TestARehearsalReleasesAndLeavesAnEmptyProject(t *testing.T) {
	t.Parallel()
	steps := map[string][]string{
		"terraform": {"terraform -chdir=production apply\n", "terraform -chdir=production output"},
		"gcloud":    {"gcloud iam roles create taskguardTaskFinder", "gcloud run services replace deploy/service.yaml", "gcloud iam roles create taskguardOperations", "gcloud monitoring policies create"},
	}
	for way, of := range steps {
		r, ok := rehearse(t, way, "theirs", "")
		if !ok {
			t.Errorf("%s fails", way)
		}
		r.wantRemoved()
		if policy := read(t, filepath.Join(r.folder, "policy")); !strings.Contains(policy, "bindings: []\nauditConfigs:\n- service: allServices\n") {
			t.Errorf("%s: the policy is\n%s", way, policy)
		}
		rest := r.calls()
		for _, want := range slices.Concat([]string{"gcloud config set project theirs\n", "go install ./cmd/taskguard\n"}, of, []string{
			"taskguard doctor --service taskguard-worker --smoke ",
			"--config=cloudbuild.yaml\n", "--config=deploy/cloudbuild-release.yaml --substitutions=_REGION=europe-west1,_DOCLOCK=taskguard-doclock\n",
			",_SETTINGS=yes,_DOCLOCK=taskguard-doclock\n", "_SHARE=50", "--to-revisions=w-1=100\n", "taskguard submit --wait", "--to-revisions=w-2=100\n",
			"ANALYZER=http://localhost:1/", "_SETTINGS=yes\n", "ANALYZER=builtin:document\n", "query=up", "create-http-task",
			"gcloud firestore databases delete", "gcloud logging read",
		}) {
			_, after, found := strings.Cut(rest, want)
			if !found {
				t.Errorf("%s does not call %q in its place:\n%s", way, want, r.calls())
				break
			}
			rest = after
		}
		if way == "terraform" && (strings.Count(r.calls(), "_APP=deploy/sidecar/app\n") != 2 || !strings.Contains(r.calls(), "plan -detailed-exitcode\n")) {
			t.Errorf("no sidecar and no plan:\n%s", r.calls())
		}
		if calls := strings.ReplaceAll(r.calls(), "projects/my-project/notificationChannels/7", ""); strings.Contains(calls, "auth login") || strings.Contains(calls, "my-project") || strings.Contains(calls, "oncall@") {
			t.Errorf("%s: a call is not of this project:\n%s", way, calls)
		}
		r.write("calls", "") // steps that are run alone
		alone := r.run("no\n", way, "rollback", "plan")
		if calls := r.calls(); !alone || !strings.Contains(calls, "w-1=100") || strings.Contains(calls, "builds submit") || r.run("no\n", way, "alert") {
			t.Errorf("%s: one of the steps fails, or an alert that does not arrive is none; it calls\n%s", way, calls)
		}
	}
}

func TestARehearsalThatFailsRemovesWhatItMade(t *testing.T) {
	t.Parallel()
	for fail, c := range map[string]struct{ way, next string }{
		"gcloud services enable":                          {"terraform", "cloudbuild-release"}, // no variable of step 4 is set
		"gcloud beta builds submit .*=cloudbuild":         {"terraform", "cloudbuild-release"},
		"gcloud secrets create":                           {"gcloud", "cloudbuild-release"},
		"gcloud run services replace deploy/doclock.yaml": {"gcloud", "cloudbuild-release"},
		"gcloud run revisions describe":                   {"gcloud", "_SHARE"},
		"released":                                        {"gcloud", "create-http-task"}, // the broken analyzer
		"refused":                                         {"gcloud", "create-http-task"}, // but not by the self-test
		"curl .*prometheus":                               {"gcloud", "create-http-task"},
		"terraform .*detailed-exitcode":                   {"terraform", "nothing"},
	} {
		t.Run(fail, func(t *testing.T) {
			t.Parallel()
			r, ok := rehearse(t, c.way, "theirs", fail)
			if ok || strings.Contains(r.calls(), c.next) {
				t.Errorf("%s goes on after the failure", c.way)
			}
			r.wantRemoved()
		})
	}
}

func TestARehearsalListsWhatItCannotRemove(t *testing.T) {
	t.Parallel()
	for fail, want := range map[string]string{"databases delete": "(default)", "databases list": "unknown"} {
		r, ok := rehearse(t, "terraform", "theirs", "gcloud firestore "+fail)
		if ok || !strings.Contains(r.output, "Left in theirs: firestore databases: "+want+"\nThe clone, with Terraform's state, is "+r.folder) {
			t.Errorf("without %s it succeeds: %v, and prints\n%s", fail, ok, r.output)
		}
	}
}

func TestARehearsalChangesNothingUnlessTheProjectIsEmptyAndNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answer, want, resource string }{
		"a service":     {"theirs", "theirs is not empty: run services: other", "run-services:other"},
		"a second time": {"theirs", "theirs has been rehearsed", "iam-roles:taskguardOperations"},
		"a bucket":      {"theirs", "theirs is not empty: storage buckets: other", "storage-buckets:other"},
		"a failed one":  {"theirs", "theirs has been rehearsed", "iam-roles:taskguardTaskFinder"},
		"another name":  {"yes", "nothing has been changed", ""},
	} {
		var resources []string
		if c.resource != "" {
			resources = []string{c.resource}
		}
		r, ok := rehearse(t, "gcloud", c.answer, "", resources...)
		if ok || !strings.Contains(r.output, c.want) || !slices.Equal(r.left(), resources) {
			t.Errorf("%s: it succeeds: %v, leaves %q, and prints\n%s", name, ok, r.left(), r.output)
		}
		for call := range strings.Lines(r.calls()) {
			if !regexp.MustCompile(`^gcloud (config get-value|auth application-default print-access-token|.* list |iam roles describe )`).MatchString(call) {
				t.Errorf("%s: it calls %s", name, call)
			}
		}
	}
}
