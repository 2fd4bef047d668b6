package docs

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/api/cloudbuild/v1"
)

// readBuild is ../cloudbuild.yaml, refusing what Cloud Build's API does not know.
func readBuild(t *testing.T) (b cloudbuild.Build) {
	t.Helper()
	strictly(t, "../cloudbuild.yaml", &b)
	return b
}

func TestTheBuildRunsAsItsOwnAccountAndEnds(t *testing.T) {
	b := readBuild(t)
	if b.Options == nil || b.Options.Logging != "CLOUD_LOGGING_ONLY" {
		t.Errorf("options are %+v: an account of one's own needs CLOUD_LOGGING_ONLY", b.Options)
	}
	if !strings.HasPrefix(b.ServiceAccount, "projects/$PROJECT_ID/serviceAccounts/${_ACCOUNT}@") || b.Substitutions["_ACCOUNT"] != "taskguard-build" {
		t.Errorf("it runs as %s, %s", b.ServiceAccount, b.Substitutions["_ACCOUNT"])
	}
	if b.AvailableSecrets != nil {
		t.Errorf("it has secrets: %+v", b.AvailableSecrets)
	}
	if d, err := time.ParseDuration(b.Timeout); err != nil || d < 30*time.Minute || d > 2*time.Hour {
		t.Errorf("its timeout is %s, %v", b.Timeout, err)
	}
}

func TestEveryImageAndToolOfTheBuildIsOfOneVersion(t *testing.T) {
	version := regexp.MustCompile(`:\d+\.\d+\.\d+[-\w]*$`)
	for _, s := range readBuild(t).Steps {
		if !version.MatchString(s.Name) {
			t.Errorf("%s: the image %s is of no version", s.Id, s.Name)
		}
		for _, words := range [][]string{s.Args, strings.Fields(s.Script)} {
			for _, w := range words {
				tool, at, found := strings.Cut(w, "@")
				if strings.Contains(tool, ".") && found && !regexp.MustCompile(`^v\d+\.\d+\.\d+$`).MatchString(at) {
					t.Errorf("%s: %s is of no version", s.Id, w)
				}
			}
		}
	}
}

// needs are the steps that must have ended before each begins.
func needs(t *testing.T, steps []*cloudbuild.BuildStep) map[string]map[string]bool {
	t.Helper()
	all := map[string]map[string]bool{}
	for _, s := range steps {
		if s.Id == "" || all[s.Id] != nil {
			t.Fatalf("a step's id is %q: none, or a second time", s.Id)
		}
		waits := s.WaitFor
		if len(waits) == 0 {
			for earlier := range all {
				waits = append(waits, earlier)
			}
		}
		before := map[string]bool{}
		for _, id := range waits {
			if all[id] == nil {
				t.Fatalf("%s waits for %s, which is no step before it", s.Id, id)
			}
			before[id] = true
			for further := range all[id] {
				before[further] = true
			}
		}
		all[s.Id] = before
	}
	return all
}

func TestNothingGetsTrafficBeforeItIsTestedAndSmoked(t *testing.T) {
	b := readBuild(t)
	before := needs(t, b.Steps)
	for id, wants := range map[string][]string{
		"images": {"vet", "vulnerabilities", "race"}, "candidate": {"images"}, "smoke": {"candidate"}, "shift": {"smoke", "race", "vet", "vulnerabilities"},
	} {
		for _, want := range wants {
			if !before[id][want] {
				t.Errorf("%s does not wait for %s", id, want)
			}
		}
	}
	if last := b.Steps[len(b.Steps)-1].Id; last != "shift" {
		t.Errorf("the last step is %s: what fails after the shift rolls nothing back", last)
	}
	for _, s := range b.Steps {
		calls := strings.Join(s.Args, " ")
		if strings.Contains(calls, "release.sh") && calls != "deploy/release.sh "+s.Id {
			t.Errorf("%s does %s", s.Id, calls)
		}
		if strings.Contains(calls+s.Script, "gcloud ") {
			t.Errorf("%s calls gcloud: that is release.sh's", s.Id)
		}
	}
}

func TestTheBuildTestsWithWhatCanHide(t *testing.T) {
	steps := map[string]*cloudbuild.BuildStep{}
	for _, s := range readBuild(t).Steps {
		steps[s.Id] = s
	}
	if race := steps["race"]; !slices.Contains(race.Env, "REQUIRE_GOOGLE_EMULATOR=1") || !strings.Contains(race.Script, "go test -race -shuffle=on -count=1 ./...\n") {
		t.Errorf("race does %s with %v", race.Script, race.Env)
	}
	if got := strings.Join(steps["vet"].Args, " "); steps["vet"].Entrypoint != "go" || got != "vet ./..." {
		t.Errorf("vet does %s %s", steps["vet"].Entrypoint, got)
	}
	if got := strings.Join(steps["vulnerabilities"].Args, " "); !strings.HasPrefix(got, "run golang.org/x/vuln/cmd/govulncheck@v") {
		t.Errorf("vulnerabilities does %s", got)
	}
}

// builtIn are the substitutions of Cloud Build's own that every build has.
var builtIn = []string{"PROJECT_ID", "PROJECT_NUMBER", "BUILD_ID"}

func TestEverySubstitutionIsDeclaredAndUsed(t *testing.T) {
	b := readBuild(t)
	declared := b.Substitutions
	b.Substitutions = nil
	for _, s := range b.Steps {
		s.Script = "" // where $ is the shell's
	}
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, m := range regexp.MustCompile(`\$\{?(\w+)\}?`).FindAllSubmatch(text, -1) {
		name := string(m[1])
		used[name] = true
		if _, ok := declared[name]; !ok && !slices.Contains(builtIn, name) {
			t.Errorf("$%s is not declared", name)
		}
	}
	for name := range declared {
		if !used[name] {
			t.Errorf("%s is not used: Cloud Build refuses that", name)
		}
	}
}

func TestTheStepsHaveTheVariablesThatTheyRead(t *testing.T) {
	b := readBuild(t)
	given := map[string]bool{}
	for _, v := range b.Options.Env {
		name, _, _ := strings.Cut(v, "=")
		given[name] = true
	}
	read := string(readDeploy(t, "release.sh"))
	for _, s := range b.Steps {
		read += s.Script
	}
	required := regexp.MustCompile(`\$\{([A-Z_]+):\?\}`).FindAllStringSubmatch(read, -1)
	if len(required) < 5 {
		t.Fatalf("release.sh requires %v", required)
	}
	for _, m := range append(required, []string{"", "DOCLOCK"}, []string{"", "IMAGES"}) {
		if !given[m[1]] {
			t.Errorf("%s is not given", m[1])
		}
	}
}

func TestEveryScriptOfTheBuildIsOneThatBashCanRead(t *testing.T) {
	scripts := map[string]string{"release.sh": string(readDeploy(t, "release.sh"))}
	for _, s := range readBuild(t).Steps {
		if s.Script != "" {
			scripts[s.Id] = s.Script
		}
	}
	for name, script := range scripts {
		cmd := exec.CommandContext(t.Context(), "bash", "-n")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if !strings.HasPrefix(script, "#!/usr/bin/env bash\n") || !strings.Contains(script, "\nset -euo pipefail\n") {
			t.Errorf("%s goes on after an error", name)
		}
		if n := strings.Count(script, "\n"); name != "release.sh" && n > 15 {
			t.Errorf("%s has %d lines: too long to be in YAML", name, n)
		}
	}
}

// The rest of a service is Terraform's, or service.yaml's.
func TestAReleaseChangesNothingButTheImageTheTagAndTheTraffic(t *testing.T) {
	allowed := []string{"--project", "--region", "--quiet", "--flatten", "--format", "--image", "--no-traffic", "--tag", "--to-revisions"}
	script := string(readDeploy(t, "release.sh"))
	commands := regexp.MustCompile(`(?m)(?:gcloud|\brun) (?:[^|\n]|\\\n)*`).FindAllString(script, -1)
	flags := 0
	for _, c := range commands {
		for _, f := range regexp.MustCompile(`--[a-z-]+`).FindAllString(c, -1) {
			flags++
			if !slices.Contains(allowed, f) {
				t.Errorf("%s in %s", f, c)
			}
		}
	}
	if flags < 10 {
		t.Errorf("%d flags of gcloud were found", flags)
	}
}

// ko is .ko.yaml, as far as ko's documentation names its fields.
type ko struct {
	DefaultBaseImage   string            `json:"defaultBaseImage"`
	BaseImageOverrides map[string]string `json:"baseImageOverrides"`
	DefaultPlatforms   []string          `json:"defaultPlatforms"`
	Builds             []struct {
		ID      string   `json:"id"`
		Dir     string   `json:"dir"`
		Main    string   `json:"main"`
		Env     []string `json:"env"`
		Flags   []string `json:"flags"`
		Ldflags []string `json:"ldflags"`
	} `json:"builds"`
}

func TestTheImagesAreOfOurProgramsOnABaseThatCannotMove(t *testing.T) {
	var k ko
	strictly(t, "../.ko.yaml", &k)
	if !regexp.MustCompile(`:nonroot@sha256:[0-9a-f]{64}$`).MatchString(k.DefaultBaseImage) {
		t.Errorf("the base is %s", k.DefaultBaseImage)
	}
	var built []string
	for _, b := range k.Builds {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-C", "../"+b.Dir, "-f", "{{.Name}} {{.ImportPath}}", b.Main).Output()
		if err != nil || string(out) != "main taskguard/cmd/"+b.ID+"\n" {
			t.Errorf("%s is %s, %v", b.Main, bytes.TrimSpace(out), err)
		}
		if !slices.Contains(b.Env, "CGO_ENABLED=0") || !slices.Contains(b.Flags, "-trimpath") {
			t.Errorf("%s is built with %v %v: the base has no C library", b.ID, b.Env, b.Flags)
		}
		built = append(built, b.ID)
	}
	if want := []string{"worker", "doclock"}; !slices.Equal(built, want) {
		t.Errorf("built are %v, want %v", built, want)
	}
	for _, s := range readBuild(t).Steps {
		for _, m := range regexp.MustCompile(`(?m)^push (\w+) `).FindAllStringSubmatch(s.Script, -1) {
			built = slices.DeleteFunc(built, func(id string) bool { return id == m[1] })
		}
	}
	if len(built) > 0 {
		t.Errorf("%v are not pushed", built)
	}
}
