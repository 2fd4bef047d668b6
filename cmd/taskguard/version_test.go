package main

import (
	"runtime"
	"testing"
)

func TestTheVersionNamesTheBuild(t *testing.T) {
	for _, word := range []string{"version", "--version", "-v"} {
		taskguard(t, vars{}, word).want(t, exitDone, "taskguard ", runtime.Version())
	}
	o := taskguard(t, vars{}, "version", "--json").want(t, exitDone)
	if got := wantKeys(t, o.out, "version", "go"); got["go"] != runtime.Version() {
		t.Errorf("%v", got)
	}
}
