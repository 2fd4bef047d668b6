package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"taskguard/internal/testing/must"
)

// variant is a shipped service.yaml with one text replaced.
func variant(t *testing.T, old, replacement string) string {
	t.Helper()
	data := string(must.Get(os.ReadFile(shippedFiles + "service.yaml"))(t))
	if !strings.Contains(data, old) {
		t.Fatalf("no %q in it", old)
	}
	return write(t, "service.yaml", strings.Replace(data, old, replacement, 1))
}

const indexes = shippedFiles + "firestore.indexes.json"

// The rules are tested in cmd/internal/doctor.
func TestDoctor(t *testing.T) {
	t.Run("a problem exits 1, and advice does not", func(t *testing.T) {
		taskguard(t, vars{}, "doctor --service "+variant(t, "timeoutSeconds: 1560", "timeoutSeconds: 300")).
			fails(t, "(run-timeout)", "\n1 problem, 0 pieces of advice\n")
		taskguard(t, vars{}, "doctor --service "+variant(t, "memory: 1Gi", "memory: 512Mi")).
			done(t, "(memory)", "\n0 problems, 1 piece of advice\n")
		o := taskguard(t, vars{}, "doctor --json --service "+variant(t, "LOCK_TTL", "LOCK_TLL"))
		found := wantKeys(t, o.fails(t, `"unknown-variable"`).object(t), "read findings unchecked")
		if len(found["findings"].([]any)) != 1 || len(found["read"].([]any)) != 1 {
			t.Errorf("%s", o.out)
		}
	})
	t.Run("each flag reads its file", func(t *testing.T) {
		line, read := "doctor --json", []string{`"findings":[]`}
		for flag, file := range map[string]string{
			"service": "service.yaml", "doclock": "doclock.yaml", "queue": "queue.yaml",
			"indexes": "firestore.indexes.json",
		} {
			line, read = line+" --"+flag+" "+shippedFiles+file, append(read, `"from":"`+shippedFiles+file+`"`)
		}
		taskguard(t, vars{}, line).done(t, read...)
		taskguard(t, vars{}, "doctor --service no/such.yaml").refused(t, "no/such.yaml")
		for _, file := range []string{t.TempDir(), write(t, "junk", "\x00\x01\x02\xff\xfe\n\x1b[2J")} {
			taskguard(t, vars{}, "doctor --queue "+file).fails(t, "not readable").lacks(t, "\x00", "\x1b")
		}
	})
	t.Run("the kinds are those of KINDS", func(t *testing.T) {
		for kinds, part := range map[string]string{
			`[{"collection":"analysis"}]`:                         "(collection)",
			`[{},{"name":"order","collection":"shops/s/orders"}]`: "--collection-group=orders ",
		} {
			taskguard(t, vars{"KINDS": kinds}, "doctor --indexes "+indexes).fails(t, part)
		}
		taskguard(t, vars{"KINDS": "{}"}, "doctor --indexes "+indexes).refused(t, "KINDS")
	})
	t.Run("on an emulator only files are checked", func(t *testing.T) {
		for _, name := range []string{"FIRESTORE_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST"} {
			env := vars{"GOOGLE_CLOUD_PROJECT": "p", name: "127.0.0.1:1"}
			for _, flag := range []string{"", " --service ", " --doclock "} {
				flag += map[bool]string{true: "projects/p/locations/l/services/s"}[flag != ""]
				taskguard(t, env, "doctor"+flag).refused(t, name+" is set").wantOneErrorLine(t)
			}
			taskguard(t, env, "doctor --indexes "+indexes).done(t)
		}
	})
}

func TestEnv(t *testing.T) {
	service := "--service " + shippedFiles + "service.yaml"
	taskguard(t, vars{}, "env "+service+" --doclock "+shippedFiles+"doclock.yaml").done(t,
		"export GOOGLE_CLOUD_PROJECT=my-project\n", "export FIRESTORE_DATABASE='(default)'\n",
		"export TASK_QUEUE=projects/my-project/locations/europe-west1/queues/analyses\n",
		"export CLOUDSDK_RUN_REGION=europe-west1\n", "export DOCLOCK_DATABASE=taskguard-doclock\n",
		"export KEEP_FINISHED=''\n", "export FIRESTORE_EMULATOR_HOST=''\n")
	taskguard(t, vars{}, "env --json "+service).done(t, `"RUN_TIMEOUT":"25m"`)
	secret := variant(t, "- name: RUN_TIMEOUT\n              value: 25m",
		"- name: KEEP_FINISHED\n              valueFrom: {secretKeyRef: {name: s, key: latest}}")
	taskguard(t, vars{}, "env --service "+secret).done(t, "export KEEP_FINISHED=''\n")
	taskguard(t, vars{}, "env").refused(t, "--service")
	taskguard(t, vars{}, "env --service "+shippedFiles+"queue.yaml").fails(t, "Cloud Run")

	t.Run("an error leaves a shell without the variables of an earlier env", func(t *testing.T) {
		o := taskguard(t, vars{}, "env --service no/such").refused(t)
		const script = `eval "$0"; echo "$? $TASK_QUEUE$DOCLOCK_DATABASE$GOOGLE_CLOUD_PROJECT"`
		shell := exec.CommandContext(t.Context(), "/bin/sh", "-c", script, o.out) // as the documented eval does
		shell.Env = []string{"TASK_QUEUE=old", "DOCLOCK_DATABASE=old", "GOOGLE_CLOUD_PROJECT=old"}
		if got, err := shell.CombinedOutput(); err != nil || string(got) != "1 \n" {
			t.Errorf("the shell has %q, %v; want a failure, and no variable", got, err)
		}
		if o := taskguard(t, vars{}, "env --json --service no/such"); o.out != "" {
			t.Errorf("--json prints %s", o.out)
		}
	})
}
