package worker_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/api/option"

	"taskguard/emulator/firestore"
	"taskguard/worker"
)

type text struct{ Text string }

// jobs/{id} is run by a delivery of {"job_id": "…"} to /internal/tasks/job.
var words = worker.Kind{
	Name: "job", Collection: "jobs",
	Run: worker.Typed(func(_ context.Context, in text, _ worker.Job) (int, error) {
		return len(strings.Fields(in.Text)), nil
	}),
}

// A service with its own kind. The variables of cmd/worker configure it.
func Example() {
	if err := serve(words); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(kind worker.Kind) error {
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
	work, err := guard.Register(kind)
	if err != nil {
		return err
	}
	routes, err := guard.Routes(work)
	if err != nil {
		return err
	}
	server := &http.Server{Addr: ":8080", Handler: routes}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err = <-failed:
	case <-ctx.Done(): // SIGKILL follows Cloud Run's SIGTERM after 10 s
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 9*time.Second)
	defer cancel()
	return errors.Join(err, guard.Shutdown(ctx), server.Shutdown(ctx))
}

// Cloud Logging reads the fields severity and message of a line of JSON. The dashboard and
// the alerts of deploy use them.
func ExampleOptions() {
	options, err := worker.FromEnv(os.LookupEnv)
	if err != nil {
		fmt.Println(err)
		return
	}
	options.Log = worker.NewJSONLog(os.Stdout)
	guard, err := worker.Open(context.Background(), options)
	fmt.Println(guard, err)
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
	guard, done := embedded(ctx)
	defer done()
	for range 2 {
		text, err := worker.Do(ctx, guard, "report", month, func(_ context.Context, _ worker.Job) (string, error) {
			fmt.Println("writing") // the work
			return "report of " + month, nil
		})
		if err != nil { // a *worker.RunningError has the time to wait
			return err
		}
		fmt.Println(text)
	}
	return nil
}

// A request is processed once for its key. The client repeats it until it gets an answer.
func ExampleGuard_Idempotent() {
	ctx := context.Background()
	guard, done := embedded(ctx)
	defer done()

	once := guard.Idempotent(worker.IdempotentOptions{
		Scope: func(r *http.Request) string { return r.Header.Get("X-Account") }, // as authenticated
	})
	mux := http.NewServeMux()
	mux.Handle("POST /orders", once(http.HandlerFunc(createOrder)))

	for _, body := range []string{"a lamp", "a lamp", "two lamps"} {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders", strings.NewReader(body))
		r.Header.Set("X-Account", "ada")
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43e8-bc93-6894a57f9324"`)
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, r)
		fmt.Printf("%d %q %s\n", answer.Code, answer.Header().Get("Idempotency-Replayed"), answer.Body)
	}
	// Output:
	// 201 "" attempt 1
	// 201 "true" attempt 1
	// 422 "" {"detail":"The Idempotency-Key was used with another method, URL, Content-Type or body.","status":422,"title":"Unprocessable Entity","type":"urn:problem-type:idempotency:key-reused"}
}

func createOrder(w http.ResponseWriter, r *http.Request) {
	job, ok := worker.JobFromContext(r.Context())
	if !ok {
		http.Error(w, "this route is not behind Idempotent", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprint(w, "attempt ", job.Attempt)
}

// A document is created and its delivery booked once, however often Submit is called.
func ExampleWork_Submit() {
	ctx := context.Background()
	guard, done := embedded(ctx)
	defer done()
	work := guard.MustRegister(words)
	for _, input := range []text{{"to be"}, {"to be"}, {"or not to be"}} {
		s, err := work.Submit(ctx, "an-id", input)
		fmt.Println(s.Created, s.Status, errors.Is(err, worker.ErrOtherInput))
	}
	// Output:
	// true QUEUED false
	// false QUEUED false
	// false QUEUED true
}

// A delivery runs the work, and is answered when it has ended.
func ExampleWork_Handler() {
	ctx := context.Background()
	guard, done := embedded(ctx)
	defer done()
	work, mux := guard.MustRegister(words), http.NewServeMux()
	mux.Handle("POST "+work.Path, work.Handler())

	if _, err := work.Submit(ctx, "an-id", text{"to be"}); err != nil {
		fmt.Println(err)
	}
	for range 2 { // in production: Cloud Tasks
		answer := httptest.NewRecorder()
		body := strings.NewReader(`{"job_id":"an-id"}`)
		mux.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodPost, "/internal/tasks/job", body))
		fmt.Print(answer.Code, " ", answer.Body)
	}
	// Output:
	// 200 {"job_id":"an-id","acquired":true,"status":"READY","lock_token":1}
	// 200 {"job_id":"an-id","acquired":false,"status":"READY","reason":"already_finished"}
}

// rateLimitError is what the client of a provider returns for its 429.
type rateLimitError struct{ wait time.Duration }

func (e *rateLimitError) Error() string { return "the provider limits the rate" }

// summarize asks a provider, which wants to be left alone for 40 s.
func summarize(context.Context, string) (string, error) { return "", &rateLimitError{40 * time.Second} }

// The provider says when to try again: the next attempt begins then, and this one is not counted.
func ExampleRetryAfter() {
	run := func(ctx context.Context, in text, _ worker.Job) (string, error) {
		summary, err := summarize(ctx, in.Text)
		if limited := new(rateLimitError); errors.As(err, &limited) {
			return "", worker.RetryAfter(err, limited.wait)
		}
		return summary, err
	}
	_, err := run(context.Background(), text{"a report"}, worker.Job{})
	later, ok := errors.AsType[*worker.RetryAfterError](err)
	fmt.Println(ok, later.After(), err)
	// Output: true 40s the provider limits the rate
}

// limits are how many invoices of an account may be sent at a time.
var limits = map[string]int{"acme": 3, "initech": 1}

var invoices = worker.Kind{
	Name: "invoice", Collection: "invoices",
	KeyFields: []string{"input.account"},
	Key: func(fields map[string]any) string {
		input, _ := fields["input"].(map[string]any)
		account, _ := input["account"].(string)
		return strings.ToLower(account) // empty: not limited
	},
	// Two at a time, unless the account has its own limit.
	KeyLimit: func(account string) int { return cmp.Or(limits[account], 2) },
	KeyHold:  true, // strict order, where the limit is 1
	Run:      worker.Typed(send),
}

func send(_ context.Context, in struct{ Account string }, _ worker.Job) (string, error) {
	return "sent to " + in.Account, nil
}

// At most three invoices of ACME are sent at a time.
func ExampleKind_keys() {
	kind, err := invoices.Filled()
	key := kind.Key(map[string]any{"input": map[string]any{"account": "ACME"}})
	fmt.Println(key, kind.KeyLimit(key), err)
	// Output: acme 3 <nil>
}

// Documents of another program are guarded in place, in its vocabulary. The command
// taskguard knows the kind if the variable KINDS has this JSON in an array.
func ExampleKind() {
	kind := worker.Kind{
		Name: "order", Collection: "orders", Path: "/orders/run",
		Fields: worker.Fields{Status: "state", Finished: "DONE", Input: "payload", Result: "output"},
	}
	text, err := json.Marshal(kind)
	fmt.Println(string(text), err)
	// Output: {"name":"order","collection":"orders","path":"/orders/run","fields":{"status":"state","finished":"DONE","input":"payload","result":"output"}} <nil>
}

// WithoutRun only books a delivery in the Queue, whose deliveries may take 30 minutes.
func ExampleWork_Eventarc() {
	ctx := context.Background()
	guard, err := worker.Open(ctx, worker.Options{Queue: worker.Queue{
		Name:      "projects/my-project/locations/europe-west1/queues/jobs",
		TargetURL: "https://service.example", Caller: "tasks@my-project.iam.gserviceaccount.com",
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	work, mux := guard.MustRegister(words), http.NewServeMux()
	mux.Handle("POST "+work.Path, work.Handler())
	mux.Handle("POST /events", work.WithoutRun().Eventarc())
	mux.Handle("POST /messages", work.WithoutRun().PubSub())
}

// Run needs no request: here the document exists, and this program runs it, as a Cloud Run job would.
func ExampleWork_Run() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // Run then stops gently
	defer stop()
	guard, done := embedded(ctx)
	defer done()
	work := guard.MustRegister(words)
	if _, err := work.Submit(ctx, "long", map[string]string{"Text": "a long text"}); err != nil {
		fmt.Println(err)
	}
	for range 2 {
		ran, err := work.Run(ctx, "long")
		fmt.Println(ran.Outcome, ran.Status, err)
	}
	// Output:
	// ready READY <nil>
	// already_finished READY <nil>
}

// embedded returns a Guard on the embedded Firestore.
func embedded(ctx context.Context) (guard *worker.Guard, done func()) {
	server := firestore.NewServer(firestore.Options{}) // in production: Firestore itself
	conn, err := server.Dial()
	if err != nil {
		panic(err)
	}
	guard, err = worker.Open(ctx, worker.Options{
		Project: "my-project", Auth: worker.CheckedByProxy(),
		FirestoreOptions: []option.ClientOption{option.WithGRPCConn(conn)},
	})
	if err != nil {
		panic(err)
	}
	return guard, func() {
		if err := guard.Shutdown(ctx); err != nil {
			panic(err)
		}
		server.Close()
	}
}

// payments is a client of a provider that does each request once for a key.
type payments map[string]string

func (p payments) Charge(_ context.Context, key string, cents int) (receipt string, err error) {
	if p[key] == "" {
		p[key] = fmt.Sprintf("receipt for %d cents", cents)
	}
	return p[key], nil
}

func (p payments) Find(_ context.Context, key string) (receipt string, found bool, err error) {
	receipt, found = p[key]
	return receipt, found, nil
}

func ExampleOnce() {
	ctx, provider := context.Background(), payments{}
	guard, done := embedded(ctx)
	defer done()
	pay := func(ctx context.Context, job worker.Job) (string, error) {
		charge := func(ctx context.Context) (string, error) { return provider.Charge(ctx, job.Key("charge"), 4200) }
		find := func(ctx context.Context) (string, bool, error) { return provider.Find(ctx, job.Key("charge")) }
		receipt, err := worker.Once(ctx, job, "charge", charge, worker.Find(find))
		return receipt, err
	}
	receipt, err := worker.Do(ctx, guard, "pay", "acct_7:order-7", pay)
	fmt.Println(receipt, err)
	// Output: receipt for 4200 cents <nil>
}

// A long loop is a document for each item, whose Run does the one act of the item. An attempt that dies on
// the way is repeated, and submits the rest.
func ExampleWork_Submit_forEachItem() {
	ctx := context.Background()
	guard, done := embedded(ctx)
	defer done()
	work := guard.MustRegister(words)
	payout := func(ctx context.Context, job worker.Job) (any, error) {
		for _, account := range []string{"acct_7", "acct_8"} {
			id := job.AnalysisID + "-" + account // the same in each attempt
			if _, err := work.Submit(ctx, id, text{account}); err != nil {
				return nil, err
			}
		}
		return "submitted", nil
	}
	for range 2 {
		fmt.Println(payout(ctx, worker.Job{AnalysisID: "payout-7"}))
	}
	// Output:
	// submitted <nil>
	// submitted <nil>
}
