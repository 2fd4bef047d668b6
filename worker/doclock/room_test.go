package doclock_test

import (
	"net/http"
	"strings"
	"testing"
)

func TestARoomThatNoStoreCanHoldIsRefused(t *testing.T) {
	b := newSite(t, nil).browser(t)
	for id, problem := range map[string]string{
		"":                           "is empty",
		strings.Repeat("x", 513):     "has 513 bytes, at most 512 are possible",
		strings.Repeat("x", 1500):    "has 1500 bytes, at most 512 are possible",
		strings.Repeat("%E6%97", 86): "is not UTF-8",
		strings.Repeat("日", 171):     "has 513 bytes, at most 512 are possible",
		"%ff":                        "is not UTF-8",
		"%C0%AF":                     "is not UTF-8",
		"%ED%A0%80":                  "is not UTF-8",
		"%EF%BF%BD":                  "has a replacement character (U+FFFD)",
		"a%00b":                      "has a control character",
		"a%0Ab":                      "has a control character",
		"%7F":                        "has a control character",
		"%C2%85":                     "has a control character",
		"a%2Fb":                      "has a slash",
		"a%2fb":                      "has a slash",
		"%2F":                        "has a slash",
		".":                          "is a path",
		"..":                         "is a path",
		"%2e":                        "is a path",
		"%2E%2e":                     "is a path",
		"__x__":                      "is reserved: __…__",
		"%5F_x__":                    "is reserved: __…__",
		"____":                       "is reserved: __…__",
	} {
		want := `{"success":false,"error":"bad_request","message":"the room id ` + problem + `"}`
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodGet} {
			b.want(http.StatusBadRequest, want, method, "/api/documents/"+id+"/lock")
		}
		b.want(http.StatusBadRequest, want, http.MethodGet, "/api/documents/"+id+"/lock/confirm?token=1")
		b.want(http.StatusBadRequest, want, http.MethodGet, "/api/documents/"+id+"/lock/ws", upgrade()...)
	}
}

// Whatever way a client writes an id, it is one room; and %25 is a per cent sign,
// not the beginning of another character.
func TestTheRoomIsDecodedExactlyOnce(t *testing.T) {
	s := newSite(t, nil)
	b := s.browser(t)
	for room, written := range map[string][]string{
		"plain":     {"plain", "%70lain", "%70%6c%61%69%6E"},
		"日本 語":      {"日本%20語", "%E6%97%A5%E6%9C%AC%20%E8%AA%9E"},
		"a%2Fb":     {"a%252Fb", "a%252F%62"},
		"a+b":       {"a+b", "a%2Bb"},
		"q?x=1#y":   {"q%3Fx=1%23y"},
		"%":         {"%25"},
		"imgponic:": {"imgponic:", "imgponic%3A"},
		"…x…":       {"…x…"},
		"_x__":      {"_x__"},
		"lock":      {"lock"},
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
