package proof

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// figures count events.
type figures map[string]int64

func (f figures) add(g figures) {
	for name, n := range g {
		f[name] += n
	}
}

// missing returns the expected figures that are zero.
func (f figures) missing(expected []string) (names []string) {
	for _, name := range expected {
		if f[name] == 0 {
			names = append(names, name)
		}
	}
	return names
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
