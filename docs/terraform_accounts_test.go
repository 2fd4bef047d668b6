package docs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zclconf/go-cty/cty"
)

// Exactly these: one more is a right that somebody did not need, one fewer a call
// that is refused in production alone.
func TestTheModuleGrantsTheseRolesAndNoOthers(t *testing.T) {
	const (
		account = "serviceAccount:taskguard-%s@my-project.iam.gserviceaccount.com"
		actsOn  = "account projects/my-project/serviceAccounts/taskguard-%s@my-project.iam.gserviceaccount.com"
		api     = "serviceAccount:api@my-project.iam.gserviceaccount.com"
		oncall  = "group:oncall@example.com"
	)
	w, c, b, d := fmt.Sprintf(account, "worker"), fmt.Sprintf(account, "caller"), fmt.Sprintf(account, "build"), fmt.Sprintf(account, "doclock")
	want := []string{
		"roles/datastore.user for " + w + " on database projects/my-project/databases/(default)",
		"roles/datastore.user for " + d + " on database projects/my-project/databases/(default)",
		"roles/datastore.user for " + api + " on database projects/my-project/databases/(default)",
		"roles/datastore.user for " + oncall + " on database projects/my-project/databases/(default)",
		"roles/cloudtasks.enqueuer for " + oncall + " on queue analyses",
		"roles/cloudtasks.viewer for " + oncall + " on queue analyses",
		"roles/cloudtasks.taskDeleter for " + oncall + " on queue analyses",
		"roles/cloudscheduler.viewer for " + oncall + " on the project",
		"roles/logging.viewer for " + oncall + " on the project",
		"roles/monitoring.viewer for " + oncall + " on the project",
		"roles/serviceusage.serviceUsageConsumer for " + oncall + " on the project",
		"roles/run.viewer for " + oncall + " on service taskguard-worker",
		"roles/run.viewer for " + oncall + " on service taskguard-doclock",
		"roles/iam.serviceAccountUser for " + oncall + " on " + fmt.Sprintf(actsOn, "caller"),
		"roles/cloudtasks.enqueuer for " + w + " on queue analyses",
		"roles/cloudtasks.enqueuer for " + api + " on queue analyses",
		"roles/iam.serviceAccountUser for " + w + " on " + fmt.Sprintf(actsOn, "caller"),
		"roles/iam.serviceAccountUser for " + api + " on " + fmt.Sprintf(actsOn, "caller"),
		"roles/run.invoker for " + c + " on service taskguard-worker",
		"roles/secretmanager.secretAccessor for " + d + " on secret taskguard-session",
		"roles/artifactregistry.writer for " + b + " on repository taskguard",
		"roles/storage.objectViewer for " + b + " on bucket my-project_cloudbuild",
		"roles/logging.logWriter for " + b + " on the project",
		"roles/run.developer for " + b + " on service taskguard-worker",
		"roles/run.developer for " + b + " on service taskguard-doclock",
		"roles/iam.serviceAccountUser for " + b + " on " + fmt.Sprintf(actsOn, "worker"),
		"roles/iam.serviceAccountUser for " + b + " on " + fmt.Sprintf(actsOn, "doclock"),
		"roles/iam.serviceAccountOpenIdTokenCreator for " + b + " on " + fmt.Sprintf(actsOn, "caller"),
	}
	if diff := cmp.Diff(sortedTexts(want), grants(t, everything)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	small := slices.DeleteFunc(want, func(s string) bool {
		return strings.Contains(s, "doclock") || strings.Contains(s, "bucket") || strings.Contains(s, api) || strings.Contains(s, oncall)
	})
	if diff := cmp.Diff(sortedTexts(small), grants(t, required)); diff != "" {
		t.Errorf("the smallest: -want +got:\n%s", diff)
	}
}

func TestTheWorkerIsGivenItsSecretsAndMayReadThemAndNoOthers(t *testing.T) {
	secret := func(name, version string) cty.Value {
		return cty.ObjectVal(map[string]cty.Value{"secret": cty.StringVal(name), "version": cty.StringVal(version)})
	}
	given := with(required, map[string]cty.Value{"worker_secrets": cty.MapVal(map[string]cty.Value{
		"API_KEY": secret("model", "3"), "API_KEY_BEFORE": secret("model", "2"), "SIGNING_KEY": secret("signing", "latest"),
	})})
	m := planned(t, given)
	if refused := m.refusals(t); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
	from := map[string]string{}
	for _, v := range containerOf(m.of(t, "google_cloud_run_v2_service.worker")).GetAttr("env").Elements() {
		if !v.Type().HasAttribute("value_source") {
			continue
		}
		ref := v.GetAttr("value_source").Index(cty.Zero).GetAttr("secret_key_ref").Index(cty.Zero)
		from[text(t, v.GetAttr("name"))] = text(t, ref.GetAttr("secret")) + " " + text(t, ref.GetAttr("version"))
	}
	if diff := cmp.Diff(map[string]string{"API_KEY": "model 3", "API_KEY_BEFORE": "model 2", "SIGNING_KEY": "signing latest"}, from); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	reads := slices.DeleteFunc(grants(t, given), func(s string) bool { return !strings.Contains(s, "secretAccessor") })
	want := []string{
		"roles/secretmanager.secretAccessor for serviceAccount:taskguard-worker@my-project.iam.gserviceaccount.com on secret model",
		"roles/secretmanager.secretAccessor for serviceAccount:taskguard-worker@my-project.iam.gserviceaccount.com on secret signing",
	}
	if diff := cmp.Diff(want, reads); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestTheApplicationIsGivenItsSecretsToo(t *testing.T) {
	m := planned(t, with(required, application(map[string]cty.Value{"secrets": secretOf("MODEL_KEY", "model", "3")})))
	app := templateOf(m.of(t, "google_cloud_run_v2_service.worker")).GetAttr("containers").Index(cty.NumberIntVal(1))
	if got := environmentIn(t, app)["MODEL_KEY"]; got != "modelmodelmodel" {
		t.Errorf("its environment names the secret %q", got)
	}
	if want := "roles/secretmanager.secretAccessor for serviceAccount:taskguard-worker@my-project.iam.gserviceaccount.com on secret model"; !slices.Contains(grantsOf(t, m), want) {
		t.Errorf("no %s", want)
	}
}

// What only Google's own endpoint for telemetry needs, by the module and by the README.
func TestGooglesOwnEndpointForTelemetryTakesTheseRolesAPIsAndTheRegion(t *testing.T) {
	to := func(url string) map[string]cty.Value {
		return map[string]cty.Value{"otlp_endpoint": cty.StringVal(url)}
	}
	const google = "https://telemetry.googleapis.com"
	for url, own := range map[string]bool{
		google: true, google + "/": true, "https://telemetry.europe-west1.rep.googleapis.com": true,
		"http://telemetry.googleapis.com": false, google + ".example.com": false, "https://example.com/telemetry.googleapis.com": false, "http://collector:4318": false,
	} {
		m := planned(t, with(everything, to(url)))
		if refused := m.refusals(t); len(refused) > 0 {
			t.Errorf("%s is refused: %q", url, refused)
		}
		var roles, apis []string
		region := ""
		if own {
			const account = " for serviceAccount:taskguard-%s@my-project.iam.gserviceaccount.com on the project"
			roles = []string{
				"roles/serviceusage.serviceUsageConsumer" + fmt.Sprintf(account, "doclock"), "roles/serviceusage.serviceUsageConsumer" + fmt.Sprintf(account, "worker"),
				"roles/telemetry.metricsWriter" + fmt.Sprintf(account, "worker"),
				"roles/telemetry.tracesWriter" + fmt.Sprintf(account, "doclock"), "roles/telemetry.tracesWriter" + fmt.Sprintf(account, "worker"),
			}
			apis, region = []string{"cloudtrace.googleapis.com", "telemetry.googleapis.com"}, "cloud.region=europe-west1"
			_, calls := follow(t, stepsForAll, "Traces and metrics")
			enable := slices.IndexFunc(calls, func(words []string) bool { return slices.Contains(words, "telemetry.googleapis.com") })
			if got := granted(t, calls); !slices.Equal(got, roles) || enable < 0 || !slices.Equal(calls[enable][3:], apis) {
				t.Errorf("README.md grants %q and enables %q", got, calls[max(enable, 0)])
			}
		}
		if diff := cmp.Diff(sortedTexts(append(roles, grants(t, everything)...)), grantsOf(t, m)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", url, diff)
		}
		if diff := cmp.Diff(sortedTexts(append(apis, enabledBy(t, planned(t, everything))...)), enabledBy(t, m)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", url, diff)
		}
		for name, path := range map[string][]any{"worker": nil, "doclock": {0}} {
			env := environmentOf(t, m.of(t, "google_cloud_run_v2_service."+name, path...))
			if env["OTEL_RESOURCE_ATTRIBUTES"] != region || env["OTEL_EXPORTER_OTLP_ENDPOINT"] != url {
				t.Errorf("%s: %s is given %q", url, name, env)
			}
		}
	}
	theirs := planned(t, with(with(required, to(google)), map[string]cty.Value{"worker_env": cty.MapVal(map[string]cty.Value{"OTEL_RESOURCE_ATTRIBUTES": cty.StringVal("a=b")})}))
	env := environmentOf(t, theirs.of(t, "google_cloud_run_v2_service.worker"))
	if refused := theirs.refusals(t); len(refused) > 0 || env["OTEL_RESOURCE_ATTRIBUTES"] != "a=b" {
		t.Errorf("refused: %q; the worker is given %q", refused, env)
	}
	if all := grantsOf(t, theirs); slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, "doclock") }) {
		t.Errorf("the smallest: %q", all)
	}
}

func enabledBy(t *testing.T, m *terraform) (all []string) {
	t.Helper()
	for _, v := range m.instances(t, "google_project_service") {
		all = append(all, text(t, v.GetAttr("service")))
	}
	return sortedTexts(all)
}

func sortedTexts(all []string) []string { return slices.Sorted(slices.Values(all)) }

// grants are the module's, a sentence each.
func grants(t *testing.T, given map[string]cty.Value) []string {
	t.Helper()
	return grantsOf(t, planned(t, given))
}

func grantsOf(t *testing.T, m *terraform) (all []string) {
	t.Helper()
	for _, b := range m.blocks["resource"] {
		kind := b.Labels[0]
		if !strings.Contains(kind, "_iam_") {
			continue
		}
		for _, v := range m.instances(t, kind) {
			of := v.AsValueMap()
			var on string
			switch strings.TrimSuffix(kind, "_iam_member") {
			case "google_project":
				on = "the project"
				if v.Type().HasAttribute("condition") {
					on = "database " + strings.Trim(strings.TrimPrefix(text(t, v.GetAttr("condition").Index(cty.Zero).GetAttr("expression")), "resource.name == "), `"`)
				}
			case "google_cloud_tasks_queue":
				on = "queue " + of["name"].AsString()
			case "google_service_account":
				on = "account " + of["service_account_id"].AsString()
			case "google_cloud_run_v2_service":
				on = "service " + of["name"].AsString()
			case "google_secret_manager_secret":
				on = "secret " + of["secret_id"].AsString()
			case "google_storage_bucket":
				on = "bucket " + of["bucket"].AsString()
			case "google_artifact_registry_repository":
				on = "repository " + of["repository"].AsString()
			default:
				t.Fatalf("what is %s on?", kind)
			}
			all = append(all, of["role"].AsString()+" for "+of["member"].AsString()+" on "+on)
		}
	}
	return slices.Compact(sortedTexts(all))
}
