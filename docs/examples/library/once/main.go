// Command once runs a function once for a key, and prints its result:
//
//	go run ./once KEY
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"taskguard/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	guard, err := worker.Open(ctx, worker.Options{})
	check(err)
	result, err := worker.Do(ctx, guard, "report", os.Args[1], work)
	check(err) // a *worker.RunningError has the time to wait
	fmt.Println(result)
	check(guard.Shutdown(ctx))
}

// work is what runs once. Its side effects take the token, so that a receiver can refuse an
// older run.
func work(ctx context.Context, job worker.Job) (string, error) {
	at := time.Now().Format(time.RFC3339Nano)
	return fmt.Sprintf("done at %s with token %d", at, job.LockToken), ctx.Err()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
