package doctor_test

import (
	"encoding/json"
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskguard/cmd/internal/doclockservice"
	"taskguard/cmd/internal/workerservice"
)

// reads returns the variables that a service looks up in an environment, without those that
// OpenTelemetry's SDK reads, and the error of the service.
func reads(service string, env map[string]string) (names map[string]bool, err error) {
	names = map[string]bool{}
	lookup := func(name string) (string, bool) {
		names[name] = !strings.HasPrefix(name, "OTEL_")
		v, ok := env[name]
		return v, ok
	}
	if service == "worker" {
		_, err = workerservice.ParseConfig(lookup)
	} else {
		_, err = doclockservice.ParseConfig(lookup)
	}
	maps.DeleteFunc(names, func(_ string, ours bool) bool { return !ours })
	return names, err
}

// moduleEnvironments returns the services' variables in a case of the module's settings,
// whose file has of each case what differs from the smallest.
func moduleEnvironments(t *testing.T, name string) (worker, doclock map[string]string) {
	t.Helper()
	var all map[string]struct {
		Worker  map[string]string `json:"worker_env"`
		Doclock map[string]string `json:"doclock_env"`
	}
	data := []byte(read(t, deploy+"terraform/testdata/settings.json"))
	check(t, json.Unmarshal(data, &all))

	worker, doclock = maps.Clone(all["smallest"].Worker), all[name].Doclock
	maps.Copy(worker, all[name].Worker)
	if doclock == nil {
		doclock = all["smallest"].Doclock
	}
	return worker, doclock
}

// What the doctor says about the files, TestCheck shows.
func TestShipped_Module(t *testing.T) {
	for _, name := range []string{"everything", "smallest", "application", "theirs", "platform"} {
		worker, doclock := moduleEnvironments(t, name)
		doclock["SESSION_SECRET"] = strings.Repeat("secret", 8)
		for service, env := range map[string]map[string]string{"worker": worker, "doclock": doclock} {
			read, err := reads(service, env)
			if err != nil {
				t.Errorf("%s: the %s would not start: %v", name, service, err)
			}
			for variable := range env {
				if !read[variable] && !strings.HasPrefix(variable, "OTEL_") {
					t.Errorf("%s sets %s, which the %s does not read", name, variable, service)
				}
			}
		}
	}
}

var variableOfRow = regexp.MustCompile(`(?m)^\| [^|]*\|`)

// TestShipped_Reference compares both ways.
func TestShipped_Reference(t *testing.T) {
	for _, name := range []string{"worker", "doclock"} {
		code := map[string]bool{} // one variable decides which others are read
		for _, env := range []map[string]string{
			nil, {"TASK_AUTH": "oidc", "SESSION_AUTH": "oidc"}, {"TASK_AUTH": "iam", "TASK_QUEUE": queueName},
		} {
			read, _ := reads(name, env)
			maps.Copy(code, read)
		}

		_, section, _ := strings.Cut(read(t, "../../../docs/reference.md"), "\n### `"+name+"`\n")
		section, _, _ = strings.Cut(section, "\n#")
		page := map[string]bool{}
		for _, cell := range variableOfRow.FindAllString(section, -1) {
			for _, variable := range quotedName.FindAllStringSubmatch(cell, -1) {
				if !strings.HasPrefix(variable[1], "OTEL_") {
					page[variable[1]] = true
				}
			}
		}
		if diff := cmp.Diff(page, code); diff != "" || len(code) < 3 {
			t.Errorf("%s: -reference.md +read:\n%s", name, diff)
		}
	}
}

var quotedName = regexp.MustCompile("`([^`]+)`")
