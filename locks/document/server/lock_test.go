package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
)

// Bodies that the browsers' code compares.
const (
	notFound = `{"success":false,"error":"lock_not_found","message":"ロックが見つかりません"}`
	notYours = `{"success":false,"error":"not_locked_by_user","message":"ロックを保持していません"}`
	freed    = `{"success":true,"released":true,"message":"ロックを解放しました"}`
	freeNow  = `{"success":true,"released":false,"message":"ロックは既に解放されています。"}`
	free     = `{"is_locked":false,"is_my_lock":false,"locked_at":null,"expires_at":null}`
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

// take locks the room. It returns the answer, and its JSON with letters instead of values.
func (b *browser) take(header ...string) (got taken, shape string) {
	b.t.Helper()
	status, body := b.ask(http.MethodPost, lockPath, header...)
	if status != http.StatusOK {
		b.t.Fatalf("POST: %d %s", status, body)
	}
	check(b.t, json.Unmarshal([]byte(body), &got))
	shape = iso.ReplaceAllString(body, "T")
	return got, strings.NewReplacer(fmt.Sprint(got.Token), "N", `"`+got.Holder+`"`, "H").Replace(shape)
}

func TestEachMethodIsAnsweredAsTheBrowsersCodeExpects(t *testing.T) {
	s := newSite(t, nil)
	mine, other := s.browser(t), s.browser(t)
	mine.want(http.StatusOK, free, http.MethodGet, lockPath)
	mine.want(http.StatusOK, freeNow, http.MethodDelete, lockPath)

	got, shape := mine.take()
	if want := `{"success":true,"expires_at":T,"locked_at":T,"ttl_ms":30000,"token":N,"holder":H}`; shape != want {
		t.Errorf("got %s, want %s", shape, want)
	}
	if d := got.ExpiresAt.Sub(got.LockedAt); d != 30*time.Second {
		t.Errorf("it lives for %v, want 30s", d)
	}
	for b, own := range map[*browser]bool{mine: true, other: false} {
		_, body := b.ask(http.MethodGet, lockPath)
		if got, want := iso.ReplaceAllString(body, "T"), fmt.Sprintf(`{"is_locked":true,"is_my_lock":%v,"locked_at":T,"expires_at":T}`, own); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	since := got.LockedAt.UTC().Format("2006-01-02T15:04:05.000Z")
	other.want(http.StatusConflict,
		`{"success":false,"error":"already_locked","message":"他のユーザーが編集中です","locked_at":"`+since+`"}`, http.MethodPost, lockPath)
	other.want(http.StatusForbidden, notYours, http.MethodPut, lockPath)
	other.want(http.StatusForbidden, notYours, http.MethodDelete, lockPath)
	other.want(http.StatusForbidden, notYours, http.MethodGet, fmt.Sprintf("%s/confirm?token=%d", lockPath, got.Token))

	time.Sleep(2 * time.Millisecond)
	status, body := mine.ask(http.MethodPut, lockPath)
	var next taken
	if err := json.Unmarshal([]byte(body), &next); err != nil || status != http.StatusOK {
		t.Fatal(status, body, err)
	}
	if next.Token != got.Token || next.Holder != got.Holder || !next.LockedAt.Equal(got.LockedAt) {
		t.Errorf("a heartbeat: %s, want the lock as it was", body)
	}
	if later := next.ExpiresAt.Sub(got.ExpiresAt); later <= 0 || later >= 30*time.Second {
		t.Errorf("it ends %v later, want it replaced, not added to", later)
	}

	mine.want(http.StatusOK, freed, http.MethodDelete, lockPath)
	mine.want(http.StatusOK, freeNow, http.MethodDelete, lockPath)
	mine.want(http.StatusOK, free, http.MethodGet, lockPath)
}

func TestPutWithoutALockIsNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memory(t, cookies(t))
		cookie := begun(t, h)
		want := func(status int, body, method string) {
			t.Helper()
			if s, got, _ := visit(t, h, method, lockPath, cookie); s != status || body != "" && got != body {
				t.Errorf("%s: got %d %s, want %d %s", method, s, got, status, body)
			}
		}
		want(http.StatusNotFound, notFound, http.MethodPut)
		want(http.StatusOK, "", http.MethodPost)
		time.Sleep(30 * time.Second) // R8
		want(http.StatusNotFound, notFound, http.MethodPut)
		want(http.StatusOK, free, http.MethodGet)
	})
}

func TestConfirmReturnsHowLongALockCanBeReliedOn(t *testing.T) {
	b := newSite(t, nil).browser(t)
	b.want(http.StatusNotFound, notFound, http.MethodGet, lockPath+"/confirm?token=1")
	got, _ := b.take()
	_, body := b.ask(http.MethodGet, fmt.Sprintf("%s/confirm?token=%d", lockPath, got.Token))
	var sure struct {
		Valid int64 `json:"valid_for_ms"`
	}
	check(t, json.Unmarshal([]byte(body), &sure))
	if want := fmt.Sprintf(`{"success":true,"token":%d,"expires_at":T,"valid_for_ms":%d}`, got.Token, sure.Valid); iso.ReplaceAllString(body, "T") != want {
		t.Errorf("got %s, want %s", body, want)
	}
	if margin := int64(3000); sure.Valid <= 0 || sure.Valid > 30000-margin {
		t.Errorf("it can be relied on for %d ms, want the remaining time less a margin of %d", sure.Valid, margin)
	}
	b.want(http.StatusForbidden, notYours, http.MethodGet, fmt.Sprintf("%s/confirm?token=%d", lockPath, got.Token-1))
	if _, body := b.ask(http.MethodGet, lockPath+"/confirm"); !strings.HasPrefix(body, fmt.Sprintf(`{"success":true,"token":%d,`, got.Token)) {
		t.Errorf("without a token: %s, want that of the lock", body)
	}
	b.site.browser(t).want(http.StatusForbidden, notYours, http.MethodGet, lockPath+"/confirm")
	for _, token := range []string{"", "x", "1.5", "9223372036854775808", "%31%00", "0", "-1"} {
		b.want(http.StatusBadRequest, `{"success":false,"error":"bad_request","message":"token is not a positive integer"}`,
			http.MethodGet, lockPath+"/confirm?token="+token)
	}
}

func TestTwoTabsOfOneSessionAreTwoOwners(t *testing.T) {
	b := newSite(t, nil).browser(t)
	const header = "X-Lock-Client"
	b.take(header, "tab-1")
	for _, h := range [][]string{{header, "tab-2"}, nil} {
		if status, body := b.ask(http.MethodPost, lockPath, h...); status != http.StatusConflict {
			t.Errorf("%v: %d %s, want 409", h, status, body)
		}
	}
	if status, body := b.ask(http.MethodGet, lockPath, header, strings.Repeat("x", 64)); status != http.StatusOK {
		t.Errorf("64 characters: %d %s", status, body)
	}
	if status, body := b.ask(http.MethodPut, lockPath, header, "tab-1"); status != http.StatusOK {
		t.Errorf("the first tab: %d %s", status, body)
	}
	for _, bad := range []string{"a b", "a/b", "é", strings.Repeat("x", 65), ""} {
		if status, body := b.ask(http.MethodPost, lockPath, header, bad); status != http.StatusBadRequest {
			t.Errorf("%q: %d %s, want 400", bad, status, body)
		}
	}
	if status, _ := b.ask(http.MethodPost, lockPath, header, "a", header, "b"); status != http.StatusBadRequest {
		t.Errorf("two names: %d, want 400", status)
	}
}

func TestAnUnknownRouteOrMethodIsAnsweredInJSON(t *testing.T) {
	b := newSite(t, nil).browser(t)
	const route = `{"success":false,"error":"no_such_route","message":"no such route"}`
	b.want(http.StatusNotFound, route, http.MethodGet, "/nope")
	b.want(http.StatusNotFound, route, http.MethodPost, "/api/documents/a/b/lock")
	b.want(http.StatusMethodNotAllowed, `{"success":false,"error":"method_not_allowed","message":"method not allowed"}`, http.MethodPatch, lockPath)
}

func TestAStoreOutOfReachIsUnavailable(t *testing.T) {
	b := newSite(t, func(s *setup) {
		s.store = refusing{nil, fmt.Errorf("repo: read room %q: %w", "room", lease.ErrRefused)}
	}).browser(t)
	status, body := b.ask(http.MethodPost, lockPath)
	if status != http.StatusInternalServerError || body != `{"success":false,"error":"internal","message":"internal error"}` {
		t.Errorf("refused: %d %s", status, body)
	}
	log := b.site.log.String()
	if !strings.Contains(log, "level=WARN") || !strings.Contains(log, "repo: read room") || strings.Contains(log, `room \"room\"`) {
		t.Errorf("the log holds no warning, or the room: %s", log)
	}
	synctest.Test(t, func(t *testing.T) { // it tries again for some seconds
		h := serverOf(t, refusing{nil, errors.New("no connection")}, cookies(t))
		status, body, _ := visit(t, h, http.MethodGet, lockPath, "")
		if want := `{"success":false,"error":"unavailable","message":"the store is out of reach; try again"}`; status != http.StatusServiceUnavailable || body != want {
			t.Errorf("got %d %s, want 503 %s", status, body, want)
		}
	})
}

func TestAReleaseContinuesAfterItsCallerHasDisconnected(t *testing.T) {
	h := memory(t, cookies(t))
	cookie := begun(t, h)
	if status, body, _ := visit(t, h, http.MethodPost, lockPath, cookie); status != http.StatusOK {
		t.Fatal(status, body)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(gone, http.MethodDelete, lockPath, http.NoBody)
	r.Header.Set("Cookie", cookie)
	h.ServeHTTP(httptest.NewRecorder(), r)
	if _, body, _ := visit(t, h, http.MethodGet, lockPath, cookie); body != free {
		t.Errorf("after it: %s", body)
	}
}

func TestARoomThatNoStoreCanHoldIsRefused(t *testing.T) {
	b := newSite(t, nil).browser(t)
	for id, problem := range map[string]string{
		"":                       "is empty",
		"a%2Fb":                  "has a slash",
		strings.Repeat("x", 513): "has 513 bytes, at most 512 are possible",
	} {
		want := `{"success":false,"error":"bad_request","message":"the room id ` + problem + `"}`
		path := "/api/documents/" + id + "/lock"
		b.want(http.StatusBadRequest, want, http.MethodPost, path)
		b.want(http.StatusBadRequest, want, http.MethodGet, path+"/ws", upgrade()...)
	}
}

// An id is the same room in each encoding. %25 is a percent sign, and is not decoded again.
func TestTheRoomIsDecodedExactlyOnce(t *testing.T) {
	s := newSite(t, nil)
	b := s.browser(t)
	for room, written := range map[string][]string{
		"plain":   {"plain", "%70%6c%61%69%6E"},
		"日本 語":    {"日本%20語", "%E6%97%A5%E6%9C%AC%20%E8%AA%9E"},
		"a%2Fb":   {"a%252Fb", "a%252F%62"},
		"a+b":     {"a+b", "a%2Bb"},
		"q?x=1#y": {"q%3Fx=1%23y"},
	} {
		for _, id := range written {
			if status, body := b.ask(http.MethodPost, "/api/documents/"+id+"/lock"); status != http.StatusOK {
				t.Errorf("%s: %d %s", id, status, body)
			}
			if state, err := s.locks.Get(t.Context(), room, ""); err != nil || !state.Locked {
				t.Errorf("%s did not lock %q: %+v, %v", id, room, state, err)
			}
			b.want(http.StatusOK, freed, http.MethodDelete, "/api/documents/"+id+"/lock")
		}
	}
}

const crossSite = `{"success":false,"error":"cross_site","message":"the request comes from another site"}`

func TestARequestOfAnotherSiteChangesNothing(t *testing.T) {
	s := newSite(t, nil)
	b := s.browser(t)
	got, _ := b.take()
	for name, header := range map[string][]string{
		"another origin":             {"Origin", "https://evil.example"},
		"cross-site with our origin": {"Sec-Fetch-Site", "cross-site", "Origin", s.url},
	} {
		t.Run(name, func(t *testing.T) {
			b := &browser{t, s, b.http}
			for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
				b.want(http.StatusForbidden, crossSite, method, lockPath, header...)
			}
			b.want(http.StatusForbidden, crossSite, http.MethodPost, "/internal/sweep", header...)
		})
	}
	state, err := s.locks.Get(t.Context(), "room", "")
	if err != nil || state.Lock.Token != got.Token || !state.Lock.ExpiresAt.Equal(got.ExpiresAt) {
		t.Errorf("the lock is %+v, %v, want it as it was", state, err)
	}
}
