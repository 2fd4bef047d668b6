// Package deploy tests that the files of a deployment match each other and the code.
package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	run "google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"
)

// strictly decodes a YAML file and fails on a field that into does not have.
func strictly(t *testing.T, path string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(read(t, path)), into, yaml.DisallowUnknownFields); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func service(t *testing.T, file string) (s run.Service, c *run.Container) {
	t.Helper()
	path := file
	if file == "sidecar" {
		text, err := exec.CommandContext(t.Context(), "bash", path+"/service.sh").Output()
		if path = filepath.Join(t.TempDir(), file); err != nil || os.WriteFile(path, text, 0o600) != nil {
			t.Fatal(err)
		}
	}
	strictly(t, path, &s)
	return s, s.Spec.Template.Spec.Containers[0]
}

func environmentOf(c *run.Container) map[string]string {
	env := map[string]string{}
	for _, e := range c.Env {
		if env[e.Name] = e.Value; e.ValueFrom != nil {
			env[e.Name] = strings.Repeat("secret", 8)
		}
	}
	return env
}

func TestDeployREADMEHasTheFiguresOfTheFiles(t *testing.T) {
	w, wc := service(t, "service.yaml")
	d, dc := service(t, "doclock.yaml")
	timeout := w.Spec.Template.Spec.TimeoutSeconds
	words := []string{
		fmt.Sprintf("the request timeout (%d s;", timeout), fmt.Sprintf(`"dispatchDeadline": "%ds"`, timeout),
		fmt.Sprintf("`RUN_TIMEOUT` (%s)", environmentOf(wc)["RUN_TIMEOUT"]),
		fmt.Sprintf("one of an instance's %d places", d.Spec.Template.Spec.ContainerConcurrency),
		fmt.Sprintf("the request timeout (%d s)", d.Spec.Template.Spec.TimeoutSeconds),
		"collection-group=" + environmentOf(wc)["ANALYSES_COLLECTION"],
		"\nexport GOOGLE_CLOUD_PROJECT=$PROJECT CLOUDSDK_CORE_PROJECT=$PROJECT CLOUDSDK_RUN_REGION=$REGION\n",
		"\nexport DOCLOCK_DATABASE=" + environmentOf(dc)["FIRESTORE_DATABASE"] + " ",
	}
	var declared struct {
		Indexes []struct {
			Fields []struct{ FieldPath, Order string }
		}
		FieldOverrides []struct{ CollectionGroup, FieldPath string }
	}
	check(t, json.Unmarshal([]byte(read(t, "firestore.indexes.json")), &declared))
	for _, i := range declared.Indexes {
		for _, f := range i.Fields {
			words = append(words, fmt.Sprintf(" --field-config=field-path=%s,order=%s", f.FieldPath, strings.ToLower(f.Order)))
		}
	}
	exempt := map[string]string{"analyses": "for field in", "analysesKeys": "for field in"}
	for _, o := range declared.FieldOverrides {
		exempt[o.CollectionGroup] += " " + o.FieldPath
	}
	readme := pages(t)
	words = append(words, "firestore databases create --location=$REGION --type=firestore-native --enable-pitr --delete-protection\n", " --uniform-bucket-level-access\n", "--replication-policy=user-managed --locations=$REGION --data-file=-", "--region=$BUILD_REGION ${POOL:+--worker-pool=$POOL}",
		"  retry gcloud projects add-iam-policy-binding $PROJECT --role=roles/datastore.user", "  retry gcloud iam service-accounts add-iam-policy-binding $CALLER",
		"  retry gcloud storage buckets add-iam-policy-binding", "set-cleanup-policies taskguard --location=$REGION --policy=deploy/cleanup.json --no-dry-run")
	if keep := `"action": { "type": "Keep" }, "condition": { "tagState": "tagged", "tagPrefixes": ["serving"] } }`; !strings.Contains(read(t, "cleanup.json"), keep) {
		t.Errorf("cleanup.json does not keep what release.sh tags: %s", keep)
	}
	for _, w := range append(words, exempt["analyses"]+"; do", exempt["analysesKeys"]+"; do") {
		if !strings.Contains(readme, w) {
			t.Errorf("the pages lack %q", w)
		}
	}
}

func TestTheProbesOfTheServiceFilesAreTheHealthRoutes(t *testing.T) {
	for _, file := range []string{"service.yaml", "sidecar", "doclock.yaml"} {
		s, c := service(t, file)
		if own := s.Spec.Template.Metadata.Annotations["autoscaling.knative.dev/maxScale"]; own != "" || s.Metadata.Annotations["run.googleapis.com/maxScale"] == "" {
			t.Errorf("%s: a change of the instances would wait for the next revision: %q", file, own)
		}
		if c.StartupProbe.HttpGet.Path != "/health/ready" || c.LivenessProbe.HttpGet.Path != "/health/live" {
			t.Errorf("%s: the probes request %s and %s", file, c.StartupProbe.HttpGet.Path, c.LivenessProbe.HttpGet.Path)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	return string(must(os.ReadFile(path))(t))
}

// pages returns the pages of this folder, one after the other.
func pages(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, path := range files(t, "*.md") {
		all.WriteString(read(t, path) + "\n")
	}
	return all.String()
}

// check fails the test on an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns the value of a call that has to succeed.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}

func sorted(names map[string]bool) []string { return slices.Sorted(maps.Keys(names)) }
