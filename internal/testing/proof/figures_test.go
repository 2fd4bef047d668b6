package proof

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// figures count events. Those named longest or largest are durations in nanoseconds;
// the largest is kept.
type figures map[string]int64

func (f figures) most(name string, d time.Duration) { f[name] = max(f[name], int64(d)) }

func isTime(name string) bool {
	return strings.HasPrefix(name, "longest") || strings.HasPrefix(name, "largest")
}

func (f figures) add(g figures) {
	for name, n := range g {
		if isTime(name) {
			f.most(name, time.Duration(n))
		} else {
			f[name] += n
		}
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
		if isTime(name) {
			fmt.Fprintf(&s, "%50s  %v\n", name, time.Duration(f[name]).Round(time.Millisecond))
		} else {
			fmt.Fprintf(&s, "%50s  %d\n", name, f[name])
		}
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
