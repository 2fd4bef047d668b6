// Command httpservice serves two kinds of work with net/http. The variables of the worker
// configure it.
package main

import (
	"cmp"
	"context"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"taskguard/worker"

	"example.com/library/kinds"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	options, err := worker.FromEnv(os.LookupEnv)
	check(err)
	guard, err := worker.Open(ctx, options)
	check(err)

	mux, failed := http.NewServeMux(), make(chan error, 1)
	mux.Handle("POST "+kinds.Analyses.Path, guard.Handler(kinds.Analyses))
	mux.Handle("POST "+kinds.Jobs.Path, guard.Handler(kinds.Jobs))
	mux.Handle("POST /internal/tasks/recover", guard.Recovery())
	mux.Handle("GET /health/", guard.Health())
	server := &http.Server{Addr: ":" + cmp.Or(os.Getenv("PORT"), "8080"), Handler: mux}
	go func() { failed <- server.ListenAndServe() }()

	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Second) // Cloud Run waits 10 s
	defer cancel()
	check(errors.Join(err, guard.Shutdown(ctx), server.Shutdown(ctx)))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
