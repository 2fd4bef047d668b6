package lease_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"taskguard/lease"
)

func TestAKeyIsOnePlainPathSegmentWithinItsLimit(t *testing.T) {
	for _, key := range []string{"a", "é", "a.b", "...", "_", "__", "___", "__a", "a__", "_a_", "%2f", " ", strings.Repeat("k", 8)} {
		if err := lease.CheckKey("room", key, 8); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
	for key, problem := range map[string]string{
		"":                     "is empty",
		strings.Repeat("k", 9): "has 9 bytes, at most 8 are possible",
		"a\xff":                "is not UTF-8",
		".":                    "is a path",
		"..":                   "is a path",
		"a/b":                  "has a slash",
		"____":                 "is reserved: __…__",
		"__a__":                "is reserved: __…__",
		"a\ufffd":              "has a replacement character (U+FFFD)",
		"a\x00":                "has a control character",
		"a\u0085":              "has a control character",
	} {
		err := lease.CheckKey("room", key, 8)
		if want := "lease: invalid key: the room id " + problem; !errors.Is(err, lease.ErrInvalidKey) || err.Error() != want {
			t.Errorf("%q: %v; want %s", key, err, want)
		}
	}
}

func TestTheExpiryOfAHeldLeaseIsShownInUTC(t *testing.T) {
	held := &lease.HeldError{Owner: "w/1", ExpiresAt: noon.In(time.FixedZone("", 3600))}
	if got, want := held.Error(), "lease: held by another until 2026-03-04T12:00:00Z"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
}
