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
