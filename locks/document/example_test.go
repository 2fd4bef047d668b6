package document_test

import (
	"context"
	"errors"
	"fmt"

	"taskguard/lease"
	"taskguard/locks/document"
)

// Two sessions want to edit the same document.
func Example() {
	ctx := context.Background()
	store := &lease.Memory[document.Lock]{} // repo.OpenRooms has a store in Firestore
	locks, err := document.New(store, document.DefaultTTL)
	if err != nil {
		fmt.Println(err)
		return
	}
	mine, err := locks.AcquireAs(ctx, "invoice-7", "session-a", document.Profile{Name: "Ada"})
	if err != nil {
		fmt.Println(err)
		return
	}
	// The session that edits calls locks.Extend every few seconds.

	_, err = locks.Acquire(ctx, "invoice-7", "session-b")
	var held *document.HeldError
	fmt.Println("session-b:", errors.As(err, &held))
	others, err := locks.Get(ctx, "invoice-7", "session-b")
	fmt.Println("session-b sees", others.Lock.Name, err)

	// Right before a save, the session proves that it still has the lock.
	_, err = locks.Confirm(ctx, "invoice-7", "session-a", mine.Lock.Token)
	fmt.Println("session-a may save:", err == nil)
	fmt.Println(locks.Release(ctx, "invoice-7", "session-a"))
	// Output:
	// session-b: true
	// session-b sees Ada <nil>
	// session-a may save: true
	// true <nil>
}
