package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/worker/console"
)

// tasks is a Cloud Tasks that does with a booking what book does.
type tasks struct {
	cloudtaskspb.UnimplementedCloudTasksServer
	book func() error
}

// CreateTask implements cloudtaskspb.CloudTasksServer.
func (s tasks) CreateTask(_ context.Context, r *cloudtaskspb.CreateTaskRequest) (*cloudtaskspb.Task, error) {
	return r.GetTask(), s.book()
}

// booking is env with such a queue.
func booking(t *testing.T, env vars, book func() error) vars {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	cloudtaskspb.RegisterCloudTasksServer(server, tasks{book: book})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) }) // until it is stopped
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	env["TASK_QUEUE"], env["TASK_TARGET_URL"], env[tasksEmulator] = "projects/demo-test/locations/l/queues/analyses", "http://127.0.0.1:1", l.Addr().String()
	return env
}

// sent is the answer to one request, with the headers of a page of the console.
func sent(t *testing.T, method, target, body string, header ...string) (code int, location, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Error(err)
		return 0, "", ""
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, resp.Header.Get("Location"), string(data)
}

func TestABookingThatFailsIsLoggedAndCanBeRepeatedOnThePage(t *testing.T) {
	var booked error
	env := booking(t, store(t), func() error { return booked })
	locked(t, analyses(t, env), "x")
	address, log, _ := consoleOf(t, env, "--port", "0", "--write")
	booked = status.Error(codes.PermissionDenied, "not yours")
	if code, text := confirm(t, address, "unlock", "x"); code != http.StatusBadGateway || !strings.Contains(text, `href="/unlock?id=x"`) {
		t.Errorf("%d %s", code, text)
	}
	for _, part := range []string{"changed by an operator", "no delivery is booked", "not yours", "analysis_id=x", "by=" + operator()} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("no %q in %s", part, log)
		}
	}
	booked = nil
	if code, text := confirm(t, address, "unlock", "x"); code != http.StatusOK || !strings.Contains(text, "A delivery is booked.") {
		t.Errorf("once more: %d %s", code, text)
	}
}

func TestCtrlCWaitsForAChange(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	env := booking(t, store(t), func() error { close(begun); <-end; return nil })
	a := analyses(t, env)
	seen := locked(t, a, "x").Grant
	address, log, stop := consoleOf(t, env, "--port", "0", "--write")
	_, text := browse(t, http.MethodGet, address+"/unlock?id=x", "")
	form := formOf(text)
	var asking sync.WaitGroup
	asking.Go(func() {
		if code, location, _ := sent(t, http.MethodPost, address+"/unlock?id=x", form.Encode()); code != http.StatusSeeOther || !strings.Contains(location, "done=booked") {
			t.Errorf("%d %s", code, location)
		}
	})
	<-begun
	var stopping sync.WaitGroup
	stopping.Go(func() { stop() })
	eventually(t, "it stops", func() bool { return strings.Contains(log.String(), "stopping") })
	time.Sleep(2 * time.Second) // longer than answers have where nothing is waited for
	close(end)
	asking.Wait()
	stopping.Wait()
	stop().want(t, exitDone)
	if d, err := a.Get(t.Context(), "x"); err != nil || d.Lock.Grant() == seen || d.Status != analysislock.Queued || strings.Contains(log.String(), "no delivery") {
		t.Errorf("%+v, %v: %s", d, err, log)
	}
}

func TestTheConsoleChangesWhatWasSeenAlone(t *testing.T) {
	a := analyses(t, store(t))
	made := changes{&client{analyses: a}, slog.New(slog.DiscardHandler)}
	seen := console.Seen{Status: analysislock.Processing, Grant: locked(t, a, "x").Grant}
	another := seen
	another.Grant.Token--
	for verb, change := range map[string]func(ctx context.Context, id, who string, seen console.Seen) (console.Delivery, error){"unlock": made.Unlock, "requeue": made.Requeue} {
		if _, err := change(t.Context(), "x", "operator-1", another); !errors.Is(err, lease.ErrConflict) {
			t.Errorf("%s of another's: %v, want ErrConflict", verb, err)
		}
	}
	if got, err := made.Unlock(t.Context(), "x", "operator-1", seen); err != nil || got != console.None {
		t.Errorf("unlock of its own: %q, %v", got, err)
	}
}

func TestTheConsoleDoesNotReopenWhatHasFinishedSince(t *testing.T) {
	a := analyses(t, store(t))
	acq := locked(t, a, "x")
	seen := console.Seen{Status: analysislock.Processing, Grant: acq.Grant}
	if err := acq.Hold.Complete(t.Context(), "precious"); err != nil {
		t.Fatal(err)
	}
	made := changes{&client{analyses: a}, slog.New(slog.DiscardHandler)}
	if _, err := made.Requeue(t.Context(), "x", "operator-1", seen); !errors.Is(err, lease.ErrConflict) {
		t.Errorf("requeue: %v, want ErrConflict", err)
	}
	d, err := a.Get(t.Context(), "x")
	if err != nil || d.Status != analysislock.Ready {
		t.Fatalf("%+v, %v", d, err)
	}
	if got, err := made.Requeue(t.Context(), "x", "operator-1", console.Seen{Status: d.Status, Grant: d.Lock.Grant()}); err != nil || got != console.None {
		t.Errorf("requeue of what it is: %q, %v", got, err)
	}
}

// signing is a page with the key of an identity proxy, and what that signs.
func signing(t *testing.T) (keys string, assertion func(audience, email string) string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"keys":[{"alg":"ES256","crv":"P-256","kid":"k","kty":"EC","use":"sig","x":%q,"y":%q}]}`, b64(point[1:33]), b64(point[33:]))
	}))
	t.Cleanup(page.Close)
	return page.URL, func(audience, email string) string {
		claims, err := json.Marshal(map[string]any{
			"iss": "https://cloud.google.com/iap", "aud": audience, "sub": "accounts.google.com:1", "email": email,
			"iat": time.Now().Unix(), "exp": time.Now().Add(10 * time.Minute).Unix(),
		})
		if err != nil {
			t.Fatal(err)
		}
		signed := b64([]byte(`{"alg":"ES256","kid":"k","typ":"JWT"}`)) + "." + b64(claims)
		sum := sha256.Sum256([]byte(signed))
		r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		return signed + "." + b64(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
	}
}

func TestBehindTheProxyAChangeIsLoggedWithWhoMakesIt(t *testing.T) {
	const audience = "/projects/1/locations/r/services/s"
	keys, assertion := signing(t)
	env := store(t)
	env["TASK_JWKS_URL"] = keys
	a := analyses(t, env)
	locked(t, a, "x")
	address, log, _ := consoleOf(t, env, "--port", "0", "--write", "--iap-audience", audience)
	const proof = "X-Goog-Iap-Jwt-Assertion"
	for _, bad := range []string{assertion("/projects/2", "stranger@example.test"), assertion(audience, "operator@example.test") + "A"} {
		if code, _, _ := sent(t, http.MethodPost, address+"/unlock?id=x", "", proof, bad); code != http.StatusUnauthorized {
			t.Errorf("%d, want 401", code)
		}
	}
	good := assertion(audience, "operator@example.test")
	_, _, text := sent(t, http.MethodGet, address+"/unlock?id=x", "", proof, good)
	if code, location, _ := sent(t, http.MethodPost, address+"/unlock?id=x", formOf(text).Encode(), proof, good); code != http.StatusSeeOther {
		t.Errorf("%d, to %s", code, location)
	}
	if d, err := a.Get(t.Context(), "x"); err != nil || d.Lock.Owner != "" {
		t.Errorf("%+v, %v", d, err)
	}
	for _, part := range []string{"by=operator@example.test", "wrong audience", "invalid signature"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("no %q in %s", part, log)
		}
	}
	if strings.Contains(log.String(), "stranger@") || strings.Contains(log.String(), good) {
		t.Errorf("the log holds what was in a request: %s", log)
	}
}
