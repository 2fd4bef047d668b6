package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// consoleOf runs `taskguard console` in this process and returns its address; stop ends
// it.
func consoleOf(t *testing.T, env vars, flags ...string) (address string, log *emulatortest.Log, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log = &emulatortest.Log{}
	ended := make(chan int, 1)
	go func() {
		args := append([]string{"console"}, flags...)
		ended <- cli.Run(ctx, commands(), args, cli.Streams{In: strings.NewReader(""), Out: io.Discard, Err: log}, env.lookup)
	}()
	stop = func() int { cancel(); code := <-ended; ended <- code; return code }
	t.Cleanup(func() { stop() })
	served := regexp.MustCompile(`the console: (http://\S+)/ `)
	eventually(t, "it serves", func() bool { return served.MatchString(log.String()) || len(ended) > 0 })
	found := served.FindStringSubmatch(log.String())
	if found == nil {
		t.Fatalf("no console: %s", log)
	}
	return strings.Replace(found[1], "[::]", "127.0.0.1", 1), log, stop
}

// browse requests a page as a page of that address does. The text of a redirection is
// its target.
func browse(t *testing.T, method, target, body string, header ...string) (code int, text string) {
	t.Helper()
	r := must(http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body)))(t)
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
		return 0, ""
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	if resp.StatusCode == http.StatusSeeOther {
		return resp.StatusCode, resp.Header.Get("Location")
	}
	return resp.StatusCode, string(data)
}

var hiddenField = regexp.MustCompile(`type="hidden" name="(\w+)" value="([^"]*)"`)

// confirm sends the form of a page of confirmation.
func confirm(t *testing.T, address, verb, id string, header ...string) (code int, text string) {
	t.Helper()
	target := address + "/" + verb + "?id=" + url.QueryEscape(id)
	_, text = browse(t, http.MethodGet, target, "", header...)
	code, text = browse(t, http.MethodPost, target, formOf(text), header...)
	if code == http.StatusSeeOther {
		return browse(t, http.MethodGet, address+text, "", header...)
	}
	return code, text
}

// formOf is the form of a page, filled in.
func formOf(text string) string {
	form := url.Values{}
	for _, f := range hiddenField.FindAllStringSubmatch(text, -1) {
		form.Set(f[1], f[2])
	}
	return form.Encode()
}

func TestTheConsoleShowsWhatFirestoreHoldsAndChangesNothing(t *testing.T) {
	t.Parallel()
	env := store(t)
	const id = "it's <a>"
	locked(t, analyses(t, env), id)
	put(t, env, "analyses/younger than the TTL", map[string]any{"status": "QUEUED", "updatedAt": time.Now().Add(-8 * time.Minute)})
	address, log, stop := consoleOf(t, env.with("PORT", "unread").with("LOCK_TTL", "10m"), "--listen", "localhost", "--port", "0")
	code, text := browse(t, http.MethodGet, address+"/", "")
	for _, part := range []string{"it&#39;s &lt;a&gt;", "PROCESSING", "read only", "demo-test / (default) / analyses"} {
		if code != http.StatusOK || !strings.Contains(text, part) {
			t.Errorf("%d, no %q in %s", code, part, text)
		}
	}
	if strings.Contains(text, "data-action") || strings.Contains(text, "data-overdue") || strings.Contains(text, `method="post"`) {
		t.Errorf("the page changes something, or shows something as stuck: %s", text)
	}
	if _, text = browse(t, http.MethodGet, address+"/analysis?show=all&id="+url.QueryEscape(id), ""); !strings.Contains(text, "&#34;text&#34;: &#34;x&#34;") {
		t.Errorf("no input in %s", text)
	}
	if code, _ = confirm(t, address, "unlock", id); code != http.StatusForbidden {
		t.Errorf("unlock without --write: %d", code)
	}
	port := address[strings.LastIndex(address, ":")+1:]
	taskguard(t, env, "console", "--port", port).want(t, cli.ExitFailed, "; --port chooses another port")
	taskguard(t, env.with("PORT", port), "console", "--listen", "127.0.0.1").want(t, cli.ExitFailed, port+": ")                                    // as on Cloud Run
	taskguard(t, env, "console", "--listen", "203.0.113.1", "--iap-audience", "a").want(t, cli.ExitFailed, "the console: listen tcp 203.0.113.1:") // not of this machine
	if code := stop(); code != cli.ExitDone || strings.Contains(log.String(), "level=WARN") {
		t.Errorf("exit %d after Ctrl-C: %s", code, log)
	}
}

func TestTheConsoleMakesChangesAsTheCommandsDo(t *testing.T) {
	t.Parallel()
	env := store(t)
	a := analyses(t, env)
	locked(t, a, "x")
	address, log, _ := consoleOf(t, env, "--port", "0", "--write")
	if code, text := confirm(t, address, "requeue", "x"); code != http.StatusConflict || !strings.Contains(text, "locked by w/1") {
		t.Errorf("requeue of a locked one: %d %s", code, text)
	}
	if code, text := confirm(t, address, "unlock", "x"); code != http.StatusOK || !strings.Contains(text, "Unlocked. Nothing was enqueued: TASK_QUEUE is not set") {
		t.Errorf("unlock: %d %s", code, text)
	}
	if d, err := a.Get(t.Context(), "x"); err != nil || d.Lock.Owner != "" || d.Status != analysislock.Queued || d.Attempts != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	for _, part := range []string{"command=unlock", "analysis_id=x", "by=", "lock_owner=w/1", "level=INFO"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("no %q in %s", part, log)
		}
	}

	q := newQueue(t)
	locked(t, analyses(t, q.env), "y")
	address, log, _ = consoleOf(t, q.env.with("TASK_QUEUE", queueName+"-missing"), "--port", "0", "--write")
	code, text := confirm(t, address, "unlock", "y")
	if code != http.StatusBadGateway || !strings.Contains(text, `href="/unlock?id=y"`) || !strings.Contains(log.String(), `msg="changed nothing, or could not enqueue" command=unlock analysis_id=y by=`) {
		t.Errorf("unlock without its queue: %d %s\n%s", code, text, log)
	}
	putFailed(t, q.env, 100) // 16 at once; the others must be left alone
	_, text = browse(t, http.MethodGet, address+"/all/requeue?state=FAILED", "")
	browse(t, http.MethodPost, address+"/all/requeue?state=FAILED", formOf(text))
	if n := must(analyses(t, q.env).Count(t.Context(), repo.Filter{Status: analysislock.Failed}))(t); n < 60 || n > 99 {
		t.Errorf("%d are still FAILED, want that a change of all ends where the queue refuses", n)
	}
}

// internal/taskauth tests what a token needs.
func TestBehindTheProxyEachRequestNeedsItsTokenAndAChangeIsLoggedWithItsUser(t *testing.T) {
	t.Parallel()
	const audience, header = "/projects/1/locations/r/services/s", "X-Goog-Iap-Jwt-Assertion"
	key := jose.JSONWebKey{Key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t), KeyID: "k", Algorithm: "ES256", Use: "sig"}
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	}))
	t.Cleanup(keys.Close)
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil))(t)
	token := func(audience string) string {
		return must(jwt.Signed(signer).Claims(map[string]any{
			"iss": "https://cloud.google.com/iap", "aud": audience, "sub": "accounts.google.com:1", "email": "operator@example.test",
			"iat": time.Now().Unix(), "exp": time.Now().Add(10 * time.Minute).Unix(),
		}).Serialize())(t)
	}

	env := store(t).with("TASK_JWKS_URL", keys.URL)
	locked(t, analyses(t, env), "x")
	address, log, _ := consoleOf(t, env, "--listen", "0.0.0.0", "--port", "0", "--write", "--iap-audience", audience)
	for _, bad := range []string{"", token("/projects/2")} {
		if code, _ := browse(t, http.MethodPost, address+"/unlock?id=x", "", header, bad); code != http.StatusUnauthorized {
			t.Errorf("%d, want 401", code)
		}
	}
	if code, text := confirm(t, address, "unlock", "x", header, token(audience)); code != http.StatusOK || !strings.Contains(log.String(), "by=operator@example.test") {
		t.Errorf("%d %s: %s", code, text, log)
	}
}
