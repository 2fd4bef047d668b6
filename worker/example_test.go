package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"google.golang.org/api/option"

	"taskguard/emulator/firestore"
	"taskguard/worker"
)

type text struct{ Text string }

// A service with a kind of its own: jobs/{id} is run by a delivery of {"job_id": "…"} to
// /internal/tasks/job. The variables of cmd/worker configure it.
func Example() {
	words := worker.Kind{
		Name: "job", Collection: "jobs",
		Run: worker.Typed(func(_ context.Context, in text, _ worker.Job) (int, error) {
			return len(strings.Fields(in.Text)), nil
		}),
	}
	if err := serve(words); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(kinds ...worker.Kind) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	options, err := worker.FromEnv(os.LookupEnv)
	if err != nil {
		return err
	}
	guard, err := worker.Open(ctx, options)
	if err != nil {
		return err
	}
	server := &http.Server{Addr: ":8080", Handler: guard.Routes(kinds...)}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err = <-failed:
	case <-ctx.Done(): // Cloud Run gives the service 10 s
	}
	ctx = context.WithoutCancel(ctx)
	return errors.Join(err, guard.Shutdown(ctx), server.Shutdown(ctx))
}

// Whoever asks for the report first writes it; everybody gets the same one.
func ExampleDo() {
	if err := report(context.Background(), "2026-03"); err != nil {
		fmt.Println(err)
	}
	// Output:
	// writing
	// report of 2026-03
	// report of 2026-03
}

func report(ctx context.Context, month string) error {
	server := firestore.NewServer(firestore.Options{}) // in production: Firestore itself
	defer server.Close()
	conn, err := server.Dial()
	if err != nil {
		return err
	}
	guard, err := worker.Open(ctx, worker.Options{
		Project: "my-project", Auth: worker.CheckedByProxy(), FirestoreOptions: []option.ClientOption{option.WithGRPCConn(conn)},
	})
	if err != nil {
		return err
	}
	for range 2 {
		text, err := worker.Do(ctx, guard, "report-"+month, func(_ context.Context, _ worker.Job) (string, error) {
			fmt.Println("writing") // the work
			return "report of " + month, nil
		})
		if err != nil { // a *worker.RunningError has the time to retry
			return err
		}
		fmt.Println(text)
	}
	return guard.Shutdown(ctx)
}
