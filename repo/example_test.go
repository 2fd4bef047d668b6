package repo_test

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/api/option"

	"taskguard/emulator/firestore"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// An application creates an analysis, and a worker runs it. Against Firestore itself,
// Open needs no option of Google's client.
func Example() {
	if err := runOne(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// READY map[characters:6] in 1 attempt
}

func runOne(ctx context.Context) (err error) {
	server := firestore.NewServer(firestore.Options{})
	defer server.Close()
	conn, err := server.Dial()
	if err != nil {
		return err
	}
	analyses, err := repo.Open(ctx, "my-project", repo.Options{}, option.WithGRPCConn(conn))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, analyses.Close()) }()

	if err := analyses.Create(ctx, "report-7", map[string]any{"text": "a text"}, repo.CreateOptions{}); err != nil {
		return err
	}
	got, err := analyses.AcquireAnalysisLock(ctx, "report-7", "worker-1/delivery-1", 0, analysislock.AcquireOptions{})
	if err != nil || !got.Acquired {
		return fmt.Errorf("skipped: %s: %w", got.Reason, err)
	}
	err = got.Hold.Run(ctx, context.Cause, nil) // the work
	if err != nil {
		return err
	}
	result := map[string]any{"characters": int64(6)}
	if err := got.Hold.End(ctx, analysislock.Completing(got.Hold.Now(), result)); err != nil {
		return err
	}
	done, err := analyses.Get(ctx, "report-7")
	if err != nil {
		return err
	}
	fmt.Println(done.Status, done.Result, "in", done.Attempts, "attempt")
	return nil
}
