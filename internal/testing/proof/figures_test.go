package proof

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"taskguard/lease/leasetest"
)

// figure is an event that is counted: a fault, or anything else.
type figure = leasetest.Fault

type figures map[figure]int64

func (f figures) add(g figures) {
	for name, n := range g {
		f[name] += n
	}
}

// expect fails the test if a figure is zero: then it proves nothing.
func (f figures) expect(t *testing.T, expected []figure) {
	t.Helper()
	for _, name := range expected {
		if f[name] == 0 {
			t.Errorf("never happened, so this proves nothing: %q", name)
		}
	}
}

func (f figures) String() string {
	var s strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(&s, "%50s  %d\n", name, f[name])
	}
	return s.String()
}

// number returns the value of an environment variable, or its default.
func number(t *testing.T, name string, unset int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return unset
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		t.Fatalf("%s=%q is not a number", name, s)
	}
	return n
}
