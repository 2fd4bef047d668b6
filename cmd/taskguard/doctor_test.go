package main

import (
	"os"
	"strings"
	"testing"

	"taskguard/cmd/internal/cli"
)

const shippedFiles = "../../deploy/"

// variant is a shipped service.yaml with one text replaced.
func variant(t *testing.T, old, replacement string) string {
	t.Helper()
	data := string(must(os.ReadFile(shippedFiles + "service.yaml"))(t))
	if !strings.Contains(data, old) {
		t.Fatalf("no %q in it", old)
	}
	return write(t, "service.yaml", strings.Replace(data, old, replacement, 1))
}

func TestDoctorPrintsWhatItFindsAndExits1ForAProblem(t *testing.T) {
	taskguard(t, vars{}, "doctor", "--service", variant(t, "timeoutSeconds: 1560", "timeoutSeconds: 300")).want(t, cli.ExitFailed,
		"\nproblem: RUN_TIMEOUT is 25m0s, but Cloud Run ends the request after 5m0s", " (run-timeout)\n    Set timeoutSeconds: 1560 ",
		"\n1 problem, 0 pieces of advice\n")
	taskguard(t, vars{}, "doctor", "--service", variant(t, "memory: 1Gi", "memory: 512Mi")).
		want(t, cli.ExitDone, "\nadvice: ", "(memory)", "\n0 problems, 1 piece of advice\n")

	o := taskguard(t, vars{}, "doctor", "--json", "--service", variant(t, "LOCK_TTL", "LOCK_TLL")).want(t, cli.ExitFailed)
	d := wantKeys(t, o.out, "read", "findings", "unchecked")
	if findings := d["findings"].([]any); len(findings) != 1 || !strings.Contains(o.out, `"unknown-variable"`) || len(d["read"].([]any)) != 1 || strings.Count(o.out, "\n") != 1 {
		t.Errorf("%s", o.out)
	}
	taskguard(t, vars{}, "doctor", "--json", "--queue", shippedFiles+"queue.yaml").want(t, cli.ExitDone, `"findings":[]`)
}

func TestDoctorReadsTheKindsAndReportsWhatItCannotRead(t *testing.T) {
	indexes := shippedFiles + "firestore.indexes.json"
	taskguard(t, vars{"KINDS": `[{"name":"order","collection":"shops/s/orders"}]`}, "doctor", "--indexes", indexes).want(t, cli.ExitFailed,
		"--collection-group=orders ", "The field input of orders is indexed", "\n8 problems, 0 pieces of advice\n")
	taskguard(t, vars{"KINDS": "{}"}, "doctor", "--indexes", indexes).want(t, cli.ExitUsage, "KINDS: want a JSON array")
	taskguard(t, vars{}, "doctor", "--service", "no/such.yaml").want(t, cli.ExitUsage, `--service: "no/such.yaml" is neither a file nor the name of a service`)
	for _, file := range []string{t.TempDir(), write(t, "junk", "\x00\x01\x02\xff\xfe\n\x1b[2J")} {
		o := taskguard(t, vars{}, "doctor", "--queue", file).want(t, cli.ExitFailed, "not readable: ", "\nnothing was read\n")
		if o.err != "" || strings.ContainsAny(o.out, "\x00\x1b") {
			t.Errorf("%s: %q", file, o.out+o.err)
		}
	}
}
