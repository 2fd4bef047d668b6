package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease/leasetest"
)

// before is the commit that counts as the version before this one until a version has a tag.
const before = "700732a0c286fff1238cde25dad14feb87464b67"

// repository is the top of the source.
const repository = "../../.."

// release is a version of the worker.
type release struct {
	name string // a tag, or a commit
	file string // of the program; empty: this version
}

// earlier builds the worker of the version before this one: the newest tag, or before. If a shallow clone lacks it,
// it is fetched. Without it the test is skipped, or fails with REQUIRE_UPGRADE=1.
func earlier(t *testing.T) release {
	t.Helper()
	name := before
	// HEAD^: the commit of a release must not be compared with itself.
	if tag, err := git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"); err == nil {
		name = tag
	}
	if _, err := git("cat-file", "-e", name+"^{commit}"); err != nil {
		if _, err := git("fetch", "--quiet", "--depth=1", "origin", name); err != nil {
			reason := fmt.Sprintf("no comparison with version %s: this clone does not have it: %v", name, err)
			if os.Getenv("REQUIRE_UPGRADE") != "" {
				t.Fatal(reason)
			}
			t.Skip(reason)
		}
	}

	folder := t.TempDir()
	archive, source := filepath.Join(folder, "source.tar"), filepath.Join(folder, "source")
	file := filepath.Join(folder, "worker")
	must.OK(t, os.Mkdir(source, 0o755))
	must.Get(git("archive", "--output="+archive, name))(t)
	must.Get(output(exec.Command("tar", "-xf", archive, "-C", source)))(t)

	stamp := "-ldflags=-X=taskguard/internal/build.commit=" + name
	build := exec.Command("go", "build", "-trimpath", stamp, "-o", file, "./cmd/worker")
	build.Dir = source
	must.Get(output(build))(t)
	return release{name, file}
}

func git(arguments ...string) (text string, err error) {
	return output(exec.Command("git", append([]string{"-C", repository}, arguments...)...))
}

// output runs cmd. Its error has what cmd wrote to its standard error.
func output(cmd *exec.Cmd) (text string, err error) {
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// TestUpgrade runs the worker of the version before this one and this one beside each other, on the same documents and
// tasks, while workers are killed, stopped and paused, and calls are lost. Each worker is replaced in turn, as in
// a rolling release, and everything ends READY as in TestChaos. UPGRADE is how long that takes.
func TestUpgrade(t *testing.T) {
	long := os.Getenv("UPGRADE")
	if long == "" {
		t.Skip("UPGRADE is not set; make upgrade sets it")
	}
	duration := must.Get(time.ParseDuration(long))(t)
	old := earlier(t)
	t.Logf("this version, and %s", old.name)

	t.Run("upgrade", func(t *testing.T) {
		t.Parallel()
		replaceWorkers(t, duration, old, release{})
	})
	t.Run("rollback", func(t *testing.T) {
		t.Parallel()
		replaceWorkers(t, duration, release{}, old)
	})
	t.Run("slots of keys", func(t *testing.T) {
		t.Parallel()
		chaosOfKeys(t, 3, old.file, "")
	})
}

// The figures that say which version continued whose run.
const (
	upgraded   figure = "this version continued a run of the one before"
	rolledBack figure = "the one before continued a run of this version"
)

// expectedOfUpgrades are the figures that must not be zero, beside the one for the direction.
var expectedOfUpgrades = []figure{
	leasetest.Crash, leasetest.Stop, leasetest.Pause, leasetest.Unavailable,
	"steals", "workers replaced",
}

// replaceWorkers begins with workers of one release, and replaces each with the other's.
func replaceWorkers(t *testing.T, duration time.Duration, from, to release) {
	t.Helper()
	size := size{
		duration: duration, analyses: int(2 * duration.Seconds()), deliveries: 2, workers: 4, every: 8,
		seed: rand.Uint64(), ttl: 1500 * time.Millisecond,
		runTimeout: 2250 * time.Millisecond, retryMax: 5 * time.Second,
	}
	t.Logf("%+v", size)
	c := newChaos(t, size)
	for _, s := range c.slots {
		s.program = from.file
	}
	stop := c.begin(t)
	c.createAnalyses(t)
	c.injectFaults(t, func(ctx context.Context) {
		for _, s := range c.slots {
			pause(ctx, size.duration/time.Duration(size.workers+1))
			c.replaceIn(s, to)
		}
	})
	c.awaitAll(t)
	c.drain(t)
	stop()
	c.countChanges(cmp.Or(from.name, to.name))
	direction := upgraded
	if from.file == "" {
		direction = rolledBack
	}
	c.judgeAll(t, slices.Concat(expectedOfUpgrades, []figure{direction}))
}

// replaceIn stops the worker in s during a run, as Cloud Run does. keepRunning starts one of that release. On a busy
// machine it takes a while until there is a run; without one the worker is replaced all the same.
func (c *chaos) replaceIn(s *slot, to release) {
	r := c.random("replace")
	for range 10 {
		if _, victim := c.target([]*slot{s}, r); victim.analysis != "" {
			break
		}
	}
	s.mu.Lock()
	s.program = to.file
	s.mu.Unlock()
	c.check(s.worker().terminate())
	c.add("workers replaced")
}

// countChanges counts the runs that continued another version's, from its checkpoint or not. before is the name of
// the version before this one.
func (c *chaos) countChanges(before string) {
	for i := range c.analyses {
		runs := c.of(id(i))
		for j := 1; j < len(runs); j++ {
			older := c.commits[runs[j].worker] == before
			if older == (c.commits[runs[j-1].worker] == before) {
				continue
			}
			what := upgraded
			if older {
				what = rolledBack
			}
			if c.counts[what]++; runs[j].resumed.Unit > 0 {
				c.counts[what+", from its checkpoint"]++
			}
		}
	}
}
