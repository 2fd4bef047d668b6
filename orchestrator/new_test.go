package orchestrator_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskguard/orchestrator"
)

func TestNewRefusesOtherSpecs(t *testing.T) {
	dir := word(t, t.TempDir())
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for spec, want := range map[string]string{
		"":                          "no analyzer named",
		"document":                  "without a scheme",
		"s3cret@host":               "without a scheme",
		"ftp://u:s3cret@host/":      `no analyzer scheme "ftp"`,
		"builtin:":                  "no builtin analyzer",
		"builtin:nope":              `no builtin analyzer "nope"`,
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
		"http://host:port/":         "does not parse",
	} {
		a, err := orchestrator.New(spec, orchestrator.Options{})
		switch {
		case err == nil:
			t.Errorf("%q: got %v, want an error", spec, a)
		case !strings.HasPrefix(err.Error(), "orchestrator: ") || !strings.Contains(err.Error(), want):
			t.Errorf("%q: got %q, want %q in it", spec, err, want)
		case strings.Contains(err.Error(), "s3cret"):
			t.Errorf("%q: %q shows a secret", spec, err)
		}
	}
}

func TestNewFindsAProgramOnPath(t *testing.T) {
	for _, spec := range []string{"exec:sh -c true", "exec: sh", "builtin:document", "http://host", "https://u:p@host:1/x?y"} {
		if _, err := orchestrator.New(spec, orchestrator.Options{}); err != nil {
			t.Errorf("%q: %v", spec, err)
		}
	}
}
