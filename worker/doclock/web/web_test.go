package web_test

import (
	"regexp"
	"testing"

	"taskguard/worker/doclock/web"
)

func TestTheModuleExportsTheSeedsFunctionsAndDependsOnNothing(t *testing.T) {
	data, err := web.Files.ReadFile("locks.js")
	if err != nil {
		t.Fatal(err)
	}
	module := string(data)
	for _, name := range []string{
		"acquireProjectLock", "renewProjectLock", "releaseProjectLock", "withProjectLock", "subscribeLockEvents",
	} {
		if !regexp.MustCompile(`(?m)^export (async )?function ` + name + `\(`).MatchString(module) {
			t.Errorf("%s is not exported", name)
		}
	}
	if found := regexp.MustCompile(`(?m)^import\b.*`).FindString(module); found != "" {
		t.Errorf("the module has %q, want no imports", found)
	}
}
