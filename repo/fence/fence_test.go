package fence

import (
	"context"
	"errors"
	"log/slog"
	"math"
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
	"taskguard/internal/testing/must"
	"taskguard/lease"
)

func TestMain(m *testing.M) { os.Exit(emulatortest.Main(m)) }

type backend = emulatortest.Backend

func open(t *testing.T, b *backend, o Options, opts ...grpc.DialOption) (*Fence, *firestore.Client) {
	t.Helper()
	client, err := firestore.NewClient(t.Context(), b.Project, b.Client(t, opts...)...)
	must.OK(t, err)
	t.Cleanup(func() { _ = client.Close() })
	f, err := New(client, o)
	must.OK(t, err)
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
	must.OK(t, err)
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

// A stale token that arrives after a newer one is refused, and changes nothing.
func TestFence(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *backend) {
		f, client := open(t, b, Options{})
		doc, handled := client.Doc("targets/x"), "" // the token of the last request
		h := f.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			handled = r.Header.Get("X-Lock-Token")
		}))
		for i, step := range []struct{ token, highest int64 }{{2, 2}, {1, 2}, {2, 2}, {4, 4}, {3, 4}, {4, 4}, {1, 4}} {
			want, code := error(nil), http.StatusOK
			if step.token < step.highest {
				want, code = ErrStale, http.StatusConflict
			}
			if err := f.Commit(t.Context(), "x", step.token, setting(doc, step.token)); !errors.Is(err, want) {
				t.Errorf("%d: Commit of %d: %v, want %v", i, step.token, err, want)
			}
			if got := writer(t, doc); got != step.highest {
				t.Errorf("%d: after Commit of %d the write of %v remains", i, step.token, got)
			}
			w := request(h, strconv.FormatInt(step.token, 10), "request")
			if w.Code != code || handled != strconv.FormatInt(step.highest, 10) {
				t.Errorf("%d: a request with %d: %d, and %s was handled last", i, step.token, w.Code, handled)
			}
		}
	})
}

// One of two writers pauses between the check and the commit.
func TestCommit_Race(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *backend) {
		f, client := open(t, b, Options{})
		for _, slow := range []int64{1, 2} {
			id := strconv.FormatInt(slow, 10)
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
			must.OK(t, errs[2])
			if errs[1] != nil && !errors.Is(errs[1], ErrStale) {
				t.Errorf("%d is slow: %v", slow, errs[1])
			}
			if got := writer(t, doc); got != int64(2) {
				t.Errorf("%d is slow: the write of %v remains", slow, got)
			}
		}
	})
}

// clockAhead is how far Firestore's clock is ahead of the machine's.
const clockAhead = 100 * time.Hour

func inBubble(t *testing.T, o Options, run func(t *testing.T, b *backend, f *Fence, client *firestore.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		b.Server = embedded.NewServer(embedded.Options{Now: func() time.Time { return time.Now().Add(clockAhead) }})
		t.Cleanup(b.Server.Close)
		f, client := open(t, b, o)
		run(t, b, f, client)
	})
}

func TestMiddleware(t *testing.T) {
	var log strings.Builder
	o := Options{Log: slog.New(slog.NewTextHandler(&log, nil))}
	inBubble(t, o, func(t *testing.T, b *backend, f *Fence, client *firestore.Client) {
		must.OK(t, f.Commit(t.Context(), "a b%", 5, nil))
		_, err := client.Doc("fences/malformed").Set(t.Context(), map[string]any{"token": "5"})
		must.OK(t, err)
		h := f.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, limited := r.Context().Deadline(); limited {
				t.Error("the time of the check limits the handler")
			}
			w.WriteHeader(http.StatusAccepted)
		}))
		answers := func(token, key string, code int, reason string, transactions int) {
			t.Helper()
			before := b.Calls.Count("BeginTransaction")
			w := request(h, token, key)
			if w.Code != code || !strings.Contains(w.Body.String(), `"reason":"`+reason) {
				t.Errorf("token %q, key %q: %d %s; want %d %s", token, key, w.Code, w.Body, code, reason)
			}
			if got := w.Header().Get("Content-Type"); got != "application/json" {
				t.Errorf("token %q, key %q: the answer is %s", token, key, got)
			}
			if told := strings.Contains(w.Body.String(), `"error":`); told != (code < 500) {
				t.Errorf("token %q, key %q: the answer has an error of the service, or none: %s", token, key, w.Body)
			}
			if n := b.Calls.Count("BeginTransaction") - before; n != transactions {
				t.Errorf("token %q, key %q: %d transactions", token, key, n)
			}
		}
		passes := func(token, key string) {
			t.Helper()
			before := b.Calls.Count("BeginTransaction")
			w := request(h, token, key)
			if n := b.Calls.Count("BeginTransaction") - before; w.Code != http.StatusAccepted || n != 1 {
				t.Errorf("token %q, key %q: %d %s after %d transactions", token, key, w.Code, w.Body, n)
			}
		}
		const key = "a%20b%25"
		answers("4", key, 409, "stale_token", 1)
		passes("5", key)
		passes("6", key)
		passes("1", "a+b%25") // another key
		answers("5", key, 409, "stale_token", 1)
		for _, token := range []string{"", "x", "1.5", "0", "-7", "9223372036854775808"} {
			answers(token, "a", 400, "bad_request", 0)
		}
		for _, key := range []string{"", "a%2Fb", "%zz", "..", strings.Repeat("a", 1501)} {
			answers("1", key, 400, "bad_request", 0)
		}
		latest := time.Now().Add(clockAhead + 24*time.Hour).UnixMicro()
		answers(strconv.FormatInt(latest+time.Minute.Microseconds(), 10), key, 400, "bad_request", 1)
		passes("6", key) // that token was not kept
		passes(strconv.FormatInt(latest, 10), "late")
		answers("9", "malformed", 500, "malformed", 1)

		deny := func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer,
			...grpc.CallOption,
		) (grpc.ClientStream, error) {
			return nil, status.Error(codes.PermissionDenied, "the role does not read")
		}
		unread, _ := open(t, b, Options{}, grpc.WithChainStreamInterceptor(deny))
		if w := request(unread.Middleware(h), "7", "a"); w.Code != 503 {
			t.Errorf("a fence that cannot be read: %d %s", w.Code, w.Body)
		}
		b.Server.Close()
		began := time.Now()
		w := request(h, "7", "a")
		if took := time.Since(began); w.Code != 503 || took > 10*time.Second {
			t.Errorf("without Firestore: %d %s after %v", w.Code, w.Body, took)
		}
		if got := strings.TrimSpace(w.Body.String()); got != `{"reason":"unavailable"}` {
			t.Errorf("%s, want no error of Firestore", got)
		}
	})
	if !strings.Contains(log.String(), "reason=unavailable") || strings.Contains(log.String(), "a b%") {
		t.Error(log.String())
	}
}

func TestOptions_Keep(t *testing.T) {
	t.Run("for half of it after each accepted token, or longer", func(t *testing.T) {
		o := Options{Keep: time.Hour, Collection: "tenants/a/fences"}
		inBubble(t, o, func(t *testing.T, b *backend, f *Fence, client *firestore.Client) {
			doc, began := client.Doc("tenants/a/fences/k"), time.Now()
			for _, step := range []struct {
				at, expires int // minutes since the first token
				token       int64
				err         error
				writes      int64
			}{
				{0, 60, 2, nil, 1},
				{29, 60, 2, nil, 0},
				{31, 91, 2, nil, 1},
				{32, 91, 1, ErrStale, 0},
				{33, 93, 3, nil, 1},
				{99, 93, 2, ErrStale, 0}, // not removed yet
			} {
				time.Sleep(time.Until(began.Add(time.Duration(step.at) * time.Minute)))
				writes := b.Server.Usage().Writes
				if err := f.Commit(t.Context(), "k", step.token, nil); !errors.Is(err, step.err) {
					t.Errorf("%+v: %v", step, err)
				}
				if n := b.Server.Usage().Writes - writes; n != step.writes {
					t.Errorf("%+v: %d writes", step, n)
				}
				snap, err := doc.Get(t.Context())
				must.OK(t, err)
				expires, _ := snap.Data()["expireAt"].(time.Time)
				got := expires.Add(-clockAhead).Sub(began).Round(time.Second)
				if got != time.Duration(step.expires)*time.Minute {
					t.Errorf("%+v: it expires after %v", step, got)
				}
			}
		})
	})
	t.Run("for 30 days by default, under the key of Options.Key", func(t *testing.T) {
		byPath := func(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") }
		inBubble(t, Options{Key: byPath}, func(t *testing.T, _ *backend, f *Fence, client *firestore.Client) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/k%2520", http.NoBody)
			r.Header.Set("X-Lock-Token", "7")
			f.Middleware(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
			snap, err := client.Doc("fences/k%20").Get(t.Context())
			must.OK(t, err)
			var got state
			must.OK(t, snap.DataTo(&got))
			kept := time.Until(got.RemoveAt.Add(-clockAhead)).Round(time.Second)
			if got.Token != 7 || kept != 30*24*time.Hour {
				t.Errorf("%+v, kept for %v", got, kept)
			}
		})
	})
}

func TestCommit_Refused(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, _ *backend, f *Fence, _ *firestore.Client) {
		own := errors.New("own")
		fail := func(context.Context, *firestore.Transaction) error { return own }
		for _, tc := range []struct {
			key   string
			token int64
			write func(context.Context, *firestore.Transaction) error
			want  error
		}{
			{"k", 2, fail, own},
			{"k", 1, nil, nil}, // so that write has left the fence
			{"a/b", 1, nil, lease.ErrInvalidKey},
			{"k", 0, nil, errToken},
			{"k", -1, nil, errToken},
			{"k", math.MaxInt64, nil, nil},
		} {
			if err := f.Commit(t.Context(), tc.key, tc.token, tc.write); !errors.Is(err, tc.want) {
				t.Errorf("%s, %d: %v, want %v", tc.key, tc.token, err, tc.want)
			}
		}
	})
}

func TestNew_Refused(t *testing.T) {
	for _, o := range []Options{{Collection: "fences/a"}, {Keep: -time.Second}} {
		if _, err := New(nil, o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}
