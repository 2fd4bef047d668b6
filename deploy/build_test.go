package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/api/cloudbuild/v1"

	"taskguard/internal/testing/must"
)

// builds holds the build that deploys and the one that tests, by account.
var builds = map[string]string{"taskguard-build": "cloudbuild-release.yaml", "taskguard-test": "../cloudbuild.yaml"}

// readBuild returns the build of an account.
func readBuild(t *testing.T, account string) (b cloudbuild.Build) {
	t.Helper()
	strictly(t, builds[account], &b)
	return b
}

// step returns a step of the build of an account.
func step(t *testing.T, account, id string) *cloudbuild.BuildStep {
	t.Helper()
	steps := readBuild(t, account).Steps
	i := slices.IndexFunc(steps, func(s *cloudbuild.BuildStep) bool { return s.Id == id })
	if i < 0 {
		t.Fatalf("%s has no step %s", builds[account], id)
	}
	return steps[i]
}

func TestBuilds_Versions(t *testing.T) {
	image := regexp.MustCompile(`:\d+\.\d+\.\d+[-\w]*@sha256:[0-9a-f]{64}$|/google-cloud-cli:\d+\.\d+\.\d+-slim$`)
	tool := regexp.MustCompile(`^[\w/]+\.[\w./-]+@`)
	version := regexp.MustCompile(`@v\d+\.\d+\.\d+$`)
	tools := 0
	for account := range builds {
		for _, s := range readBuild(t, account).Steps {
			if !image.MatchString(s.Name) {
				t.Errorf("%s: the image %s has no version and digest", s.Id, s.Name)
			}
			for _, word := range append(strings.Fields(s.Script), s.Args...) {
				if !tool.MatchString(word) {
					continue
				}
				if tools++; !version.MatchString(word) {
					t.Errorf("%s: %s has no version", s.Id, word)
				}
			}
		}
	}
	if tools == 0 {
		t.Error("no tool was found in the steps")
	}
}

// Each step waits for all before it: the machine has no memory for several, and nothing gets traffic before its smoke
// test. A build gives its account to all of its steps, so the one that deploys runs no tests.
func TestBuilds_Steps(t *testing.T) {
	for account, want := range map[string]string{
		"taskguard-test": "modules vet vulnerabilities race emulator",
		// Nothing after the shift: its failure would not roll back.
		"taskguard-build": "images binaries application candidate smoke shift",
	} {
		b := readBuild(t, account)
		var steps []string
		volumes := map[string]int{}
		for _, s := range b.Steps {
			steps = append(steps, s.Id)
			if len(s.WaitFor) > 0 || s.AllowFailure {
				t.Errorf("%s waits for %q, and may fail: %v", s.Id, s.WaitFor, s.AllowFailure)
			}
			for _, v := range s.Volumes {
				volumes[v.Name]++
			}
		}
		if got := strings.Join(steps, " "); got != want {
			t.Errorf("%s has the steps %s, want %s", builds[account], got, want)
		}
		if b.Substitutions["_ACCOUNT"] != account || !strings.Contains(b.ServiceAccount, "/${_ACCOUNT}@") {
			t.Errorf("%s runs as %s of %s", builds[account], b.ServiceAccount, b.Substitutions["_ACCOUNT"])
		}
		for name, steps := range volumes {
			if steps == 1 {
				t.Errorf("%s: Cloud Build refuses the volume %s of one step alone", builds[account], name)
			}
		}
	}
	for id, want := range map[string]string{"images": `[ -z "$APP$SETTINGS" ]`, "application": `[ -n "$APP" ]`} {
		if !strings.Contains(step(t, "taskguard-build", id).Script, want+" || exit 0\n") {
			t.Errorf("%s: a release of the other kind builds this too", id)
		}
	}
}

// Cloud Build refuses a substitution that is not used.
func TestBuilds_Substitutions(t *testing.T) {
	for account := range builds {
		b := readBuild(t, account)
		declared := b.Substitutions
		b.Substitutions = nil
		for _, s := range b.Steps {
			s.Script = "" // where $ belongs to the shell
		}
		text := must.Get(json.Marshal(b))(t)
		used := map[string]bool{ // they are Cloud Build's own
			"PROJECT_ID": true, "PROJECT_NUMBER": true, "BUILD_ID": true, "COMMIT_SHA": true, "TAG_NAME": true,
		}
		for _, m := range regexp.MustCompile(`\$\{?(\w+)\}?`).FindAllSubmatch(text, -1) {
			name := string(m[1])
			if _, ok := declared[name]; !ok && !used[name] {
				t.Errorf("%s: $%s is not declared", account, name)
			}
			used[name] = true
		}
		for name := range declared {
			if !used[name] {
				t.Errorf("%s: %s is not used", account, name)
			}
		}
	}
}

func TestBuilds_Scripts(t *testing.T) {
	given := strings.Join(readBuild(t, "taskguard-build").Options.Env, "\n") + "\n"
	scripts := map[string]string{"release.sh": read(t, "release.sh")}
	for account := range builds {
		for _, s := range readBuild(t, account).Steps {
			if s.Script != "" {
				scripts[s.Id] = s.Script
			}
		}
	}
	for name, script := range scripts {
		for _, m := range regexp.MustCompile(`\$\{([A-Z_]+):\?\}`).FindAllStringSubmatch(script, -1) {
			if !strings.Contains(given, m[1]+"=") {
				t.Errorf("%s requires %s", name, m[1])
			}
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-n")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if !strings.Contains(script, "\nset -euo pipefail\n") {
			t.Errorf("%s continues after an error", name)
		}
	}
}

// The linker ignores the name of a variable that does not exist.
func TestBuilds_Commit(t *testing.T) {
	m := regexp.MustCompile(`stamp=(\S+)=\$COMMIT\n`).FindStringSubmatch(step(t, "taskguard-build", "images").Script)
	if m == nil {
		t.Fatal("no stamp")
	}
	flag := "-ldflags=" + m[1] + "=abc123"
	cmd := exec.CommandContext(t.Context(), "go", "run", flag, "./cmd/taskguard", "version", "--json")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), `"commit":"abc123"`) {
		t.Errorf("%v: %s", err, out)
	}
}

// runScript runs the script of a step of the tests in a folder with these files and
// programs, where /usr and /etc are the folder's, and returns its output and exit code.
func runScript(t *testing.T, id string, files, programs map[string]string) (output string, code int) {
	t.Helper()
	folder := t.TempDir()
	for name, text := range programs {
		files["bin/"+name] = "#!/bin/sh\n" + text
	}
	for name, text := range files {
		path := filepath.Join(folder, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, []byte(text), 0o755))
	}
	script := step(t, "taskguard-test", id).Script
	for _, root := range []string{"/usr/share/keyrings/", "/etc/apt/sources.list.d/"} {
		script = strings.ReplaceAll(script, root, folder+"/")
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir, cmd.Env = folder, []string{"PATH=" + folder + "/bin:" + os.Getenv("PATH"), "FOLDER=" + folder}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestBuilds_Vulnerabilities(t *testing.T) {
	const found = "Vulnerability #1: GO-2025-0001\n    Of this.\n\nVulnerability #2: GO-2025-0002\n"
	const both = "# why\nGO-2025-0002 not reached\nGO-2025-0001 fixed soon\n"
	for name, c := range map[string]struct {
		accepted, report string
		exit, code       int
	}{
		"both are accepted":           {both, found, 3, 0},
		"one has no reason":           {"GO-2025-0001 fixed soon\nGO-2025-0002\n", found, 3, 3},
		"a longer id is accepted":     {"GO-2025-00011 other\nGO-2025-00022 other\n", found, 3, 3},
		"the report is not readable":  {both, "Something else\n", 3, 1},
		"govulncheck itself has died": {both, found, 1, 1},
	} {
		accepted := map[string]string{"deploy/vulnerabilities.txt": c.accepted}
		out, code := runScript(t, "vulnerabilities", accepted, map[string]string{
			"go": "", "govulncheck": fmt.Sprintf("cat <<'END'\n%sEND\nexit %d\n", c.report, c.exit),
		})
		if code != c.code || !strings.Contains(out, c.report) {
			t.Errorf("%s: exit code %d, want %d:\n%s", name, code, c.code, out)
		}
	}
	for line := range strings.Lines(read(t, "vulnerabilities.txt")) {
		if !strings.HasPrefix(line, "#") && !regexp.MustCompile(`^GO-\d{4}-\d{4,} \S.*\n$`).MatchString(line) {
			t.Errorf("vulnerabilities.txt accepts %q without an id and a reason", line)
		}
	}
}

// Without Google's package, or with a key that is not known, the release goes on, and
// the log has a line.
func TestBuilds_Emulator(t *testing.T) {
	const key = "35BAA0B33E9EB396F59CA838C0BA5CE6DC6315A3"
	const skipped = "SKIPPED"
	for name, c := range map[string]struct {
		key, tests string
		want, not  string
		code       int
	}{
		"installed":   {key, "", "go test -race -shuffle=on -count=1 taskguard/repo taskguard/worker\n", skipped, 0},
		"tests fail":  {key, "exit 1", "go test", skipped, 1},
		"another key": {"0123456789ABCDEF0123456789ABCDEF01234567", "", skipped, "apt-get install", 0},
	} {
		files := map[string]string{".ci/google-emulator": read(t, "../.ci/google-emulator")}
		out, code := runScript(t, "emulator", files, map[string]string{
			"java":    "echo is now running; exec sleep 60",
			"curl":    "echo " + c.key,
			"gpg":     `if [ "$1" = --export ]; then grep -xF "$2" "$FOLDER/ring" || true; else cat >"$FOLDER/ring"; fi`,
			"apt-get": `echo "apt-get $*"; grep -q "signed-by=$FOLDER/google.gpg" "$FOLDER/google.list"`,
			"go": `if [ "$1" = list ]; then
				echo 'taskguard/repo [taskguard/emulator/emulatortest] []'
				echo 'taskguard/lease [time] []'
				echo 'taskguard/worker [] [taskguard/emulator/emulatortest]'
				exit
			fi
			[ "$FIRESTORE_EMULATOR_HOST" ] || exit 9; echo "go $*"; ` + c.tests,
		})
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d", name, code, c.code)
		}
		if !strings.Contains(out, c.want) || strings.Contains(out, c.not) {
			t.Errorf("%s: want %q without %q:\n%s", name, c.want, c.not, out)
		}
	}
}

func TestBuilds_Images(t *testing.T) {
	var ko struct {
		DefaultBaseImage   string            `json:"defaultBaseImage"`
		BaseImageOverrides map[string]string `json:"baseImageOverrides"`
		DefaultPlatforms   []string          `json:"defaultPlatforms"`
		Builds             []struct {
			ID, Dir, Main       string
			Env, Flags, Ldflags []string
		} `json:"builds"`
	}
	strictly(t, "../.ko.yaml", &ko)
	if !regexp.MustCompile(`:nonroot@sha256:[0-9a-f]{64}$`).MatchString(ko.DefaultBaseImage) {
		t.Errorf("the base is %s", ko.DefaultBaseImage)
	}
	for _, b := range ko.Builds {
		if main := filepath.Join(b.Dir, b.Main, "main.go"); main != "cmd/"+b.ID+"/main.go" {
			t.Errorf("%s is %s", b.ID, main)
		}
		must.Get(os.Stat("../cmd/" + b.ID + "/main.go"))(t)
		if !slices.Contains(b.Env, "CGO_ENABLED=0") {
			t.Errorf("%s is built with %v: the base has no C library", b.ID, b.Env)
		}
	}
}
