package main

import (
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestExample(t *testing.T) {
	examplestest.Check(t, "", examplestest.Build(t, "."))
}
