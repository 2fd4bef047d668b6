package deploy

import (
	"bytes"
	"errors"
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

// Two programs in the PATH of release.sh. Their state is the files of $FAKE: a
// service's .traffic and .tagged, as gcloud prints them, and its .template, name,port,image
// of a container a line; a revision's .containers, likewise; unready-HOST, the number of its
// answers 503; self-test and errors, answers to these calls; fail-…, a call that fails; no-operations, without which a call cannot wait for its
// change, which it has made; ignore-SERVICE, a change of traffic that has no effect; and
// shell commands to run once, before-… and after-…
// a call of gcloud, or in-HOST.
const (
	fakeGcloud = `#!/usr/bin/env bash
set -eu
echo "gcloud $*" >>"$FAKE/calls"
[[ $* != "auth print-access-token" ]] || { echo the-access-token; exit; }
[[ "$1 $2 $3 $4" != "artifacts docker tags add" ]] || exit 0
[[ "$1 $2" == "run services" || "$1 $2 $3" == "run revisions describe" ]]
[[ "$*" == *" --project=p --region=r"* ]]
verb=$3 service=$4
once() { [ ! -e "$FAKE/$1" ] || { mv "$FAKE/$1" "$FAKE/$1.done"; . "$FAKE/$1.done"; }; }
once "before-$verb-$service"
[ ! -e "$FAKE/fail-$verb-$service" ] || { echo "ERROR: $verb" >&2; exit 1; }
container=$service images=()
for flag; do
  case $flag in --to-revisions=*) to=${flag#*=} ;; --container=*) container=${flag#*=} ;; --image=*) image=${flag#*=} images+=("$container,$image") ;; --tag=*) tag=${flag#*=} ;; esac
done
case $verb in
update)
  [[ "$*" == *" --no-traffic"* && $image == *@sha256:* ]]
  for set in "${images[@]}"; do sed -i "s|^\(${set%%,*},.*,\).*|\1${set#*,}|" "$FAKE/$service.template"; done
  [ -z "${tag-}" ] || echo "$service-new,,$tag,https://$tag---$service-hash.a.run.app" >"$FAKE/$service.tagged" ;;
update-traffic) [ -e "$FAKE/ignore-$service" ] || tr , '\n' <<<"$to" | sed 's/=\(.*\)/,\1,,/' >"$FAKE/$service.traffic" ;;
describe)
  case $* in
  *"status.traffic[]"*) cat "$FAKE/$service.traffic" "$FAKE/$service.tagged" ;;
  *"spec.template.spec.containers[]"*) cat "$FAKE/$service.template" ;;
  *"spec.containers[]"*) cat "$FAKE/$service.containers" ;;
  *) exit 2 ;;
  esac ;;
*) exit 2 ;;
esac
[[ ! -e "$FAKE/no-operations" || $verb == describe || " $* " == *" --async "* ]] ||
  { echo "ERROR: Permission 'run.operations.get' denied" >&2; exit 1; }
once "after-$verb-$service"
`
	fakeCurl = `#!/usr/bin/env bash
set -eu
echo "curl $*" >>"$FAKE/calls"
call=$* url=${*: -1}
authorization=$(cat)
while [ $# -gt 0 ]; do
  case $1 in --output) output=$2 ;; --data) data=$2 ;; esac
  shift
done
case $url in
*/prometheus/api/v1/query)
  [ ! -e "$FAKE/fail-errors" ] || { echo 'curl: (22) 403' >&2; exit 22; }
  [ "$authorization" = "Authorization: Bearer the-access-token" ] && [ "$(cut -d, -f1,2 "$FAKE/w.traffic" | paste -sd' ')" = "w-new,10 w-1,90" ]
  if [[ $call != *0.05* ]]; then # how many there were
    cat "$FAKE/deliveries" 2>/dev/null || echo '{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"9"]}]}}'
    exit
  fi
  cat "$FAKE/errors" 2>/dev/null || echo '{"status":"success","data":{"resultType":"vector","result":[]}}'
  exit ;;
*:generateIdToken)
  [ ! -e "$FAKE/fail-token" ] || { echo 'curl: (22) 403' >&2; exit 22; }
  [ "$authorization" = "Authorization: Bearer the-access-token" ] && [[ $url == */serviceAccounts/caller@p.iam:* ]]
  printf '{\n  "token": "the-id-token of %s"\n}\n' "$(sed 's/.*"audience":"\([^"]*\)".*/\1/' <<<"$data")"
  exit ;;
esac
host=${url#https://} host=${host%%/*} service=${host#candidate---}
service=${service%-hash.a.run.app} service=${service%-1.r.run.app}
answer() { printf '%s' "$2" >"$output"; printf '%s' "$1"; exit; }
if [ -e "$FAKE/in-$host" ]; then mv "$FAKE/in-$host" "$FAKE/in-$host.done"; . "$FAKE/in-$host.done"; fi
unready=$(cat "$FAKE/unready-$host" 2>/dev/null || echo 0)
if [ "$unready" != 0 ]; then
  echo $((unready - 1)) >"$FAKE/unready-$host"
  answer 503 '{"status":"not_ready"}'
fi
path=${url#https://"$host"}
case $path in
/health/ready) answer 200 '{"status":"ready"}' ;;
/internal/*)
  [ -n "${data+given}" ] || answer 411 'POST requests require a Content-Length'
  if [ "$authorization" != "Authorization: Bearer the-id-token of https://$service-1.r.run.app" ]; then
    [ -e "$FAKE/open-$service" ] || answer 401 '{"reason":"unauthenticated"}'
  fi
  case $path in
  /internal/sweep) answer 200 '{"swept":0}' ;;
  /internal/self-test) answer "$(cut -d' ' -f1 "$FAKE/self-test")" "$(cut -d' ' -f2- "$FAKE/self-test")" ;;
  /internal/tasks/recover) answer "$(cat "$FAKE/recovery" 2>/dev/null || echo 200)" '{}' ;;
  esac
  [[ $data == '{"analysis_id":"smoke-test-b"}' ]] && answer 404 "{\"reason\":\"$(cat "$FAKE/reason" 2>/dev/null || echo not_found)\"}" ;;
esac
exit 2
`
)

// release holds two services on Cloud Run, and a build of them.
type release struct {
	t      *testing.T
	dir    string
	env    []string
	output bytes.Buffer
}

var (
	traffic   = map[string]string{"w": "w-2,10,,\nw-1,80,,\nw-3,10,,\n", "d": "d-1,100,,\n"}
	templates = map[string]string{"w": "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:0\n", "d": "d,8080,registry/d@sha256:0\n"}
)

// newRelease has the worker on three revisions, with an application beside it, and the
// document lock on one revision.
func newRelease(t *testing.T, services ...string) *release {
	t.Helper()
	s := &release{t: t, dir: t.TempDir()}
	for name, text := range map[string]string{"gcloud": fakeGcloud, "curl": fakeCurl} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	for _, name := range []string{"w", "d"} {
		s.write(name+".traffic", traffic[name])
		s.write(name+".template", templates[name])
		s.write(name+".tagged", "")
		s.write(name+".image", "registry/"+name+"@sha256:1")
	}
	s.write("w-1.containers", "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:0\nmetrics,,registry/metrics@sha256:9\n")
	s.write("d-1.containers", ",,registry/d@sha256:0\n")
	s.write("self-test", `200 {"status":"ok"}`)
	s.env = append(os.Environ(), "PATH="+s.dir+":"+os.Getenv("PATH"), "FAKE="+s.dir, "STATE="+s.dir, "PROJECT=p", "PROJECT_NUMBER=1", "REGION=r",
		"CALLER=caller@p.iam", "BUILD=b", "WORKER=w", "DOCLOCK="+strings.Join(services, ""), "TRIES=5", "PAUSE=0", "PATIENCE=300", "SHARE_SECONDS=0")
	return s
}

func (s *release) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *release) read(name string) string {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	return string(data)
}

// bash runs a script and reports whether it succeeded.
func (s *release) bash(script string) bool {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "bash", "-c", script)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, &s.output, &s.output
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return err == nil
}

// call runs release.sh and reports whether it succeeded.
func (s *release) call(verb string) bool {
	s.t.Helper()
	return s.bash(`echo $$ >"$FAKE/pid"; exec bash release.sh ` + verb)
}

// prepare makes the calls before verb, which must succeed.
func (s *release) prepare(verb string) {
	s.t.Helper()
	for _, earlier := range []string{"candidate", "smoke", "shift"} {
		if earlier == verb || verb == "settings" {
			return
		}
		if !s.call(earlier) {
			s.t.Fatalf("%s fails:\n%s", earlier, &s.output)
		}
	}
}

// byHand leaves the variables of the module's output environment, and no images of a build,
// whose folder of state does not exist.
func (s *release) byHand(state string) {
	s.env = append(s.env, "PROJECT=", "PROJECT_NUMBER=", "REGION=", "STATE="+state, "WORKER=", "CALLER=", "TMPDIR="+s.dir,
		"GOOGLE_CLOUD_PROJECT=p", "CLOUDSDK_RUN_REGION=r", "TASK_TARGET_URL=https://"+workerHost, "TASK_CALLER=caller@p.iam")
}

// wantOneSelfTestBeforeTraffic checks that the candidate's analyzer has run, and that the
// share's query is about what is measured.
func (s *release) wantOneSelfTestBeforeTraffic() {
	s.t.Helper()
	before, _, _ := strings.Cut(s.read("calls"), "update-traffic")
	if n := strings.Count(before, "https://"+workerCandidate+"/internal/self-test\n"); n != 1 || strings.Count(s.read("calls"), "/self-test") != 1 {
		s.t.Errorf("%d self-tests of the candidate before it has traffic, want 1 and no other", n)
	}
	for line := range strings.Lines(s.read("calls")) {
		if _, tags, ok := strings.Cut(line, "docker tags add "); ok && !regexp.MustCompile(`^(registry/w@sha256:\d+ registry/w|registry/d@sha256:\d+ registry/d|registry/app@sha256:\d+ registry/app):serving-w --quiet\n$`).MatchString(tags) {
			s.t.Errorf("the tag of what serves: %s", tags)
		}
		if _, query, ok := strings.Cut(line, "--data-urlencode query="); ok {
			checkQuery(s.t, "the share", metrics(readMonitoring(s.t)), strings.ReplaceAll(query, "user_w_", "user_taskguard_"))
			if judges := strings.Contains(query, "0.05"); !judges && (strings.Count(query, `revision_name="w-new"`) != 2 || strings.Contains(query, "outcome=")) {
				s.t.Errorf("the query does not count the candidate's deliveries: %s", query)
			} else if judges && (strings.Count(query, `revision_name="w-new"`) != 4 || strings.Count(query, `revision_name!="w-new"`) != 4 || strings.Count(query, "5xx") != 4) {
				s.t.Errorf("the query does not compare the candidate with the others: %s", query)
			}
		}
	}
}

// runPrinted runs the commands that it printed, each after a line that ends with one of
// the ends.
func (s *release) runPrinted(ends ...string) {
	s.t.Helper()
	lines := strings.Split(s.output.String(), "\n")
	for i, line := range lines {
		if i == 0 || !slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(lines[i-1], end) }) {
			continue
		}
		if !strings.HasPrefix(line, "  gcloud run services update") || !s.bash(line) {
			s.t.Errorf("it printed %q", line)
		}
	}
}

// changed returns the calls that changed a service.
func (s *release) changed() (calls []string) {
	for line := range strings.Lines(s.read("calls")) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "gcloud run services update") {
			line = strings.TrimPrefix(strings.Replace(line, "--project=p --region=r --quiet ", "", 1), "gcloud run services ")
			calls = append(calls, line)
		}
	}
	return calls
}

// wantChanges checks all changes to the services, and that no token is shown.
func (s *release) wantChanges(changes ...string) {
	s.t.Helper()
	if got := s.changed(); !slices.Equal(got, changes) {
		s.t.Errorf("it did\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(changes, "\n"))
	}
	for name, text := range map[string]string{"its output": s.output.String(), "an argument": s.read("calls")} {
		if strings.Contains(text, "the-id-token") || strings.Contains(text, "the-access-token") {
			s.t.Errorf("a token is in %s:\n%s", name, text)
		}
	}
}

// wantState checks that the services are as before, except for the files of other.
func (s *release) wantState(other map[string]string) {
	s.t.Helper()
	for _, name := range []string{"w", "d"} {
		for file, want := range map[string]string{name + ".traffic": traffic[name], name + ".template": templates[name]} {
			if text, ok := other[file]; ok {
				want = text
			}
			if got := s.read(file); sortedLines(got) != sortedLines(want) {
				s.t.Errorf("%s is %q, want %q", file, got, want)
			}
		}
	}
	if s.t.Failed() {
		s.t.Logf("output:\n%s", &s.output)
	}
}

func sortedLines(text string) string {
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}
