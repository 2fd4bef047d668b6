//go:build linux || darwin

package shell

import (
	"testing"

	"taskguard/internal/testing/examplestest"
)

func TestTheAnalyzerInShellContinues(t *testing.T) {
	examplestest.Continues(t, "exec:/bin/sh analyzer.sh")
}

func TestTheAnalyzerInShellChargesOnce(t *testing.T) {
	examplestest.Charges(t, "exec:/bin/sh charge.sh")
}
