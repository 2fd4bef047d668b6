// Command service is the program with which docs/library.md begins.
package main

import (
	"cmp"
	"context"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"taskguard/worker"
)

var words = worker.Kind{Name: "words", Collection: "words", Run: worker.Typed(
	func(_ context.Context, in struct{ Text string }, _ worker.Job) (int, error) {
		return len(strings.Fields(in.Text)), nil
	})}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	options, err := worker.FromEnv(os.LookupEnv)
	check(err)
	guard, err := worker.Open(ctx, options)
	check(err)
	routes, err := guard.Routes(guard.MustRegister(words))
	check(err)
	go func() { check(http.ListenAndServe(":"+cmp.Or(os.Getenv("PORT"), "8080"), routes)) }()
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Second) // Cloud Run waits 10 s
	defer cancel()
	check(guard.Shutdown(ctx))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
