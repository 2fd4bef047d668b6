package docs

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/api/cloudbuild/v1"
)

// readBuild returns ../cloudbuild.yaml.
func readBuild(t *testing.T) (b cloudbuild.Build) {
	t.Helper()
	strictly(t, "../cloudbuild.yaml", &b)
	return b
}

func TestEveryImageAndToolOfTheBuildHasAVersion(t *testing.T) {
	image, tool := regexp.MustCompile(`:\d+\.\d+\.\d+[-\w]*$`), regexp.MustCompile(`^[\w/]+\.[\w./-]+@`)
	for _, s := range readBuild(t).Steps {
		if !image.MatchString(s.Name) {
			t.Errorf("%s: the image %s has no version", s.Id, s.Name)
		}
		for _, word := range append(strings.Fields(s.Script), s.Args...) {
			if tool.MatchString(word) && !regexp.MustCompile(`@v\d+\.\d+\.\d+$`).MatchString(word) {
				t.Errorf("%s: %s has no version", s.Id, word)
			}
		}
	}
}

// stepsBefore returns the steps that have ended before each begins.
func stepsBefore(t *testing.T, steps []*cloudbuild.BuildStep) map[string]map[string]bool {
	t.Helper()
	all := map[string]map[string]bool{}
	for _, s := range steps {
		waits := s.WaitFor
		if len(waits) == 0 { // it waits for all steps before it
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

func TestNothingGetsTrafficBeforeItsTestsAndItsSmokeTest(t *testing.T) {
	b := readBuild(t)
	before := stepsBefore(t, b.Steps)
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
		t.Errorf("the last step is %s: its failure after the shift would not roll back", last)
	}
	for _, s := range b.Steps {
		args := strings.Join(s.Args, " ")
		if strings.Contains(args, "release.sh") && args != "deploy/release.sh "+s.Id {
			t.Errorf("%s runs %s", s.Id, args)
		}
		if s.Id == "race" && (!slices.Contains(s.Env, "REQUIRE_GOOGLE_EMULATOR=1") || !strings.Contains(s.Script, "go test -race -shuffle=on -count=1 ./...\n")) {
			t.Errorf("race runs %s with %v", s.Script, s.Env)
		}
	}
}

// Cloud Build refuses a substitution that is not used.
func TestEverySubstitutionIsDeclaredAndUsed(t *testing.T) {
	b := readBuild(t)
	declared := b.Substitutions
	b.Substitutions = nil
	for _, s := range b.Steps {
		s.Script = "" // where $ belongs to the shell
	}
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{"PROJECT_ID": true, "PROJECT_NUMBER": true, "BUILD_ID": true}
	for _, m := range regexp.MustCompile(`\$\{?(\w+)\}?`).FindAllSubmatch(text, -1) {
		name := string(m[1])
		if _, ok := declared[name]; !ok && !used[name] {
			t.Errorf("$%s is not declared", name)
		}
		used[name] = true
	}
	for name := range declared {
		if !used[name] {
			t.Errorf("%s is not used", name)
		}
	}
}

func TestTheScriptsOfTheBuildHaveTheVariablesThatTheyRequire(t *testing.T) {
	b := readBuild(t)
	given := strings.Join(b.Options.Env, "\n") + "\n"
	scripts := map[string]string{"release.sh": string(readDeploy(t, "release.sh"))}
	for _, s := range b.Steps {
		if s.Script != "" {
			scripts[s.Id] = s.Script
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
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(script, "\nset -euo pipefail\n") {
			t.Errorf("%s: %v, or it continues after an error\n%s", name, err, out)
		}
	}
}

func TestTheImagesHoldOurProgramsOnAFixedBase(t *testing.T) {
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
	var built []string
	for _, b := range ko.Builds {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-C", "../"+b.Dir, "-f", "{{.Name}} {{.ImportPath}}", b.Main).Output()
		if err != nil || string(out) != "main taskguard/cmd/"+b.ID+"\n" {
			t.Errorf("%s is %s, %v", b.Main, bytes.TrimSpace(out), err)
		}
		if !slices.Contains(b.Env, "CGO_ENABLED=0") {
			t.Errorf("%s is built with %v: the base has no C library", b.ID, b.Env)
		}
		built = append(built, b.ID)
	}
	for _, s := range readBuild(t).Steps {
		for _, m := range regexp.MustCompile(`(?m)^push (\w+) `).FindAllStringSubmatch(s.Script, -1) {
			if !slices.Contains(built, m[1]) {
				t.Errorf("%s is pushed and not in .ko.yaml", m[1])
			}
		}
	}
}
