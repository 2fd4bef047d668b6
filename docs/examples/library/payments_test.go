package library

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/library/payments/provider"
)

// payments is a provider that does every act that it is asked for, also twice for one key.
type payments struct {
	mu    sync.Mutex
	done  []string // act and key of each
	asked int      // how often it was asked for an act that may be done
	// charging is called by the next charge, once it is done and before it is answered.
	charging func()
}

func (p *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	act := r.URL.Path + " " + r.Header.Get("Idempotency-Key")
	var payment provider.Payment
	if err := json.NewDecoder(r.Body).Decode(&payment); err != nil || payment.Cents == 402 {
		w.WriteHeader(http.StatusPaymentRequired)
		return
	}
	if r.Method == http.MethodGet {
		p.asked++
	} else {
		p.done = append(p.done, act)
		if p.charging != nil {
			p.charging()
			p.charging = nil
		}
	}
	var receipt provider.Receipt
	for i, done := range p.done {
		if done == act {
			receipt.ID = fmt.Sprint(strings.Fields(act)[0], "-", i)
		}
	}
	_ = json.NewEncoder(w).Encode(receipt) // the service may be dead
}

// count returns the number of acts at a path of the provider, and of questions.
func (p *payments) count(path string) (acts, asked int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, act := range p.done {
		if strings.HasPrefix(act, path+" ") {
			acts++
		}
	}
	return acts, p.asked
}

func TestPayments(t *testing.T) {
	c, program, p := newCloud(t), build(t, "payments"), &payments{}
	stub := httptest.NewServer(p)
	t.Cleanup(stub.Close)
	port := freePort(t)
	t.Setenv("PROVIDER_URL", stub.URL)
	t.Setenv("LOCK_TTL", "3s")
	s := start(t, program, port)

	// post returns the status, "replayed" if the answer is, and the body.
	post := func(path, account, key, body string) (answer string) {
		t.Helper()
		url := "http://127.0.0.1:" + port + path
		r := must(http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body)))(t)
		r.Header.Set("X-Account", account)
		r.Header.Set("Idempotency-Key", key)
		resp := must(http.DefaultClient.Do(r))(t)
		defer func() { _ = resp.Body.Close() }()
		text := make([]byte, 1000)
		n, _ := resp.Body.Read(text)
		replayed := map[string]string{"true": " replayed"}[resp.Header.Get("Idempotency-Replayed")]
		return fmt.Sprint(resp.StatusCode, replayed, " ", strings.TrimSpace(string(text[:n])))
	}
	const event = `{"id": "evt_1", "payment": {"cents": 4200}}`
	for _, step := range []struct{ path, account, key, body, want string }{
		{"/charges", "a", "k", `{"cents": 4200}`, `200 {"id":"/charges-0"}`},
		{"/charges", "a", "k", `{"cents": 4200}`, `200 replayed {"id":"/charges-0"}`},
		{"/charges", "b", "k", `{"cents": 4200}`, `200 {"id":"/charges-1"}`},
		{"/refunds", "a", "k", `{"cents": 4200, "charge": "/charges-0"}`, `200 {"id":"/refunds-2"}`},
		{"/refunds", "a", "k", `{"cents": 4200, "charge": "/charges-0"}`, `200 replayed {"id":"/refunds-2"}`},
		{"/charges", "a", "declined", `{"cents": 402}`, "402 Payment Required"},
		{"/charges", "a", "declined", `{"cents": 402}`, "402 replayed Payment Required"},
		{"/charges", "a", "none", `{}`, "400 send an Idempotency-Key, and cents that are a positive integer"},
		{"/webhooks/payment", "", "", event, `200 {"id":"/mails-3"}`},
		{"/webhooks/payment", "", "", event, `200 {"id":"/mails-3"}`},
		{"/webhooks/payment", "", "", `{}`, "400 this is no event"},
	} {
		if got := post(step.path, step.account, step.key, step.body); got != step.want {
			t.Errorf("%s of %s by %q: %s, want %s", step.path, step.body, step.key, got, step.want)
		}
	}

	// The service is killed after the order's charge, before it has an answer.
	order := func() (id string) {
		t.Helper()
		var r provider.Receipt
		status, body, _ := strings.Cut(post("/orders", "a", "order", `{"cents": 4200}`), "{")
		if check(t, json.Unmarshal([]byte("{"+body), &r)); status != "200 " && status != "200 replayed " {
			t.Fatalf("the order is answered %s%s", status, body)
		}
		return r.ID
	}
	answered, killed := make(chan struct{}), make(chan struct{})
	p.mu.Lock()
	p.charging = func() {
		<-answered
		_ = s.Process.Kill()
		_ = s.Wait() // killed
		close(killed)
	}
	p.mu.Unlock()
	id := order()
	close(answered)
	<-killed
	if doc := c.document(t, "order_work/"+id); doc["status"] != "PROCESSING" {
		t.Errorf("after the kill the work is %v", doc)
	}
	s = start(t, program, port)
	if expires, _ := c.document(t, "idempotency/"+id)["expireAt"].(time.Time); time.Until(expires) < 87000*time.Hour {
		t.Errorf("the order's record expires at %v", expires)
	}
	doc := c.await(t, "order_work/"+id, "status", "READY")
	acts, asked := p.count("/charges")
	if right := acts == 3 && asked == 1; !right || doc["lockToken"] != int64(2) {
		t.Errorf("%d charges after %d questions, want 3 after 1; the work is %v", acts, asked, doc)
	}
	must(c.documents.Doc("idempotency/" + id).Delete(t.Context()))(t) // as if the service had died before its answer
	if again := order(); again != id || c.document(t, "orders/"+id)["Cents"] != int64(4200) {
		t.Errorf("the repeated order is %q, want %q", again, id)
	}
	s.stop(t)

	// The service is stopped during a charge of a request, and then of an order. The charge ends after that.
	for path, want := range map[string]string{"/charges": "/charges-", "/orders": "order:"} {
		s = start(t, program, port)
		p.mu.Lock()
		p.charging = func() {
			_ = s.Process.Signal(syscall.SIGTERM)
			for began := time.Now(); ready(port) && time.Since(began) < hang; {
				time.Sleep(20 * time.Millisecond)
			}
		}
		p.mu.Unlock()
		before, _ := p.count("/charges")
		got := post(path, "a", "stopped", `{"cents": 4200}`)
		if err := s.Wait(); err != nil || !strings.HasPrefix(got, `200 {"id":"`+want) {
			t.Errorf("%s is answered %s; the service ends with %v\n%s", path, got, err, &s.log)
		}
		if acts, _ := p.count("/charges"); acts != before+1 {
			t.Errorf("%s: %d charges, want %d", path, acts, before+1)
		}
		if id := strings.TrimSuffix(strings.TrimPrefix(got, `200 {"id":"`), `"}`); path == "/orders" {
			if doc := c.document(t, "order_work/"+id); doc["status"] != "READY" || doc["lockToken"] != int64(1) {
				t.Errorf("the work is %v", doc)
			}
		}
	}
}
