package simulate

import (
	"runtime"
	"strings"
	"testing"
)

func TestASeedHappensTheSameEachTimeOnAnyNumberOfProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	for _, seed := range []uint64{0, 1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13} {
		var first string
		for _, n := range []int{1, 2, 8} {
			runtime.GOMAXPROCS(n)
			got := run(t, seed, dice(seed).profile(), nil).transcript()
			if first == "" {
				first = got
			}
			if line, was, is := differ(first, got); line > 0 {
				t.Errorf("seed %d with %d processors, line %d:\n%s\nwant\n%s", seed, n, line, is, was)
			}
		}
	}
}

// differ finds the first line in which two histories are not the same; 0: none.
func differ(a, b string) (n int, was, is string) {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for n := range max(len(as), len(bs)) {
		was, is = "", ""
		if n < len(as) {
			was = as[n]
		}
		if n < len(bs) {
			is = bs[n]
		}
		if was != is {
			return n + 1, was, is
		}
	}
	return 0, "", ""
}
