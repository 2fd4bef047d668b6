// Command echoservice serves two kinds of work with Echo. The variables of the worker
// configure it.
package main

import (
	"cmp"
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"

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

	e, failed := echo.New(), make(chan error, 1)
	for _, kind := range []worker.Kind{kinds.Analyses, kinds.Jobs} {
		work, err := guard.Register(kind)
		check(err)
		e.POST(work.Path, work.Echo())
	}
	e.POST("/internal/tasks/recover", echo.WrapHandler(guard.Recovery()))
	e.GET("/health/*", echo.WrapHandler(guard.Health()))
	go func() { failed <- e.Start(":" + cmp.Or(os.Getenv("PORT"), "8080")) }()

	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Second) // Cloud Run waits 10 s
	defer cancel()
	check(errors.Join(err, guard.Shutdown(ctx), e.Shutdown(ctx)))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
