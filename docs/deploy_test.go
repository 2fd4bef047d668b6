package docs

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	run "google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"

	doclock "taskguard/cmd/doclock/service"
	"taskguard/cmd/taskguard/doctor"
	worker "taskguard/cmd/worker/service"
	taskworker "taskguard/worker"
)

func readDeploy(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("../deploy/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// files are what `taskguard doctor` makes of the shipped files, read strictly.
func files(t *testing.T) doctor.Facts {
	t.Helper()
	f, err := doctor.Read(t.Context(), doctor.Options{
		Service: "../deploy/service.yaml", Doclock: "../deploy/doclock.yaml", Queue: "../deploy/queue.yaml",
		Indexes: "../deploy/firestore.indexes.json", Lookup: func(string) (string, bool) { return "", false },
	})
	if err != nil {
		t.Fatal(err)
	}
	if !f.Worker.Settings.Known() || !f.Doclock.Settings.Known() || !f.Queue.Known() || !f.Indexes.Known() {
		t.Fatalf("not all is readable: %+v", f)
	}
	return f
}

func TestTheServicesFilesHoldNoFieldThatCloudRunLacks(t *testing.T) {
	for _, name := range []string{"service.yaml", "doclock.yaml"} {
		var s run.Service
		if err := yaml.UnmarshalStrict(readDeploy(t, name), &s); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c := s.Spec.Template.Spec.Containers[0]
		if c.StartupProbe.HttpGet.Path != "/health/ready" || c.LivenessProbe.HttpGet.Path != "/health/live" {
			t.Errorf("%s: the probes ask for %s and %s", name, c.StartupProbe.HttpGet.Path, c.LivenessProbe.HttpGet.Path)
		}
		if c.StartupProbe.TimeoutSeconds > c.StartupProbe.PeriodSeconds || c.LivenessProbe.TimeoutSeconds > c.LivenessProbe.PeriodSeconds {
			t.Errorf("%s: Cloud Run refuses a probe whose timeout is above its period", name)
		}
	}
}

// unset are variables that the shipped files leave out, and why.
func unset(name string) string {
	switch {
	case name == "PORT", strings.HasPrefix(name, "K_"):
		return "Cloud Run sets it"
	case strings.HasSuffix(name, "_EMULATOR_HOST"), name == "TASK_JWKS_URL":
		return "for tests"
	case name == "TASK_AUDIENCE", name == "TASK_SERVICE_ACCOUNTS", name == "SESSION_AUDIENCE":
		return "of another mode than the file's"
	case strings.HasPrefix(name, "OTEL_"):
		return "off unless a collector is there"
	}
	return ""
}

func TestTheServicesFilesSetWhatTheConfigurationReadsAndNothingElse(t *testing.T) {
	f := files(t)
	for name, service := range map[string]struct {
		env   doctor.Environment
		parse func(func(string) (string, bool)) error
	}{
		"service.yaml": {f.Worker.Environment.Value, func(l func(string) (string, bool)) error { _, err := worker.ParseConfig(l); return err }},
		"doclock.yaml": {f.Doclock.Environment.Value, func(l func(string) (string, bool)) error { _, err := doclock.ParseConfig(l); return err }},
	} {
		read := map[string]bool{}
		err := service.parse(func(name string) (string, bool) {
			read[name] = true
			v, ok := service.env[name]
			if v.Secret {
				return strings.Repeat("s", 44), true
			}
			return v.Value, ok
		})
		if err != nil {
			t.Errorf("%s: the service would not start: %v", name, err)
		}
		for variable := range service.env {
			if !read[variable] {
				t.Errorf("%s sets %s, which nothing reads", name, variable)
			}
		}
		for variable := range read {
			if _, set := service.env[variable]; !set && unset(variable) == "" {
				t.Errorf("%s lacks %s", name, variable)
			}
		}
	}
}

// Run, request and dispatch end in this order, and each dispatch has a place.
func TestTheFiguresOfServiceAndQueueFitTogether(t *testing.T) {
	f := files(t)
	c, err := worker.ParseConfig(func(name string) (string, bool) { v, ok := f.Worker.Environment.Value[name]; return v.Value, ok })
	if err != nil {
		t.Fatal(err)
	}
	request, dispatch := f.Worker.Settings.Value.Timeout, taskworker.DispatchDeadline(c.RunTimeout)
	if c.RunTimeout >= request || request > dispatch || dispatch > 30*time.Minute {
		t.Errorf("run %v < request %v ≤ dispatch %v ≤ 30 min does not hold", c.RunTimeout, request, dispatch)
	}
	s, q := f.Worker.Settings.Value, f.Queue.Value
	if places := s.MaxInstances * s.Concurrency; q.Concurrent > places || q.Concurrent < places/2 {
		t.Errorf("%d dispatches at once for %d places", q.Concurrent, places)
	}
	if found, _ := doctor.Check(f); len(found) > 0 {
		t.Errorf("doctor: %+v", found)
	}
}

// A task is given up by the worker's answer alone: a queue that drops one after
// so many attempts loses an analysis that was merely locked or unlucky.
func TestTheQueueNeverGivesUpATaskAndWaitsBetweenDeliveries(t *testing.T) {
	q := files(t).Queue.Value
	if q.MaxAttempts != -1 || q.MaxDuration != 0 {
		t.Errorf("%d attempts within %v, want -1 and 0: without end", q.MaxAttempts, q.MaxDuration)
	}
	if q.MinBackoff != 30*time.Second || q.MaxBackoff != 10*time.Minute || q.Doublings != 5 {
		t.Errorf("backoff %v to %v with %d doublings, want 30 s to 10 min with 5", q.MinBackoff, q.MaxBackoff, q.Doublings)
	}
}

// The commands say what the files say.
func TestTheCommandsSayWhatTheFilesSay(t *testing.T) {
	f := files(t)
	words := []string{
		"gcloud tasks queues create analyses --flags-file=deploy/queue.yaml",
		"gcloud run services replace deploy/service.yaml", "gcloud run services replace deploy/doclock.yaml",
		fmt.Sprintf("the request timeout (%d s;", int(f.Worker.Settings.Value.Timeout.Seconds())),
		fmt.Sprintf(`"dispatchDeadline": "%ds"`, int(f.Worker.Settings.Value.Timeout.Seconds())),
		fmt.Sprintf("`RUN_TIMEOUT` (%s)", f.Worker.Environment.Value["RUN_TIMEOUT"].Value),
		fmt.Sprintf("one of an instance's %d places", f.Doclock.Settings.Value.Concurrency),
		fmt.Sprintf("the request timeout (%d s)", int(f.Doclock.Settings.Value.Timeout.Seconds())),
		"collection-group=" + f.Worker.Environment.Value["ANALYSES_COLLECTION"].Value,
		"services add-iam-policy-binding " + f.Worker.Settings.Value.Name,
		"WORKER=https://" + f.Worker.Settings.Value.Name + "-$NUMBER.$REGION.run.app DOCLOCK=https://" + f.Doclock.Settings.Value.Name + "-$NUMBER.$REGION.run.app",
		"gcloud secrets create taskguard-session",
		`sed -i.orig "s/my-project/$PROJECT/g; s/123456789012/$NUMBER/g; s/europe-west1/$REGION/g" deploy/service.yaml deploy/doclock.yaml deploy/queue.yaml`,
	}
	declared := readIndexes(t)
	for _, i := range declared.Indexes {
		for _, f := range i.Fields {
			words = append(words, fmt.Sprintf(" --field-config=field-path=%s,order=%s", f.FieldPath, strings.ToLower(f.Order)))
		}
	}
	exempt := "for field in"
	for _, o := range declared.FieldOverrides {
		exempt += " " + o.FieldPath
	}
	readme := string(readDeploy(t, "README.md"))
	for _, w := range append(words, exempt+"; do") {
		if !strings.Contains(readme, w) {
			t.Errorf("README.md lacks %q", w)
		}
	}
}
