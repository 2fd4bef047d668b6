// Command after is the service of the command before under a guard, as docs/from-go.md changes it.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"taskguard/worker"
)

// reports are the documents that the service has already, with its own words for the state.
var reports = worker.Kind{
	Name: "report", Collection: "reports", Path: "/tasks/report", IDField: "id",
	Fields: worker.Fields{Status: "state", Queued: "queued", Processing: "running", Finished: "done", Failed: "failed"},
	Run: worker.Typed(func(ctx context.Context, in Input, _ worker.Job) (int, error) {
		return write(ctx, in)
	}),
}

type service struct{ reports *worker.Work }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	slog.SetDefault(worker.NewJSONLog(os.Stdout)) // the alerts read severity and message
	options, err := worker.FromEnv(os.LookupEnv)
	check(err)
	guard, err := worker.Open(ctx, options)
	check(err)
	s := &service{reports: guard.MustRegister(reports)}

	http.HandleFunc("POST /reports/{id}", s.create)
	http.Handle("POST "+s.reports.Path, s.reports.Handler())
	http.Handle("POST /internal/tasks/recover", guard.Recovery())
	http.Handle("GET /health/", guard.Health())
	port := cmp.Or(os.Getenv("PORT"), "8080")
	slog.Info("listening", "port", port)
	go func() { check(http.ListenAndServe(":"+port, nil)) }()

	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Second) // Cloud Run waits 10 s
	defer cancel()
	check(guard.Shutdown(ctx))
}

func (s *service) create(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	var in Input
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	_, err := s.reports.Submit(ctx, id, in)
	switch {
	case err == nil:
		w.WriteHeader(http.StatusAccepted)
	case errors.Is(err, worker.ErrInvalidKey):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case errors.Is(err, worker.ErrOtherInput):
		http.Error(w, err.Error(), http.StatusConflict)
	default: // such as ErrNotBooked: the client calls again with the same id
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// Input is what a report is made of.
type Input struct {
	Pages int `firestore:"pages" json:"pages"`
}

// write writes a report.
func write(ctx context.Context, in Input) (sum int, err error) {
	for page := 1; page <= in.Pages; page++ {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond): // the expensive work on one page
			sum += page
		}
	}
	return sum, nil
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
