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
		"roles/cloudscheduler.viewer for " + oncall + " on the project",
		"roles/iam.securityReviewer for " + oncall + " on the project",
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
