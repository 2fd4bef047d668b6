package main

import (
	"testing"

	"taskguard/docs/examples/examplestest"
)

func TestTheExampleInGoRuns(t *testing.T) {
	examplestest.Check(t, "", examplestest.Build(t, "."))
}
