package project_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskguard/locks/project"
)

// raceEnv names the directory in which the test binary races as another program.
const raceEnv = "PROJECT_TEST_RACE"

func TestMain(m *testing.M) {
	dir := os.Getenv(raceEnv)
	if dir == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if err := race(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// race takes the lock 50 times and, while it has the lock, makes a file that two
// programs could not make at once.
func race(dir string) error {
	l, err := project.New(project.Config{Project: "p", Dir: dir})
	for n := 0; n < 50 && err == nil; n++ {
		o := options{Preferred: project.FileLock, Wait: time.Minute, Backoff: time.Millisecond}
		err = l.WithProjectLock(context.Background(), o, func(context.Context, project.Lease) error {
			f, err := os.OpenFile(dir+"/mark", os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			return errors.Join(f.Close(), os.Remove(dir+"/mark"))
		})
	}
	return err
}

// Two programs never hold the file at once.
func TestFile_Race(t *testing.T) {
	dir := t.TempDir()
	var programs [2]*exec.Cmd
	for i := range programs {
		programs[i] = exec.Command(os.Args[0]) //nolint:gosec // this test itself
		programs[i].Env = append(os.Environ(), raceEnv+"="+dir)
		programs[i].Stderr = t.Output()
		check(t, programs[i].Start())
	}
	for _, p := range programs {
		check(t, p.Wait())
	}
}
