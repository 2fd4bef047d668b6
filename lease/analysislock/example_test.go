package analysislock_test

import (
	"context"
	"errors"
	"fmt"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// A delivery acquires the lock, runs the analysis and completes it. The next delivery of
// the same analysis is a skip.
func Example() {
	ctx := context.Background()
	store := &lease.Memory[analysislock.Analysis]{} // repo.Open has a store in Firestore
	store.Put("report-7", analysislock.Analysis{ID: "report-7", Status: analysislock.Queued, Input: "a text"})
	locks, err := analysislock.New(store, lease.Policy{MaxAttempts: 10}, 0, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, owner := range []string{"worker-1/delivery-1", "worker-2/delivery-2"} {
		if err := deliver(ctx, locks, "report-7", owner); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// attempt 1 under token 1 has the input "a text"
	// skipped: already_finished READY
}

func deliver(ctx context.Context, locks *analysislock.Locks, id, owner string) error {
	got, err := locks.AcquireAnalysisLock(ctx, id, owner, 0, analysislock.AcquireOptions{})
	if err != nil {
		return err
	}
	if !got.Acquired {
		fmt.Println("skipped:", got.Reason, got.Status)
		return nil
	}
	var result any
	work, err := locks.Work(ctx, got.Hold)
	if err != nil {
		return err
	}
	err = got.Hold.Run(ctx, func(ctx context.Context) error {
		// Work here until ctx ends. The lock is renewed meanwhile.
		fmt.Printf("attempt %d under token %d has the input %s\n", got.Attempt, got.Grant.Token, work.Input)
		result = map[string]any{"words": 2}
		return context.Cause(ctx)
	}, nil)
	if err != nil {
		// After lease.ErrLost another owner has the lock, and End changes nothing.
		release := analysislock.Releasing(got.Hold.Now(), analysislock.OutcomeRetry, "", false)
		return errors.Join(err, got.Hold.End(context.WithoutCancel(ctx), release))
	}
	return got.Hold.End(ctx, analysislock.Completing(got.Hold.Now(), result))
}
