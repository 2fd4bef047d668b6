package lease_test

import (
	"context"
	"errors"
	"fmt"

	"taskguard/lease"
)

// A report is a record with a lease in it.
type report struct {
	Lease lease.Lease
	Text  string
}

func Example() {
	ctx := context.Background()
	store := &lease.Memory[report]{} // or a File, or the documents of a database
	store.Put("q3", report{})
	records, err := lease.NewRecords(store, func(r *report) *lease.Lease { return &r.Lease }, lease.Policy{})
	if err != nil {
		fmt.Println(err)
		return
	}

	hold, _, err := records.Acquire(ctx, "q3", "worker-1/delivery-1", lease.OnlyLease, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	var text string
	err = hold.Run(ctx, func(ctx context.Context) error {
		// Work here until ctx ends; pass the token to other systems that are written to.
		text = fmt.Sprintf("written under token %d", hold.Grant().Token)
		return context.Cause(ctx)
	}, nil)
	switch {
	case errors.Is(err, lease.ErrLost):
		fmt.Println("another holds it now")
	case err != nil:
		err = hold.End(ctx, lease.Releasing[report](false)) // for another attempt
	default:
		err = hold.End(ctx, lease.Finishing(func(r *report) { r.Text = text }))
	}
	fmt.Println(err)

	_, done, err := records.Acquire(ctx, "q3", "worker-2/delivery-2", lease.OnlyLease, nil)
	fmt.Println(done.Text, "-", err)
	// Output:
	// <nil>
	// written under token 1 - lease: already finished
}
