package project_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskguard/internal/testing/must"
	"taskguard/locks/project"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two programs never hold the file at once. Each takes the lock 50 times and, while it has the lock,
// makes a file that both could not make at once.
func TestFile_Race(t *testing.T) {
	const raceEnv = "PROJECT_TEST_RACE" // the directory of the other programs
	if dir := os.Getenv(raceEnv); dir != "" {
		l := must.Get(project.New(project.Config{Project: "p", Dir: dir}))(t)
		o := options{Preferred: project.FileLock, Wait: time.Minute, Backoff: time.Millisecond}
		for range 50 {
			must.OK(t, l.WithProjectLock(t.Context(), o, func(context.Context, project.Lease) error {
				f, err := os.OpenFile(dir+"/mark", os.O_CREATE|os.O_EXCL, 0o600)
				if err != nil {
					return err
				}
				return errors.Join(f.Close(), os.Remove(dir+"/mark"))
			}))
		}
		return
	}

	dir := t.TempDir()
	var programs [2]*exec.Cmd
	for i := range programs {
		programs[i] = exec.Command(os.Args[0], "-test.run=^TestFile_Race$") //nolint:gosec // this test itself
		programs[i].Env, programs[i].Stdout = append(os.Environ(), raceEnv+"="+dir), t.Output()
		must.OK(t, programs[i].Start())
	}
	for _, p := range programs {
		must.OK(t, p.Wait())
	}
}
