package main

import (
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestTheExampleInGoRuns(t *testing.T) {
	examplestest.Check(t, "", examplestest.Build(t, "."))
}
