package terraform

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"google.golang.org/api/logging/v2"
	dashboards "google.golang.org/api/monitoring/v1"
	"google.golang.org/api/monitoring/v3"

	"taskguard/internal/testing/must"
)

const monitoringFolder = "../monitoring"

// monitoringOutput returns an output with what the module's monitoring resources say, in
// the form of Google's API: the files for gcloud are made from it.
func monitoringOutput(t *testing.T) string {
	t.Helper()
	metric, policy, dashboard := resource(t, "logs.tf"), resource(t, "alerts.tf"), resource(t, "dashboard.tf")
	return fmt.Sprintf(`
output "files" {
  value = {
    metrics   = { for key, value in %s : key => [for each in [{ key = key, value = value }] : %s][0] }
    policies  = { for key, value in %s : key => [for each in [{ key = key, value = value }] : %s][0] }
    dashboard = %s
  }
}
`, metric.text("for_each"), metric.object(), policy.text("for_each"), policy.object(), dashboard.text("dashboard_json"))
}

// body is the body of a block of a file.
type body struct {
	*hclsyntax.Body
	src []byte
}

// blocks returns the blocks of a file.
func blocks(t *testing.T, path string) ([]*hclsyntax.Block, []byte) {
	t.Helper()
	src := []byte(text(t, path))
	f, diags := hclparse.NewParser().ParseHCL(src, path)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	return f.Body.(*hclsyntax.Body).Blocks, src
}

// resource returns the only resource of a file.
func resource(t *testing.T, path string) body {
	t.Helper()
	blocks, src := blocks(t, path)
	if len(blocks) != 1 || blocks[0].Type != "resource" {
		t.Fatalf("%s has %d blocks, want one resource", path, len(blocks))
	}
	return body{blocks[0].Body, src}
}

// text returns the expression of an attribute.
func (b body) text(attribute string) string {
	return string(b.Attributes[attribute].Expr.Range().SliceBytes(b.src))
}

// object returns an expression of the body in the form of Google's API, without what only
// Terraform or a project knows.
func (b body) object() string {
	var fields []string
	for name := range b.Attributes {
		if !slices.Contains([]string{"project", "for_each", "depends_on", "notification_channels"}, name) {
			fields = append(fields, camel(name)+" = "+b.text(name))
		}
	}
	for _, nested := range b.Blocks {
		in, name := body{nested.Body, b.src}, nested.Type
		value := "[" + in.object() + "]"
		if name == "dynamic" {
			name, in = nested.Labels[0], body{nested.Body.Blocks[0].Body, b.src}
			each := body{nested.Body, b.src}.text("for_each")
			value = fmt.Sprintf("[for %s in [for v in %s : { value = v }] : %s]", name, each, in.object())
		}
		lists := []string{"labels", "conditions", "notification_channel_strategy"}
		if !slices.Contains(lists, name) {
			value = "one(" + value + ")"
		}
		fields = append(fields, camel(name)+" = "+value)
	}
	return "{\n" + strings.Join(fields, "\n") + "\n}"
}

// camel returns the name that Google's API has for a name of the provider.
func camel(name string) string {
	words := strings.Split(name, "_")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

// monitoringFilesAreTheModules checks the files of deploy/monitoring, which gcloud reads,
// or writes them.
func monitoringFilesAreTheModules(t *testing.T, files json.RawMessage) {
	t.Helper()
	var made struct {
		Metrics, Policies map[string]json.RawMessage
		Dashboard         string
	}
	must.OK(t, json.Unmarshal(files, &made))
	want := map[string]string{"dashboard.json": file(t, []byte(made.Dashboard), new(dashboards.Dashboard))}
	if regexp.MustCompile(`"[xy]Pos":0\D`).MatchString(made.Dashboard) {
		t.Error("Cloud Monitoring drops a zero, so each plan would change the dashboard")
	}
	for name, m := range made.Metrics {
		want["metrics/"+name+".json"] = file(t, m, new(logging.LogMetric))
	}
	for name, p := range made.Policies {
		_, name, _ = strings.Cut(strings.ReplaceAll(name, " ", "-"), ":-")
		want["policies/"+name+".json"] = file(t, p, new(monitoring.AlertPolicy))
	}
	if *update {
		must.OK(t, os.RemoveAll(monitoringFolder))
		for name, text := range want {
			path := filepath.Join(monitoringFolder, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as git makes it
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // as git makes it
				t.Fatal(err)
			}
		}
	}
	got := map[string]string{}
	for _, pattern := range []string{"*.json", "*/*.json"} {
		paths := must.Get(filepath.Glob(filepath.Join(monitoringFolder, pattern)))(t)
		for _, path := range paths {
			name := must.Get(filepath.Rel(monitoringFolder, path))(t)
			got[filepath.ToSlash(name)] = text(t, path)
		}
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("make settings writes %s: -files +Terraform:\n%s", monitoringFolder, diff)
	}
}

// alertsGoWhereTheyShould checks the channels, thresholds and states of the alerts, where they are set.
func alertsGoWhereTheyShould(t *testing.T, files json.RawMessage) {
	t.Helper()
	var made struct {
		Policies map[string]*monitoring.AlertPolicy
	}
	must.OK(t, json.Unmarshal(files, &made))
	channels := map[string][]string{"CRITICAL": {"pager"}, "ERROR": {"mail"}}
	for name, p := range made.Policies {
		var got []string
		if p.AlertStrategy != nil {
			again := p.AlertStrategy.NotificationChannelStrategy[0]
			if got = again.NotificationChannelNames; again.RenotifyInterval != "7200s" {
				t.Errorf("%s notifies again after %s", name, again.RenotifyInterval)
			}
		}
		if want := channels[p.Severity]; !slices.Equal(got, want) {
			t.Errorf("%s, %s, goes to %q, want %q", name, p.Severity, got, want)
		}
		if want := !strings.HasSuffix(name, "tasks wait"); p.Enabled != want {
			t.Errorf("%s: enabled is %v", name, p.Enabled)
		}
		query := p.Conditions[0].ConditionPrometheusQueryLanguage.Query
		if strings.Contains(query, "> 0.075 * ") != strings.HasSuffix(name, "runs time out") {
			t.Errorf("%s: the threshold is another: %s", name, query)
		}
		// RETRY_MAX is an hour and a half.
		if strings.Contains(query, "min_over_time") && strings.Contains(query, `"work"}[30m]`) {
			t.Errorf("%s: the queue stands still while all tasks wait for their next attempt: %s", name, query)
		}
		if strings.HasSuffix(name, "the export has stopped") {
			t.Errorf("%s, and there is none", name)
		}
	}
	if len(made.Policies) < 20 {
		t.Errorf("%d policies", len(made.Policies))
	}
}

// file returns a file for gcloud, and fails where a field is not one of Google's API.
func file(t *testing.T, made []byte, of any) string {
	t.Helper()
	in := json.NewDecoder(bytes.NewReader(made))
	in.DisallowUnknownFields()
	if err := in.Decode(of); err != nil {
		t.Fatalf("%v: %s", err, made)
	}
	out := must.Get(json.MarshalIndent(of, "", "  "))(t)
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(out)) + "\n"
}
