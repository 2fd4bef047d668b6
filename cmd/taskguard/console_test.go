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
	"taskguard/internal/testing/must"
	"taskguard/repo"
)

// consoleOf runs `taskguard console` in this process and returns its address; stop ends it.
func consoleOf(t *testing.T, env vars, flags ...string) (address string, log *emulatortest.Log, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log = &emulatortest.Log{}
	ended := make(chan int, 1)
	go func() {
		streams := cli.Streams{In: strings.NewReader(""), Out: io.Discard, Err: log}
		ended <- cli.Run(ctx, commands(), append([]string{"console"}, flags...), streams, env.lookup)
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

// browse requests a page as a page of that address does. The output of a redirection is its target.
func browse(t *testing.T, method, target, body string, header ...string) outcome {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body)))(t)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	must.OK(t, err)
	defer resp.Body.Close()
	data := must.Get(io.ReadAll(resp.Body))(t)
	if resp.StatusCode == http.StatusSeeOther {
		return outcome{code: resp.StatusCode, out: resp.Header.Get("Location")}
	}
	return outcome{code: resp.StatusCode, out: string(data)}
}

var hiddenField = regexp.MustCompile(`type="hidden" name="(\w+)" value="([^"]*)"`)

// confirm opens a page of confirmation, sends its form, and returns the page that follows.
func confirm(t *testing.T, address, path string, header ...string) outcome {
	t.Helper()
	form := url.Values{}
	text := browse(t, http.MethodGet, address+path, "", header...).out
	for _, f := range hiddenField.FindAllStringSubmatch(text, -1) {
		form.Set(f[1], f[2])
	}
	page := browse(t, http.MethodPost, address+path, form.Encode(), header...)
	if page.code == http.StatusSeeOther {
		return browse(t, http.MethodGet, address+page.out, "", header...)
	}
	return page
}

// The pages are tested in cmd/internal/console.
func TestConsole(t *testing.T) {
	t.Parallel()
	env := store(t)
	const id = "it's <a>"
	locked(t, analyses(t, env), id)
	put(t, env, "younger-than-the-TTL", doc{"status": "QUEUED", "updatedAt": ago(8 * time.Minute)})
	patient := env.with("PORT", "unread").with("LOCK_TTL", "10m")
	address, log, stop := consoleOf(t, patient, "--listen", "localhost", "--port", "0")
	browse(t, http.MethodGet, address+"/", "").
		want(t, http.StatusOK, "it&#39;s &lt;a&gt;", "PROCESSING", "demo-test / (default) / analyses").
		lacks(t, "data-action", `method="post"`, "data-overdue")
	browse(t, http.MethodGet, address+"/analysis?show=all&id="+url.QueryEscape(id), "").
		want(t, http.StatusOK, "&#34;text&#34;") // the input
	confirm(t, address, "/unlock?id="+url.QueryEscape(id)).want(t, http.StatusForbidden)
	port := address[strings.LastIndex(address, ":")+1:]
	taskguard(t, env, "console --port "+port).fails(t, "--port")
	taskguard(t, env.with("PORT", port), "console --listen 127.0.0.1").fails(t, port) // as on Cloud Run
	taskguard(t, env, "console --listen 203.0.113.1 --iap-audience a").fails(t, "203.0.113.1:")
	if code := stop(); code != cli.ExitDone || strings.Contains(log.String(), "level=WARN") {
		t.Errorf("exit %d after Ctrl-C: %s", code, log)
	}
}

func TestConsole_Write(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	a := analyses(t, q.env)
	locked(t, a, "x")
	address, log, _ := consoleOf(t, q.missing(), "--port", "0", "--write")
	confirm(t, address, "/requeue?id=x").want(t, http.StatusConflict, "locked by w/1")
	confirm(t, address, "/unlock?id=x").want(t, http.StatusBadGateway, `href="/unlock?id=x"`)
	wantParts(t, log, "command=unlock", "analysis_id=x", "by=", "lock_owner=w/1", "level=INFO", "level=WARN")
	wantValues(t, fieldsOf(t, q.env, "x"), doc{"lockOwner": nil, "status": "QUEUED", "attempts": int64(1)})
	putFailed(t, q.env, 100) // a change of all ends where the queue refuses: 16 are under way then
	confirm(t, address, "/all/requeue?state=FAILED")
	if n := must.Get(a.Count(t.Context(), repo.Filter{Status: "FAILED"}))(t); n < 60 || n > 99 {
		t.Errorf("%d are still FAILED, want some changed, and the others left alone", n)
	}
}

// internal/taskauth tests what a token needs.
func TestConsole_Proxy(t *testing.T) {
	t.Parallel()
	const audience, header = "/projects/1/locations/r/services/s", "X-Goog-Iap-Jwt-Assertion"
	private := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	key := jose.JSONWebKey{Key: private, KeyID: "k", Algorithm: "ES256", Use: "sig"}
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	}))
	t.Cleanup(keys.Close)
	signer := must.Get(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil))(t)
	token := func(audience string) string {
		return must.Get(jwt.Signed(signer).Claims(doc{
			"iss": "https://cloud.google.com/iap", "aud": audience, "sub": "accounts.google.com:1",
			"email": "operator@example.test", "iat": time.Now().Unix(), "exp": time.Now().Add(10 * time.Minute).Unix(),
		}).Serialize())(t)
	}

	env := store(t).with("TASK_JWKS_URL", keys.URL)
	locked(t, analyses(t, env), "x")
	address, log, _ := consoleOf(t, env, "--listen", "0.0.0.0", "--port", "0", "--write", "--iap-audience", audience)
	for _, bad := range []string{"", token("/projects/2")} {
		browse(t, http.MethodPost, address+"/unlock?id=x", "", header, bad).want(t, http.StatusUnauthorized)
	}
	confirm(t, address, "/unlock?id=x", header, token(audience)).want(t, http.StatusOK)
	wantParts(t, log, "by=operator@example.test")
}
