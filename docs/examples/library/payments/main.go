// Command payments has a provider charge, refund and mail, each once; docs/payments.md describes it.
// The variables of the worker configure it, and PROVIDER_URL.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/worker"

	"example.com/library/payments/provider"
)

// run is a function that is to take effect once.
type run = func(context.Context, provider.Payment, worker.Job) (provider.Receipt, error)

var orders = worker.Kind{Name: "order", Collection: "order_work", Run: worker.Typed(act("charge"))}

type service struct {
	guard  *worker.Guard
	orders *worker.Work
	db     *firestore.Client
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	options, err := worker.FromEnv(os.LookupEnv)
	check(err)
	guard, err := worker.Open(ctx, options)
	check(err)
	work := guard.MustRegister(orders)
	routes, err := guard.Routes(work) // deliveries, recovery and health
	check(err)
	db, err := firestore.NewClientWithDatabase(ctx, cmp.Or(options.Project, firestore.DetectProjectID), options.Database)
	check(err)

	s, mux, failed := service{guard, work, db}, http.NewServeMux(), make(chan error, 1)
	mux.Handle("POST /charges", s.once("charge", act("charge")))
	mux.Handle("POST /refunds", s.once("refund", act("refund")))
	mux.Handle("POST /orders", s.once("order", s.order))
	mux.HandleFunc("POST /webhooks/payment", s.webhook)
	mux.Handle("/", routes)
	server := &http.Server{Addr: ":" + cmp.Or(os.Getenv("PORT"), "8080"), Handler: mux}
	go func() { failed <- server.ListenAndServe() }()

	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Second) // Cloud Run waits 10 s
	defer cancel()
	check(errors.Join(err, guard.Shutdown(ctx), server.Shutdown(ctx), db.Close()))
}

// act returns a run that has the provider do an act. The guard lets one run at a time do it. Once,
// and the key for the provider, are for a run that dies between the act and the commit of its result.
func act(name string) run {
	return func(ctx context.Context, p provider.Payment, job worker.Job) (provider.Receipt, error) {
		client, key := provider.Client(os.Getenv("PROVIDER_URL")), job.Key(name) // the same for all attempts
		do := func(ctx context.Context) (provider.Receipt, error) {
			r, err := client.Do(ctx, name+"s", key, p)
			if errors.Is(err, provider.ErrDeclined) {
				err = worker.NotDone(worker.Permanent("declined", err.Error(), err))
			}
			return r, err
		}
		find := func(ctx context.Context) (provider.Receipt, bool, error) { return client.Find(ctx, name+"s", key) }
		return worker.Once(ctx, job, name, do, worker.Find(find))
	}
}

// once returns a handler of requests with an Idempotency-Key. It uses the middleware, and not Do,
// which would not compare the requests and repeat the answer. A refund with the key of a charge has
// its own record, because it is another operation.
func (s service) once(operation string, f run) http.Handler {
	// A client must not choose its account: replace the header by what you have authenticated.
	account := func(r *http.Request) string { return r.Header.Get("X-Account") }
	// Keep is ten years, as long as the orders are kept: later, another order with an old key would find the old one.
	o := worker.IdempotentOptions{Operation: operation, Scope: account, Do: worker.DoOptions{Keep: 87600 * time.Hour}}
	return s.guard.Idempotent(o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var p provider.Payment
		job, ok := worker.JobFromContext(r.Context()) // not ok: Optional is set, and the request has no key
		if err := json.NewDecoder(r.Body).Decode(&p); !ok || err != nil || p.Cents <= 0 {
			http.Error(w, "send an Idempotency-Key, and cents that are a positive integer", http.StatusBadRequest)
			return
		}
		receipt, err := f(r.Context(), p, job)
		answer(w, receipt, err)
	}))
}

// order creates an order and its work in one transaction. A repetition after a crash finds both,
// because the id comes from the request's key.
func (s service) order(ctx context.Context, p provider.Payment, job worker.Job) (r provider.Receipt, err error) {
	id := job.AnalysisID
	err = s.db.RunTransaction(ctx, func(_ context.Context, tx *firestore.Transaction) error {
		work, err := s.orders.NewDocument(p)
		return errors.Join(err, tx.Create(s.db.Doc("orders/"+id), p), tx.Create(s.db.Doc("order_work/"+id), work))
	})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return r, err
	}
	if err := s.orders.Book(ctx, id); err != nil {
		log.Print(err) // recovery books it within one TTL and a minute
	}
	return provider.Receipt{ID: id}, nil
}

// webhook mails a receipt once for an event, which the provider sends until the answer is 200.
func (s service) webhook(w http.ResponseWriter, r *http.Request) {
	var event provider.Event
	// Check the provider's signature here, with its library, before you use the event.
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&event); err != nil || event.ID == "" {
		http.Error(w, "this is no event", http.StatusBadRequest)
		return
	}
	// Keep is longer than the provider repeats an event.
	out, err := worker.DoOutcome(r.Context(), s.guard, "event", event.ID, worker.DoOptions{Keep: 720 * time.Hour},
		func(ctx context.Context, job worker.Job) (provider.Receipt, error) {
			return act("mail")(ctx, event.Payment, job)
		})
	answer(w, out.Value, err)
}

// answer answers 402 only if the provider has declined the act. Other permanent errors do not mean that
// it was not done. After 503 the sender repeats its request; then the act is found, or done, or still runs.
func answer(w http.ResponseWriter, r provider.Receipt, err error) {
	if err == nil {
		_ = json.NewEncoder(w).Encode(r) // the sender may have gone
		return
	}
	code := http.StatusServiceUnavailable
	if refused, ok := errors.AsType[*worker.PermanentError](err); ok && refused.Code == "declined" {
		code = http.StatusPaymentRequired
	}
	log.Print(err)
	http.Error(w, http.StatusText(code), code)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
