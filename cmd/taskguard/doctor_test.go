package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskguard/cmd/internal/cli"
)

const shippedFiles = "../../deploy/"

// variant is a shipped file with one text replaced.
func variant(t *testing.T, name, old, replacement string) string {
	t.Helper()
	data := must(os.ReadFile(shippedFiles + name))(t)
	if !bytes.Contains(data, []byte(old)) {
		t.Fatalf("%s lacks %q", name, old)
	}
	return wrote(t, name, bytes.Replace(data, []byte(old), []byte(replacement), 1))
}

func wrote(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	check(t, os.WriteFile(path, data, 0o600))
	return path
}

func TestDoctorFindsNothingInTheShippedFiles(t *testing.T) {
	o := taskguard(t, vars{}, "doctor", "--service", shippedFiles+"service.yaml", "--doclock", shippedFiles+"doclock.yaml",
		"--queue", shippedFiles+"queue.yaml", "--indexes", shippedFiles+"firestore.indexes.json").want(t, cli.ExitDone,
		"read: ../../deploy/service.yaml: the worker's settings\n",
		"read: ../../deploy/queue.yaml: the queue\n",
		"not checked: Cloud Scheduler's jobs, the queue's tasks, ", "the alert policies: files are named",
		"not checked: who may call the worker, who may call doclock: a service's file does not hold its IAM policy\n",
		"\nno problem in what was read\n")
	if o.err != "" || strings.Contains(o.out, "problem: ") {
		t.Errorf("stdout: %s\nstderr: %s", o.out, o.err)
	}
}

func TestDoctorPrintsAProblemItsRuleAndItsFixAndExits1(t *testing.T) {
	file := variant(t, "service.yaml", "timeoutSeconds: 1560", "timeoutSeconds: 300")
	taskguard(t, vars{}, "doctor", "--service", file).want(t, cli.ExitFailed,
		"\nproblem: RUN_TIMEOUT is 25m0s, and Cloud Run ends the request after 5m0s", " (run-timeout)\n    Set timeoutSeconds: 1560 ",
		"\n1 problem, 0 pieces of advice\n")
}

func TestDoctorsAdviceAloneExits0(t *testing.T) {
	file := variant(t, "service.yaml", "memory: 1Gi", "memory: 512Mi")
	taskguard(t, vars{}, "doctor", "--service", file).want(t, cli.ExitDone, "\nadvice: ", "(memory)", "\n0 problems, 1 piece of advice\n")
}

func TestDoctorPrintsOneJSONDocument(t *testing.T) {
	file := variant(t, "service.yaml", "LOCK_TTL", "LOCK_TLL")
	o := taskguard(t, vars{}, "doctor", "--json", "--service", file).want(t, cli.ExitFailed)
	var d struct {
		Read, Unchecked []any
		Findings        []struct{ Rule string }
	}
	if err := json.Unmarshal([]byte(o.out), &d); err != nil || strings.Count(o.out, "\n") != 1 {
		t.Fatalf("%v\n%s", err, o.out)
	}
	if len(d.Findings) != 1 || d.Findings[0].Rule != "unknown-variable" || len(d.Read) != 1 || len(d.Unchecked) == 0 {
		t.Errorf("%s", o.out)
	}
	wantKeys(t, o.out, "read", "findings", "unchecked")
	taskguard(t, vars{}, "doctor", "--json", "--queue", shippedFiles+"queue.yaml").want(t, cli.ExitDone, `"findings":[]`)
}

func TestDoctorReadsTheKindsAndReportsWhatItCannotRead(t *testing.T) {
	indexes := shippedFiles + "firestore.indexes.json"
	taskguard(t, vars{"KINDS": `[{"name":"order","collection":"shops/s/orders"}]`}, "doctor", "--indexes", indexes).want(t, cli.ExitFailed,
		"--collection-group=orders ", "The field input of orders is indexed", "\n8 problems, 0 pieces of advice\n")
	taskguard(t, vars{"KINDS": "{}"}, "doctor", "--indexes", indexes).want(t, cli.ExitUsage, "KINDS: want a JSON array")
	taskguard(t, vars{}, "doctor", "--service", "no/such.yaml").want(t, cli.ExitUsage, `--service: "no/such.yaml" is neither a file nor the name of a service`)
	for _, file := range []string{t.TempDir(), wrote(t, "junk", []byte{0, 1, 2, 0xff, 0xfe, '\n', 0x1b, '[', '2', 'J'})} {
		o := taskguard(t, vars{}, "doctor", "--queue", file).want(t, cli.ExitFailed, "not readable: ", "\nnothing was read\n")
		if o.err != "" || strings.ContainsAny(o.out, "\x00\x1b") {
			t.Errorf("%s: %q", file, o.out+o.err)
		}
	}
}
