package orchestrator_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskguard/orchestrator"
)

func TestNewRefusesOtherSpecsAndShowsNoSecret(t *testing.T) {
	dir := word(t, t.TempDir())
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const other = "is not builtin:document, exec:"
	for spec, want := range map[string]string{
		"": other, "document": other, "s3cret@host": other, "ftp://u:s3cret@host/": other, "builtin:": other, "builtin:nope": other,
		"exec:":                     "names no program",
		"exec:   ":                  "names no program",
		"exec:no-such-program-here": `"no-such-program-here": executable file not found`,
		"exec:" + dir:               dir,
		"exec:" + plain:             "permission denied",
		"exec:" + plain + "-absent": "no such file",
		"http://":                   "no host",
		"http://:80/":               "no host",
		"https:///path?s3cret":      "no host",
		"http:opaque":               "no host",
		"http://u:s3cret/x@host/":   "does not parse",
	} {
		_, err := orchestrator.New(spec, orchestrator.Options{})
		if err == nil || !strings.HasPrefix(err.Error(), "orchestrator: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: got %v, want %q in it", spec, err, want)
		}
	}
	for _, spec := range []string{"exec:sh -c true", "exec: sh", "builtin:document", "http://host", "https://u:p@host:1/x?y"} {
		newAnalyzer(t, spec, orchestrator.Options{})
	}
}
