// Package shell holds the test of analyzer.sh, the example of an analyzer in a shell's
// language.
package shell
