package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/locks/document"
)

// Parts of answers.
const (
	free     = `"is_locked":false`
	freed    = `"released":true`
	freeNow  = `"released":false`
	notFound = `"lock_not_found"`
	notYours = `"not_locked_by_user"`
)

var iso = regexp.MustCompile(`"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)"`)

// taken is the answer to POST.
type taken struct {
	Success   bool
	ExpiresAt time.Time `json:"expires_at"`
	LockedAt  time.Time `json:"locked_at"`
	Token     int64
	Holder    string
}

// take locks the room.
func (b *browser) take(header ...string) (got taken) {
	b.t.Helper()
	status, body := b.ask(http.MethodPost, lockPath, header...)
	if status != http.StatusOK {
		b.t.Fatalf("POST: %d %s", status, body)
	}
	must.OK(b.t, json.Unmarshal([]byte(body), &got))
	return got
}

// The whole bodies are what the browsers' code compares.
func TestLock_Methods(t *testing.T) {
	s := newSite(t, nil)
	mine, other := s.browser(t), s.browser(t)
	exactly := func(b *browser, method string, want string) {
		t.Helper()
		_, got := b.ask(method, lockPath)
		got = strings.Replace(got, `"ttl_ms":30001`, `"ttl_ms":30000`, 1) // both times are rounded to milliseconds
		if iso.ReplaceAllString(got, "T") != want {
			t.Errorf("%s: got %s, want %s", method, got, want)
		}
	}
	const nobodys = `{"is_locked":false,"is_my_lock":false,"locked_at":null,"expires_at":null}`
	exactly(mine, http.MethodGet, nobodys)
	exactly(mine, http.MethodDelete, `{"success":true,"released":false,"message":"ロックは既に解放されています。"}`)

	mine.want(http.StatusNotFound, notFound, http.MethodPut, lockPath)
	got := mine.take()
	if d := got.ExpiresAt.Sub(got.LockedAt); d != 30*time.Second {
		t.Errorf("it lives for %v, want 30s", d)
	}
	acquired := fmt.Sprintf(`{"success":true,"expires_at":T,"locked_at":T,"ttl_ms":30000,"token":%d,"holder":%q}`,
		got.Token, got.Holder)
	exactly(mine, http.MethodPost, acquired) // a heartbeat
	exactly(mine, http.MethodGet, `{"is_locked":true,"is_my_lock":true,"locked_at":T,"expires_at":T}`)
	exactly(other, http.MethodGet, `{"is_locked":true,"is_my_lock":false,"locked_at":T,"expires_at":T}`)
	since := got.LockedAt.UTC().Format("2006-01-02T15:04:05.000Z")
	other.want(http.StatusConflict, since, http.MethodPost, lockPath)
	exactly(other, http.MethodPost,
		`{"success":false,"error":"already_locked","message":"他のユーザーが編集中です","locked_at":T}`)
	other.want(http.StatusForbidden, notYours, http.MethodPut, lockPath)
	other.want(http.StatusForbidden, notYours, http.MethodDelete, lockPath)

	time.Sleep(2 * time.Millisecond)
	status, body := mine.ask(http.MethodPut, lockPath)
	var next taken
	if err := json.Unmarshal([]byte(body), &next); err != nil || status != http.StatusOK {
		t.Fatal(status, body, err)
	}
	if later := next.ExpiresAt.Sub(got.ExpiresAt); later <= 0 || later >= 30*time.Second {
		t.Errorf("it ends %v later, want it replaced, not added to", later)
	}
	if next.ExpiresAt = got.ExpiresAt; next != got {
		t.Errorf("a heartbeat: %s, want the lock as it was", body)
	}

	exactly(mine, http.MethodDelete, `{"success":true,"released":true,"message":"ロックを解放しました"}`)
	mine.want(http.StatusOK, freeNow, http.MethodDelete, lockPath)
	exactly(mine, http.MethodGet, nobodys)
}

func TestLock_Confirm(t *testing.T) {
	b := newSite(t, nil).browser(t)
	const path = lockPath + "/confirm"
	b.want(http.StatusNotFound, notFound, http.MethodGet, path+"?token=1")
	token := b.take().Token
	_, body := b.ask(http.MethodGet, fmt.Sprint(path, "?token=", token))
	var sure struct {
		Token int64
		Valid int64 `json:"valid_for_ms"`
	}
	must.OK(t, json.Unmarshal([]byte(body), &sure))
	if margin := int64(3000); sure.Valid <= 0 || sure.Valid > 30000-margin {
		t.Errorf("it can be relied on for %d ms, want the remaining time less a margin of %d", sure.Valid, margin)
	}
	if sure.Token != token || !strings.Contains(iso.ReplaceAllString(body, "T"), `"expires_at":T`) {
		t.Errorf("%s; want the token %d and an expiry", body, token)
	}
	b.want(http.StatusForbidden, notYours, http.MethodGet, fmt.Sprint(path, "?token=", token-1))
	b.want(http.StatusOK, fmt.Sprintf(`"token":%d,`, token), http.MethodGet, path)
	b.site.browser(t).want(http.StatusForbidden, notYours, http.MethodGet, path)
	for _, bad := range []string{"", "x", "1.5", "9223372036854775808", "%31%00", "0", "-1"} {
		b.want(http.StatusBadRequest, "token", http.MethodGet, path+"?token="+bad)
	}
}

// Two tabs of one session are two owners.
func TestLock_Tabs(t *testing.T) {
	b := newSite(t, nil).browser(t)
	const header = "X-Lock-Client"
	b.take(header, "tab-1")
	b.want(http.StatusConflict, "", http.MethodPost, lockPath, header, "tab-2")
	b.want(http.StatusConflict, "", http.MethodPost, lockPath)
	b.want(http.StatusOK, "", http.MethodGet, lockPath, header, strings.Repeat("x", 64))
	b.want(http.StatusOK, "", http.MethodPut, lockPath, header, "tab-1")
	for _, bad := range []string{"a b", "a/b", "é", strings.Repeat("x", 65), ""} {
		b.want(http.StatusBadRequest, "", http.MethodPost, lockPath, header, bad)
	}
	b.want(http.StatusBadRequest, "", http.MethodPost, lockPath, header, "a", header, "b")
}

func TestUnknownRoute(t *testing.T) {
	b := newSite(t, nil).browser(t)
	b.want(http.StatusNotFound, `"no_such_route"`, http.MethodGet, "/nope")
	b.want(http.StatusNotFound, `"no_such_route"`, http.MethodPost, "/api/documents/a/b/lock")
	b.want(http.StatusMethodNotAllowed, `"method_not_allowed"`, http.MethodPatch, lockPath)
}

func TestLock_FailingStore(t *testing.T) {
	b := newSite(t, func(s *setup) {
		s.store = refusing{nil, fmt.Errorf("repo: read room %q: %w", "room", lease.ErrRefused)}
	}).browser(t)
	b.want(http.StatusInternalServerError, `"internal"`, http.MethodPost, lockPath)
	log := b.site.log.String()
	if !strings.Contains(log, "level=WARN") || !strings.Contains(log, "repo: read room") {
		t.Errorf("the log holds no warning: %s", log)
	}
	if strings.Contains(log, `room \"room\"`) {
		t.Errorf("the log holds the room: %s", log)
	}

	synctest.Test(t, func(t *testing.T) { // it tries again for some seconds
		h := serverOf(t, refusing{nil, errors.New("no connection")}, cookies(t))
		status, body, _ := visit(t, h, http.MethodGet, lockPath, "")
		if status != http.StatusServiceUnavailable || !strings.Contains(body, "out of reach") {
			t.Errorf("got %d %s, want 503", status, body)
		}
	})
}

// A release continues after its caller has disconnected.
func TestLock_Disconnected(t *testing.T) {
	h := memory(t, cookies(t))
	cookie := begun(t, h)
	visit(t, h, http.MethodPost, lockPath, cookie)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(gone, http.MethodDelete, lockPath, http.NoBody)
	r.Header.Set("Cookie", cookie)
	h.ServeHTTP(httptest.NewRecorder(), r)
	if _, body, _ := visit(t, h, http.MethodGet, lockPath, cookie); !strings.Contains(body, free) {
		t.Errorf("after it: %s", body)
	}
}

func TestRoomID(t *testing.T) {
	s := newSite(t, nil)
	b := s.browser(t)
	t.Run("what no store can hold is refused", func(*testing.T) {
		for id, problem := range map[string]string{"": "empty", "a%2Fb": "slash", strings.Repeat("x", 513): "513"} {
			path := "/api/documents/" + id + "/lock"
			b.want(http.StatusBadRequest, problem, http.MethodPost, path)
			b.want(http.StatusBadRequest, problem, http.MethodGet, path+"/ws", upgrade()...)
		}
	})

	t.Run("it is decoded exactly once", func(t *testing.T) { // %25 is a percent sign
		for written, room := range map[string]string{
			"%E6%97%A5本%20語": "日本 語", "a%252F%62": "a%2Fb", "a+b": "a+b", "a%2Bb": "a+b", "q%3Fx=1%23y": "q?x=1#y",
		} {
			path := "/api/documents/" + written + "/lock"
			b.want(http.StatusOK, "", http.MethodPost, path)
			if state := must.Get(s.locks.Get(t.Context(), room, ""))(t); !state.Locked {
				t.Errorf("%s did not lock %q: %+v", written, room, state)
			}
			b.want(http.StatusOK, freed, http.MethodDelete, path)
		}
	})
}

const crossSite = `"cross_site"`

// A request from another site changes nothing.
func TestCrossSite(t *testing.T) {
	s := newSite(t, nil)
	b := s.browser(t)
	got := b.take()
	for _, header := range [][]string{
		{"Origin", "https://evil.example"},
		{"Sec-Fetch-Site", "cross-site", "Origin", s.url},
	} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
			b.want(http.StatusForbidden, crossSite, method, lockPath, header...)
		}
		b.want(http.StatusForbidden, crossSite, http.MethodPost, "/internal/sweep", header...)
	}
	state := must.Get(s.locks.Get(t.Context(), "room", ""))(t)
	if state.Lock.Token != got.Token || !state.Lock.ExpiresAt.Equal(got.ExpiresAt) {
		t.Errorf("the lock is %+v, want it as it was", state)
	}
}

// An application's page may call from its own origin, if that is configured.
func TestOrigins(t *testing.T) {
	const allowed = "https://app.example"
	b := newPusherSite(t, func(s *setup) {
		s.options.Origins = []string{allowed, "http://localhost:5173"}
	}).browser(t)
	b.take()
	for _, origin := range []string{
		"https://app.example.evil", "https://app.example:8443", "http://app.example", "null",
		strings.Replace(b.site.url, "://", "://evil-", 1),
	} {
		from := []string{"Origin", origin, "Access-Control-Request-Headers", "x-lock-client"}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
			got := b.do(method, lockPath, http.NoBody, from...)
			if got.status != http.StatusForbidden && method != http.MethodOptions {
				t.Errorf("%s from %q: %d", method, origin, got.status)
			}
			allowed := got.header.Get("Access-Control-Allow-Origin") + got.header.Get("Access-Control-Allow-Headers")
			if allowed != "" || got.header.Get("Vary") != "Origin" {
				t.Errorf("%s from %q: %v", method, origin, got.header)
			}
		}
		for _, path := range []string{lockPath + "/ws", appPath} {
			b.want(http.StatusForbidden, crossSite, http.MethodGet, path, upgrade("Origin", origin)...)
		}
	}

	wantHeaders := func(got reply, want map[string]string) {
		t.Helper()
		for name, value := range want {
			if !strings.Contains(got.header.Get(name), value) {
				t.Errorf("%d, %s: %s, want %s", got.status, name, got.header.Get(name), value)
			}
		}
	}
	const requested = "traceparent,x-lock-client,x-xsrf-token"
	from := []string{"Origin", allowed, "Sec-Fetch-Site", "same-site"}
	method, headers := "Access-Control-Request-Method", "Access-Control-Request-Headers"
	asking := slices.Concat(from, []string{method, "PUT", headers, requested})
	wantHeaders(b.do(http.MethodOptions, lockPath, http.NoBody, asking...), map[string]string{
		"Access-Control-Allow-Methods": "PUT", "Access-Control-Allow-Headers": requested,
		"Access-Control-Max-Age": "600",
	})
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodGet, http.MethodDelete} {
		got := b.do(method, lockPath, http.NoBody, from...)
		if got.status != http.StatusOK {
			t.Errorf("%s: %d", method, got.status)
		}
		wantHeaders(got, map[string]string{
			"Access-Control-Allow-Origin": allowed, "Access-Control-Allow-Credentials": "true", "Vary": "Origin",
		})
	}
	header := http.Header{"Origin": {allowed}}
	b.listen(lockPath+"/ws", websocket.DialOptions{HTTPHeader: header}).want(unlocked, document.Current)
	b.listen(appPath, websocket.DialOptions{HTTPHeader: header})
}
