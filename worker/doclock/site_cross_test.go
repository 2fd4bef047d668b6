package doclock_test

import (
	"net/http"
	"strings"
	"testing"
)

const crossSite = `{"success":false,"error":"cross_site","message":"the request comes from another site"}`

func TestARequestOfAnotherSiteChangesNothing(t *testing.T) {
	s := newSite(t, nil)
	b := s.browser(t)
	got, _ := b.take()
	for name, header := range map[string][]string{
		"another origin":             {"Origin", "https://evil.example"},
		"no origin":                  {"Origin", "null"},
		"another port":               {"Origin", "http://127.0.0.1:1"},
		"our name in another's":      {"Origin", s.url + ".evil.example"},
		"no URL":                     {"Origin", "::"},
		"cross-site":                 {"Sec-Fetch-Site", "cross-site"},
		"another of our site":        {"Sec-Fetch-Site", "same-site"},
		"a site that is unknown":     {"Sec-Fetch-Site", "x"},
		"cross-site with our origin": {"Sec-Fetch-Site", "cross-site", "Origin", s.url},
	} {
		t.Run(name, func(t *testing.T) {
			b := &browser{t, s, b.http}
			for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
				b.want(http.StatusForbidden, crossSite, method, lockPath, header...)
			}
			b.want(http.StatusForbidden, crossSite, http.MethodPost, "/internal/sweep", header...)
			if strings.HasPrefix(header[0], "Origin") {
				b.want(http.StatusForbidden, crossSite, http.MethodGet, lockPath+"/ws", upgrade(header...)...)
			}
		})
	}
	state, err := s.locks.Get(t.Context(), "room", "")
	if err != nil || state.Lock.Token != got.Token || !state.Lock.ExpiresAt.Equal(got.ExpiresAt) {
		t.Errorf("the lock is %+v, %v, want it as it was", state, err)
	}
}

func TestARequestOfOurOwnPageOrOfNoneIsAnswered(t *testing.T) {
	s := newSite(t, nil)
	b := s.browser(t)
	for _, header := range [][]string{
		nil, {"Origin", s.url}, {"Sec-Fetch-Site", "same-origin", "Origin", s.url}, {"Sec-Fetch-Site", "none"},
	} {
		b.take(header...)
	}
}
