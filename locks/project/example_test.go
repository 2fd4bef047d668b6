package project_test

import (
	"context"
	"fmt"
	"os"

	"taskguard/locks/project"
)

func ExampleLocker_WithProjectLock() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	l, err := project.New(project.Config{Project: "imgponic", Dir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Subscribe(func(e project.Event) { fmt.Println(e.Type, e.Strategy) })()
	err = l.WithProjectLock(context.Background(), project.AcquireOptions{Preferred: project.FileLock},
		func(_ context.Context, ls project.Lease) error {
			fmt.Println("saving under", ls.Resource)
			return nil
		})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// lock:attempt file-lock
	// lock:acquired file-lock
	// lock:renew-scheduled file-lock
	// saving under imgponic:project
	// lock:release-requested file-lock
	// lock:attempt file-lock
	// lock:released file-lock
}
