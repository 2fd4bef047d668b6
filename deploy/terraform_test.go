package deploy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"google.golang.org/api/run/v1"

	"taskguard/internal/testing/must"
)

const moduleFolder = "terraform"

// block is a block of the module and its text.
type block struct {
	*hclsyntax.Block
	text string
}

// name returns what other blocks call it, such as var.project.
func (b block) name() string {
	return map[string]string{"variable": "var.", "data": "data."}[b.Type] + strings.Join(b.Labels, ".")
}

// parseModule returns the blocks of the module, and fails where terraform fmt would
// change a file.
func parseModule(t *testing.T) (all []block) {
	t.Helper()
	paths, err := filepath.Glob(moduleFolder + "/*.tf")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	for _, path := range paths {
		all = append(all, parseTerraform(t, path)...)
	}
	return all
}

func parseTerraform(t *testing.T, path string) (all []block) {
	t.Helper()
	src := []byte(read(t, path))
	f, diags := hclparse.NewParser().ParseHCL(src, path)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	if !bytes.Equal(hclwrite.Format(src), src) {
		t.Errorf("%s: terraform fmt would change it", path)
	}
	for _, b := range f.Body.(*hclsyntax.Body).Blocks {
		all = append(all, block{b, string(src[b.Range().Start.Byte:b.CloseBraceRange.End.Byte])})
	}
	return all
}

// settings is what Terraform makes of the module's settings, by case: see the test in
// deploy/terraform, which keeps the file true.
type settings struct {
	WorkerEnv  map[string]string `json:"worker_env"`
	DoclockEnv map[string]string `json:"doclock_env"`
	Request    int64             `json:"request_seconds"`
	APIs       []string          `json:"apis"`
	ShellEnv   string            `json:"shell_env"`
}

func evaluated(t *testing.T, name string) settings {
	t.Helper()
	var all map[string]settings
	must.OK(t, json.Unmarshal([]byte(read(t, moduleFolder+"/testdata/settings.json")), &all))
	return all[name]
}

// dotted returns the names of a traversal without its indexes, joined by dots.
func dotted(traversal hcl.Traversal) string {
	names := []string{traversal.RootName()}
	for _, step := range traversal[1:] {
		if attribute, ok := step.(hcl.TraverseAttr); ok {
			names = append(names, attribute.Name)
		}
	}
	return strings.Join(names, ".")
}

var reference = regexp.MustCompile(`^(?:(?:var|local)\.\w+|(?:data\.)?google_\w+\.\w+)`)

// references returns what a body refers to in the module, in full: such as var.project and
// google_firestore_database.this.name.
func references(body *hclsyntax.Body) (all []string) {
	for _, a := range body.Attributes {
		for _, traversal := range a.Expr.Variables() {
			if name := dotted(traversal); reference.MatchString(name) {
				all = append(all, name)
			}
		}
	}
	for _, b := range body.Blocks {
		all = append(all, references(b.Body)...)
	}
	return all
}

func TestModule_Names(t *testing.T) {
	declared, used := map[string]bool{}, map[string]bool{}
	module := parseModule(t)
	for _, b := range module {
		declared[b.name()] = true
		for name := range b.Body.Attributes {
			declared["local."+name] = declared["local."+name] || b.Type == "locals"
		}
	}

	for _, b := range module {
		for _, name := range references(b.Body) {
			name = reference.FindString(name)
			if !declared[name] {
				t.Errorf("%s refers to %s, which is not declared", b.name(), name)
			}
			used[name] = used[name] || name != b.name()
		}
	}
	for name, is := range declared {
		kind, _, _ := strings.Cut(name, ".")
		ours := slices.Contains([]string{"var", "local"}, kind)
		if unused := is && !used[name]; ours && unused {
			t.Errorf("%s is not used", name)
		}
	}
}

// callsModule fails unless a configuration calls the module with variables that it has,
// all required ones among them, and outputs the environment.
func callsModule(t *testing.T, path string) (given map[string]string) {
	t.Helper()
	var variables, required []string
	for _, b := range parseModule(t) {
		if b.Type == "variable" {
			variables = append(variables, b.Labels[0])
			if b.Body.Attributes["default"] == nil {
				required = append(required, b.Labels[0])
			}
		}
	}
	given = map[string]string{}
	output := false
	for _, b := range parseTerraform(t, path) {
		output = output || b.name() == "environment"
		for name, a := range b.Body.Attributes {
			if b.Type != "module" || name == "source" {
				continue
			}
			given[name] = string(a.Expr.Range().SliceBytes([]byte(read(t, path))))
			if !slices.Contains(variables, name) {
				t.Errorf("%s: the module has no variable %s", path, name)
			}
		}
	}
	for _, name := range required {
		if given[name] == "" {
			t.Errorf("%s does not set %s", path, name)
		}
	}
	if !output {
		t.Errorf("%s does not output the environment", path)
	}
	return given
}

var (
	roleNamed     = regexp.MustCompile(`"(?:roles/)?([a-z]+\.[a-z][A-Za-z]+)"|(google_project_iam_custom_role\.\w+)(?:\[0\])?\.name`)
	rolePair      = regexp.MustCompile(`\["(\w+)", "([a-zA-Z.]+)"\]`)
	accountNamed  = regexp.MustCompile(`local\.account\["(\w+)"\]\.member|var\.(submitters|operators|responders)`)
	localNamed    = regexp.MustCompile(`local\.(\w+)\b`)
	customRoleID  = regexp.MustCompile(`role_id += "\$\{[^}]*\}\}?(\w+)"`)
	permissions   = regexp.MustCompile(`permissions = \[\s*([^\]]*?),?\s*\]`)
	accountSigned = regexp.MustCompile(`service_account_id = local\.account\["(\w+)"\]`)
	rolesTableRow = regexp.MustCompile("(?m)^\\| `([^|]+)` \\| `([^|]+)` \\| ([^|]+) \\| [^|]+ \\|$")
)

// moduleGrants returns the grants of the module, "who: role on what", and the permissions of its
// own roles, "role: permissions".
func moduleGrants(t *testing.T) (grants, own map[string]bool) {
	t.Helper()
	module := parseModule(t)
	locals, custom := map[string]string{}, map[string]string{}
	grants, own = map[string]bool{}, map[string]bool{}
	for _, b := range module {
		for name, a := range b.Body.Attributes {
			if b.Type == "locals" {
				locals[name] = string(a.Expr.Range().SliceBytes([]byte(read(t, a.Range().Filename))))
			}
		}
		if b.Type == "resource" && b.Labels[0] == "google_project_iam_custom_role" {
			name := customRoleID.FindStringSubmatch(b.text)[1]
			custom[b.name()] = name
			all := strings.Fields(strings.ReplaceAll(permissions.FindStringSubmatch(b.text)[1], `"`, ""))
			own[name+": "+strings.Join(all, " ")] = true
		}
	}

	for _, b := range module {
		if !strings.Contains(b.name(), "_iam_") || !strings.HasSuffix(b.Labels[0], "_member") {
			continue
		}
		text := b.text
		for range 3 { // a local may refer to another
			text = localNamed.ReplaceAllStringFunc(text, func(name string) string {
				value := locals[strings.TrimPrefix(name, "local.")]
				if name == "local.account" || strings.Contains(value, "google_cloud_run") {
					return name
				}
				return cmp.Or(value, name)
			})
		}
		for who, roles := range grantsOf(text) {
			for role := range roles {
				grants[fmt.Sprintf("%s: %s on %s", who, cmp.Or(custom[role], role), grantedOn(b))] = true
			}
		}
	}
	return grants, own
}

// grantsOf returns the roles of a resource by who has them, from its text with its locals.
func grantsOf(text string) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	add := func(who, role string) {
		if all[who] == nil {
			all[who] = map[string]bool{}
		}
		all[who][role] = true
	}
	if pairs := rolePair.FindAllStringSubmatch(text, -1); strings.Contains(text, "each.value.account].member") {
		for _, pair := range pairs {
			add(pair[1], pair[2])
		}
		return all
	}
	for _, who := range accountNamed.FindAllStringSubmatch(text, -1) {
		for _, role := range roleNamed.FindAllStringSubmatch(text, -1) {
			add(cmp.Or(who[1], who[2]), cmp.Or(role[1], role[2]))
		}
	}
	return all
}

// grantedOn returns what a role is granted on.
func grantedOn(b block) string {
	kinds := map[string]string{
		"google_artifact_registry_repository_iam_member": "repository", "google_cloud_run_v2_job_iam_member": "job",
		"google_cloud_run_v2_service_iam_member": "services", "google_cloud_tasks_queue_iam_member": "queue",
		"google_project_iam_member": "project", "google_secret_manager_secret_iam_member": "secrets",
		"google_service_account_iam_member": "accounts of the services", "google_storage_bucket_iam_member": "bucket",
	}
	on := kinds[b.Labels[0]]
	if signs := accountSigned.FindStringSubmatch(b.text); signs != nil {
		on = "`" + signs[1] + "`"
	}
	if strings.Contains(b.text, "/databases/") {
		on = "database"
	}
	if strings.Contains(b.text, "/instances/") {
		on = "instances"
	}
	return on
}

// One more role is an unneeded permission, and one less is a call that is refused, in production
// only. The table says why there is each one.
func TestModule_Roles(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "roles.md"), "\n## Accounts and roles\n")
	section, _, _ = strings.Cut(section, "\n## ")
	grants, own := moduleGrants(t)
	wanted, wantedOwn := map[string]bool{}, map[string]bool{}
	for _, row := range rolesTableRow.FindAllStringSubmatch(section, -1) {
		for _, role := range strings.Split(row[2], "`, `") {
			for _, who := range strings.Split(row[1], "`, `") {
				wanted[fmt.Sprintf("%s: %s on %s", who, role, row[3])] = true
			}
		}
	}
	for _, row := range regexp.MustCompile("(?m)^- `(\\w+)`: `(.*)`$").FindAllStringSubmatch(section, -1) {
		wantedOwn[row[1]+": "+strings.ReplaceAll(row[2], "`", "")] = true
	}
	if diff := gocmp.Diff(sorted(wanted), sorted(grants)); diff != "" || len(grants) < 40 {
		t.Errorf("%d grants: -table +module:\n%s", len(grants), diff)
	}
	if diff := gocmp.Diff(sorted(wantedOwn), sorted(own)); diff != "" {
		t.Errorf("-page's own roles +module:\n%s", diff)
	}
	for grant := range grants {
		if strings.HasPrefix(grant, "caller: ") && grant != "caller: run.invoker on services" {
			t.Errorf("every submitter can act as the caller, and has %s", grant)
		}
	}
}

// resources returns the resources of the module by name.
func resources(t *testing.T) map[string]block {
	t.Helper()
	all := map[string]block{}
	for _, b := range parseModule(t) {
		if b.Type == "resource" {
			all[b.name()] = b
		}
	}
	return all
}

// Without one of these lines nothing fails, until there is an accident. TestModule_Roles has the roles.
func TestModule_Accidents(t *testing.T) {
	const image, traffic = "template[0].containers[0].image,", "traffic," // which a release changes: no apply undoes it
	module := resources(t)
	for name, words := range map[string][]string{
		"google_firestore_database.this": {
			`"FIRESTORE_NATIVE"`, `"POINT_IN_TIME_RECOVERY_ENABLED"`, `var.delete_database ? "DELETE" : "ABANDON"`,
			`var.delete_database ? "DELETE_PROTECTION_DISABLED" : "DELETE_PROTECTION_ENABLED"`,
		},
		// An application may store an expireAt of its own.
		"google_firestore_field.exempt": {`each.key == "expireAt" ? var.keep_finished_days[*] : []`},
		"google_firestore_field.keys": {`"${local.collection_group}Keys"`,
			`try(each.value.ttl, false) ? [true] : []`},
		"google_firestore_index.analyses":        {`if var.create_indexes }`}, // another deployment may have made them
		"google_firestore_backup_schedule.daily": {"var.create_database && var.backup_days > 0"},
		"google_project_iam_member.database": {
			`resource.name == \"projects/${var.project}/databases/${each.value.database}\"`,
		},
		"google_cloud_run_v2_service.worker": {
			image, traffic, "template[0].containers[1].image,", "\n  scaling {\n    min_instance_count",
			"local.smoke_env, local.analyzer_env, local.worker_env, var.worker_env)",
		},
		"google_cloud_run_v2_service.doclock": {image, traffic, "= var.doclock_ingress\n",
			"= !var.doclock_invoker_check\n"},
		"google_cloud_run_v2_service.recovery": {traffic, `local.worker_env, { ANALYZER = "builtin:document" })`},
		"google_cloud_run_v2_job.long":         {"max_retries = 0", "var.long_jobs.run_timeout_minutes * 60 + 120"},
		"google_cloud_scheduler_job.export":    {`:exportDocuments"`, `local.account["backup"].email`, "retry_count "},
		"google_cloud_scheduler_job.recover":   {`"* * * * *"`, "/internal/tasks/recover", "= local.recovery_url\n"},
		"google_cloud_scheduler_job.sweep":     {`"* * * * *"`, "/internal/sweep"},
		// Else it is a false alarm.
		"google_monitoring_alert_policy.taskguard": {"google_cloud_scheduler_job.recover",
			"disable_metric_validation = true"},
	} {
		for _, w := range words {
			if !strings.Contains(module[name].text, w) {
				t.Errorf("%s lacks %s", name, w)
			}
		}
	}

	// A release names its revision, and Cloud Run refuses a second of that name.
	if strings.Contains(module["google_cloud_run_v2_service.worker"].text, "template[0].revision") {
		t.Error("after a release no apply can change the worker")
	}
	for line := range strings.Lines(read(t, "queue.yaml")) {
		flag, _, _ := strings.Cut(line, ":")
		field, ok := strings.CutPrefix(flag, "--")
		queue := module["google_cloud_tasks_queue.analyses"].text
		given := strings.Contains(queue, `local.queue_flags["`+flag+`"]`) ||
			strings.Contains(queue, "local."+strings.ReplaceAll(field, "-", "_"))
		missing := ok && !given
		if missing && flag != "--location" {
			t.Errorf("the module's queue does not take %s from queue.yaml", flag)
		}
	}
}

// Without its API Google refuses a resource in an empty project.
func TestModule_APIs(t *testing.T) {
	apis := map[string]string{
		"artifact": "artifactregistry", "cloud_run": "run", "cloud_scheduler": "cloudscheduler",
		"cloud_tasks": "cloudtasks", "firestore": "firestore", "logging": "logging", "monitoring": "monitoring",
		"project": "cloudresourcemanager", "secret_manager": "secretmanager", "service_account": "iam",
		"storage": "", // always enabled
	}
	need := map[string]bool{"cloudbuild": true, "iamcredentials": true} // of the build and its smoke test
	for _, b := range parseModule(t) {
		if b.Type != "resource" {
			continue
		}
		known := false
		for prefix, api := range apis {
			if strings.HasPrefix(b.Labels[0], "google_"+prefix) {
				known, need[api] = true, true
			}
		}
		if !known {
			t.Errorf("which API does %s need?", b.Labels[0])
		}
	}
	delete(need, "")
	s := evaluated(t, "everything")
	if diff := gocmp.Diff(sorted(need), slices.Sorted(slices.Values(s.APIs))); diff != "" {
		t.Errorf("-needed +enabled:\n%s", diff)
	}
}

// A deployment by gcloud and one by Terraform are the same.
func TestModule_ServiceFiles(t *testing.T) {
	everything, app := evaluated(t, "everything"), evaluated(t, "application")
	for file, env := range map[string]map[string]string{
		"service.yaml": everything.WorkerEnv, "doclock.yaml": everything.DoclockEnv, "sidecar": app.WorkerEnv,
	} {
		s, c := service(t, file)
		name := strings.TrimPrefix(s.Metadata.Name, "taskguard-")
		set := environmentOf(c)
		for variable, value := range env {
			if got, ok := set[variable]; got != value && !strings.HasPrefix(variable, "OTEL_") {
				t.Errorf("the module sets %s=%q for %s, %s %q (%v)", variable, value, name, file, got, ok)
			}
		}

		spec := s.Spec.Template.Spec
		timeout, places := fmt.Sprintf(`timeout = "%ds"`, spec.TimeoutSeconds), fmt.Sprint(spec.ContainerConcurrency)
		if name == "worker" {
			timeout, places = "timeout = ", "var.worker_concurrency"
			if spec.TimeoutSeconds != everything.Request {
				t.Errorf("%s: the timeout is %d s, the module's %d s", file, spec.TimeoutSeconds, everything.Request)
			}
		}
		module := strings.Join(strings.Fields(resources(t)["google_cloud_run_v2_service."+name].text), " ")
		for _, want := range []string{
			timeout, "max_instance_request_concurrency = " + places,
			probe("startup_probe", c.StartupProbe), probe("liveness_probe", c.LivenessProbe),
		} {
			if !strings.Contains(module, want) {
				t.Errorf("%s: the module's %s has no %s", file, name, want)
			}
		}
		if c.StartupProbe.HttpGet.Path != "/health/ready" || c.LivenessProbe.HttpGet.Path != "/health/live" {
			t.Errorf("%s: the probes request %s and %s", file,
				c.StartupProbe.HttpGet.Path, c.LivenessProbe.HttpGet.Path)
		}
		// The revision's annotation would wait for the next revision.
		const most = "maxScale"
		if s.Metadata.Annotations["run.googleapis.com/"+most] == "" ||
			s.Spec.Template.Metadata.Annotations["autoscaling.knative.dev/"+most] != "" {
			t.Errorf("%s: the most instances are not the service's", file)
		}
	}

	w, c := service(t, "service.yaml")
	defaults := map[string]string{}
	for _, b := range parseTerraform(t, moduleFolder+"/variables_worker.tf") {
		if a := b.Body.Attributes["default"]; a != nil {
			text := a.Expr.Range().SliceBytes([]byte(read(t, a.Range().Filename)))
			defaults[b.Labels[0]] = strings.ReplaceAll(strings.Trim(string(text), `"`), `\"`, `"`)
		}
	}
	for name, want := range map[string]string{
		"worker_concurrency": fmt.Sprint(w.Spec.Template.Spec.ContainerConcurrency),
		"worker_cpu":         c.Resources.Limits["cpu"], "worker_memory": c.Resources.Limits["memory"],
		"smoke_input":          environmentOf(c)["SMOKE_INPUT"],
		"worker_max_instances": w.Metadata.Annotations["run.googleapis.com/maxScale"],
	} {
		if defaults[name] != want {
			t.Errorf("the default of %s is %s, service.yaml's %s", name, defaults[name], want)
		}
	}
}

// probe is a probe of a service file as the module has it.
func probe(name string, p *run.Probe) string {
	return fmt.Sprintf(`%s { period_seconds = %d timeout_seconds = %d failure_threshold = %d http_get { path = %q`,
		name, p.PeriodSeconds, p.TimeoutSeconds, p.FailureThreshold, p.HttpGet.Path)
}
