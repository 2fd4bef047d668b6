package fence_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"

	embedded "taskguard/emulator/firestore"
	"taskguard/repo/fence"
)

// Worker 1 pauses after its work. Worker 2 acquires the lock and writes its result. Then
// worker 1 continues.
func ExampleFence_Commit() {
	ctx := context.Background()
	client, closeAll := database(ctx)
	defer closeAll()
	fences, err := fence.New(client, fence.Options{})
	if err != nil {
		panic(err)
	}
	invoice := client.Doc("invoices/2026-11")
	for _, worker := range []struct {
		token int64 // job.LockToken
		name  string
	}{{8, "worker 2"}, {7, "worker 1"}} {
		err := fences.Commit(ctx, "2026-11", worker.token, func(_ context.Context, tx *firestore.Transaction) error {
			return tx.Set(invoice, map[string]any{"writtenBy": worker.name})
		})
		switch {
		case errors.Is(err, fence.ErrStale):
			fmt.Println(worker.name, "is refused:", err)
		case err != nil:
			panic(err)
		}
	}
	snap, err := invoice.Get(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println("written by", snap.Data()["writtenBy"])
	// Output:
	// worker 1 is refused: fence: stale token: 7 is lower than 8
	// written by worker 2
}

// A service that sends mails for workers, which call it with the headers of an analyzer.
func ExampleFence_Middleware() {
	client, closeAll := database(context.Background())
	defer closeAll()
	fences, err := fence.New(client, fence.Options{})
	if err != nil {
		panic(err)
	}
	mails := fences.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println("a mail is sent, token", r.Header.Get("X-Lock-Token"))
	}))
	for _, token := range []string{"8", "7"} { // the late worker has 7
		r, w := httptest.NewRequest(http.MethodPost, "/mails", http.NoBody), httptest.NewRecorder()
		r.Header.Set("X-Lock-Token", token)
		r.Header.Set("Idempotency-Key", "2026-11")
		mails.ServeHTTP(w, r)
		fmt.Println(strings.TrimSpace(fmt.Sprint(w.Code, " ", w.Body)))
	}
	// Output:
	// a mail is sent, token 8
	// 200
	// 409 {"error":"fence: stale token: 7 is lower than 8","reason":"stale_token"}
}

// database returns a client of an embedded Firestore.
func database(ctx context.Context) (client *firestore.Client, closeAll func()) {
	server := embedded.NewServer(embedded.Options{})
	conn, err := server.Dial()
	if err != nil {
		panic(err)
	}
	client, err = firestore.NewClient(ctx, "example", option.WithGRPCConn(conn))
	if err != nil {
		panic(err)
	}
	return client, func() { _ = client.Close(); server.Close() }
}
