package fence

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	embedded "taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
)

func TestMain(m *testing.M) { os.Exit(emulatortest.Main(m)) }

func open(t *testing.T, b *emulatortest.Backend, o Options, opts ...grpc.DialOption) (*Fence, *firestore.Client) {
	t.Helper()
	client, err := firestore.NewClient(t.Context(), b.Project, b.Client(t, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	f, err := New(client, o)
	if err != nil {
		t.Fatal(err)
	}
	return f, client
}

// setting returns a write of {by: token} to doc, which reads it first.
func setting(doc *firestore.DocumentRef, token int64) func(context.Context, *firestore.Transaction) error {
	return func(_ context.Context, tx *firestore.Transaction) error {
		if _, err := tx.GetAll([]*firestore.DocumentRef{doc}); err != nil {
			return err
		}
		return tx.Set(doc, map[string]any{"by": token})
	}
}

// writer returns the token of the last write to doc.
func writer(t *testing.T, doc *firestore.DocumentRef) any {
	t.Helper()
	snap, err := doc.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snap.Data()["by"]
}

// request sends a request through the middleware.
func request(h http.Handler, token, key string) *httptest.ResponseRecorder {
	r, w := httptest.NewRequest(http.MethodPost, "/", http.NoBody), httptest.NewRecorder()
	r.Header.Set("X-Lock-Token", token)
	r.Header.Set("Idempotency-Key", key)
	h.ServeHTTP(w, r)
	return w
}

func TestAStaleTokenThatArrivesAfterANewerOneIsRefused(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		f, client := open(t, b, Options{})
		var handled string // the token of the last request
		h := f.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { handled = r.Header.Get("X-Lock-Token") }))
		orders := 1000
		switch {
		case b.Google():
			orders = 20
		case testing.Short():
			orders = 100
		}
		for n := range orders {
			random := rand.New(rand.NewPCG(1, uint64(n)))
			order := append(random.Perm(4), random.IntN(4))
			id, highest := strconv.Itoa(n), int64(0)
			doc := client.Collection("targets").Doc(id)
			for _, i := range order {
				token := int64(i + 1)
				stale := token < highest
				highest = max(highest, token)
				if err := f.Commit(t.Context(), id, token, setting(doc, token)); errors.Is(err, ErrStale) != stale || !stale && err != nil {
					t.Fatalf("%v: Commit of %d: %v", order, token, err)
				}
				if got := writer(t, doc); got != highest {
					t.Fatalf("%v: after Commit of %d the write of %v remains", order, token, got)
				}
				want := http.StatusOK
				if stale {
					want = http.StatusConflict
				}
				if w := request(h, strconv.FormatInt(token, 10), "request-"+id); w.Code != want || handled != strconv.FormatInt(highest, 10) {
					t.Fatalf("%v: a request with %d: %d, and %s was handled last", order, token, w.Code, handled)
				}
			}
		}
	})
}

// One of two writers pauses between the check and the commit.
func TestOfTwoRacingWritesTheNewerRemains(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		f, client := open(t, b, Options{})
		rounds := 100
		if b.Google() {
			rounds = 2
		}
		for n := range rounds {
			id, slow := strconv.Itoa(n), int64(n%2+1)
			doc := client.Collection("targets").Doc(id)
			checked, done, result := make(chan struct{}), make(chan struct{}), make(chan error)
			go func() {
				tries := 0
				result <- f.Commit(t.Context(), id, slow, func(ctx context.Context, tx *firestore.Transaction) error {
					if tries++; tries == 1 {
						close(checked)
						select {
						case <-done:
						case <-time.After(200 * time.Millisecond): // the other may have to wait for this transaction
						}
					}
					return setting(doc, slow)(ctx, tx)
				})
			}()
			<-checked
			quickErr := f.Commit(t.Context(), id, 3-slow, setting(doc, 3-slow))
			close(done)
			errs := map[int64]error{slow: <-result, 3 - slow: quickErr}
			if errs[2] != nil || errs[1] != nil && !errors.Is(errs[1], ErrStale) {
				t.Fatalf("%d is slow: %v", slow, errs)
			}
			if got := writer(t, doc); got != int64(2) {
				t.Fatalf("%d is slow: the write of %v remains", slow, got)
			}
		}
	})
}

// clockAhead is how far Firestore's clock is ahead of the machine's.
const clockAhead = 100 * time.Hour

func inBubble(t *testing.T, o Options, run func(t *testing.T, b *emulatortest.Backend, f *Fence, client *firestore.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		b.Server = embedded.NewServer(embedded.Options{Now: func() time.Time { return time.Now().Add(clockAhead) }})
		t.Cleanup(b.Server.Close)
		f, client := open(t, b, o)
		run(t, b, f, client)
	})
}

func TestEachRequestIsAnsweredAfterOneTransaction(t *testing.T) {
	var log bytes.Buffer
	inBubble(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, b *emulatortest.Backend, f *Fence, client *firestore.Client) {
		if err := f.Commit(t.Context(), "a b%", 5, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Doc("fences/malformed").Set(t.Context(), map[string]any{"token": "5"}); err != nil {
			t.Fatal(err)
		}
		handled := 0
		h := f.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, limited := r.Context().Deadline(); limited {
				t.Error("the time of the check limits the handler")
			}
			handled++
			w.WriteHeader(http.StatusAccepted)
		}))
		answers := func(token, key string, code int, body string, transactions int) {
			t.Helper()
			before, was := b.Calls.Count("BeginTransaction"), handled
			w := request(h, token, key)
			if w.Code != code || !strings.Contains(w.Body.String(), body) || body != "" && w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("token %q, key %q: %d %s; want %d %s", token, key, w.Code, w.Body, code, body)
			}
			if passed := handled > was; passed != (code == http.StatusAccepted) {
				t.Errorf("token %q, key %q: the handler was called: %v", token, key, passed)
			}
			if n := b.Calls.Count("BeginTransaction") - before; n != transactions {
				t.Errorf("token %q, key %q: %d transactions", token, key, n)
			}
		}
		answers("4", "a%20b%25", 409, `{"error":"fence: stale token: 4 is lower than 5","reason":"stale_token"}`, 1)
		answers("5", "a%20b%25", 202, "", 1)
		answers("6", "a%20b%25", 202, "", 1)
		answers("1", "a+b%25", 202, "", 1) // another key
		answers("5", "a%20b%25", 409, "stale_token", 1)
		for _, token := range []string{"", "x", "1.5", "0", "-7", "9223372036854775808"} {
			answers(token, "a", 400, `"reason":"bad_request"`, 0)
		}
		for _, key := range []string{"", "a%2Fb", "%zz", "..", strings.Repeat("a", 1501)} {
			answers("1", key, 400, `"reason":"bad_request"`, 0)
		}
		latest := time.Now().Add(clockAhead + 24*time.Hour).UnixMicro()
		answers(strconv.FormatInt(latest+time.Minute.Microseconds(), 10), "a%20b%25", 400, `"reason":"bad_request"`, 1)
		answers(strconv.FormatInt(latest, 10), "late", 202, "", 1)
		answers("6", "a%20b%25", 202, "", 1) // the first of them was not kept
		answers("9", "malformed", 500, `{"reason":"malformed"}`, 1)
		unread, _ := open(t, b, Options{}, grpc.WithChainStreamInterceptor(func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
			return nil, status.Error(codes.PermissionDenied, "the role does not read")
		}))
		if w := request(unread.Middleware(h), "7", "a"); w.Code != 503 || !strings.Contains(w.Body.String(), "unavailable") {
			t.Errorf("a fence that cannot be read: %d %s", w.Code, w.Body)
		}
		b.Server.Close()
		began := time.Now()
		if w := request(h, "7", "a"); w.Code != 503 || w.Body.String() != `{"reason":"unavailable"}`+"\n" || time.Since(began) > 10*time.Second {
			t.Errorf("without Firestore: %d %s after %v", w.Code, w.Body, time.Since(began))
		}
	})
	if !strings.Contains(log.String(), `status=503 reason=unavailable error="`) || strings.Contains(log.String(), "a b%") {
		t.Error(log.String())
	}
}

func TestAFenceIsKeptForHalfOfKeepAfterEachAcceptedTokenOrLonger(t *testing.T) {
	inBubble(t, Options{Keep: time.Hour, Collection: "tenants/a/fences"}, func(t *testing.T, b *emulatortest.Backend, f *Fence, client *firestore.Client) {
		doc, began := client.Doc("tenants/a/fences/k"), time.Now()
		for _, step := range []struct {
			at, expires time.Duration // since the first token
			token       int64
			err         error
			writes      int64
		}{
			{0, 60 * time.Minute, 2, nil, 1},
			{29 * time.Minute, 60 * time.Minute, 2, nil, 0},
			{31 * time.Minute, 91 * time.Minute, 2, nil, 1},
			{32 * time.Minute, 91 * time.Minute, 1, ErrStale, 0},
			{33 * time.Minute, 93 * time.Minute, 3, nil, 1},
			{99 * time.Minute, 93 * time.Minute, 2, ErrStale, 0}, // not removed yet
		} {
			time.Sleep(time.Until(began.Add(step.at)))
			writes := b.Server.Usage().Writes
			if err := f.Commit(t.Context(), "k", step.token, nil); !errors.Is(err, step.err) {
				t.Errorf("token %d after %v: %v", step.token, step.at, err)
			}
			if n := b.Server.Usage().Writes - writes; n != step.writes {
				t.Errorf("token %d after %v: %d writes", step.token, step.at, n)
			}
			snap, err := doc.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			expires, _ := snap.Data()["expireAt"].(time.Time)
			if got := expires.Add(-clockAhead).Sub(began).Round(time.Second); got != step.expires {
				t.Errorf("after %v it expires after %v, want %v", step.at, got, step.expires)
			}
		}
	})
}

func TestTheDefaultIsKeptFor30DaysAndTheKeyIsTheOptions(t *testing.T) {
	byPath := func(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") }
	inBubble(t, Options{Key: byPath}, func(t *testing.T, _ *emulatortest.Backend, f *Fence, client *firestore.Client) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/k%2520", http.NoBody)
		r.Header.Set("X-Lock-Token", "7")
		f.Middleware(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
		snap, err := client.Doc("fences/k%20").Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got state
		if err := snap.DataTo(&got); err != nil || got.Token != 7 || time.Until(got.RemoveAt.Add(-clockAhead)).Round(time.Second) != 30*24*time.Hour {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestAWriteThatFailsLeavesTheFence(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, _ *emulatortest.Backend, f *Fence, _ *firestore.Client) {
		own := errors.New("own")
		if err := f.Commit(t.Context(), "k", 2, func(context.Context, *firestore.Transaction) error { return own }); !errors.Is(err, own) {
			t.Errorf("%v, want the error of the write", err)
		}
		if err := f.Commit(t.Context(), "k", 1, nil); err != nil {
			t.Errorf("a lower token: %v", err)
		}
		if err := f.Commit(t.Context(), "a/b", 1, nil); !errors.Is(err, lease.ErrInvalidKey) {
			t.Errorf("a key with a slash: %v", err)
		}
		for token, want := range map[int64]error{0: errToken, -1: errToken, math.MaxInt64: nil} {
			if err := f.Commit(t.Context(), "k", token, nil); !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("the token %d: %v, want %v", token, err, want)
			}
		}
	})
}

func TestImpossibleOptionsAreRefused(t *testing.T) {
	for want, o := range map[string]Options{`"fences/a" is not the path`: {Collection: "fences/a"}, "Keep is -1s": {Keep: -time.Second}} {
		if f, err := New(nil, o); f != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
}
