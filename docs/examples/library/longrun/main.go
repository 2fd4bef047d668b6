// Command longrun serves deliveries, and runs each report in a separate process, as a Cloud Run job would.
// docs/long.md describes it.
//
//	longrun        the service
//	longrun ID     one run, which the service starts
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"taskguard/worker"
)

var reports = worker.Kind{
	Name: "report", Collection: "reports", RunTimeout: 3 * time.Hour,
	Run:   worker.Typed(writeReport), // in the job
	Start: startJob,                  // in the service, for each delivery
}

func main() {
	if len(os.Args) > 1 {
		runJob()
	} else {
		serve()
	}
}

// runJob runs one report, in the job.
func runJob() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	options, err := worker.FromEnvNoHTTP(os.LookupEnv)
	check(err)
	guard, err := worker.Open(ctx, options)
	check(err)
	ran, err := guard.MustRegister(reports).Run(ctx, os.Args[1])
	log.Println(ran.Outcome, err)
}

// startJob begins the run of a report elsewhere: here in another process, in production in an execution of a
// Cloud Run job.
func startJob(_ context.Context, id string) error {
	job := exec.Command(os.Args[0], id) //nolint:noctx // it outlives the delivery
	job.Stderr = os.Stderr
	if err := job.Start(); err != nil {
		return err
	}
	go func() { _ = job.Wait() }() // its end is in the document
	return nil
}

// writeReport is the work: it reports its progress and stops when ctx ends.
func writeReport(ctx context.Context, in struct{ Month string }, job worker.Job) (string, error) {
	job.Report(0.5, "half of "+in.Month)
	return fmt.Sprintf("report of %s by process %d", in.Month, os.Getpid()), ctx.Err()
}

// serve answers deliveries until SIGTERM.
func serve() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	options, err := worker.FromEnv(os.LookupEnv)
	check(err)
	guard, err := worker.Open(ctx, options)
	check(err)
	routes, err := guard.Routes(guard.MustRegister(reports))
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
