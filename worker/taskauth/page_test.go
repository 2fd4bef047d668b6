package taskauth_test

import (
	"encoding/base64"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/worker/taskauth"
)

// lateHeaders lets h set headers after the body.
func lateHeaders(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		late := httptest.NewRecorder()
		h.ServeHTTP(late, r)
		for name, values := range late.Header() {
			w.Header()[name] = values
		}
		_, _ = w.Write(late.Body.Bytes())
	})
}

func withKeyID(kid string) string {
	header := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"alg":"RS256","kid":%q}`, kid))
	return header + ".e30.AAAA"
}

// googlePage is the good page with junk before its key.
func googlePage(junk ...string) string {
	w := httptest.NewRecorder()
	google().ServeHTTP(w, nil)
	return strings.Replace(w.Body.String(), "[", "["+strings.Join(append(junk, ""), ","), 1)
}

// key is a page's entry for the issuer's key id.
func key(kid, n, e string) string {
	return fmt.Sprintf(`{"kty":"RSA","alg":"RS256","use":"sig","kid":%q,"n":%q,"e":%q}`, kid, n, e)
}

func modulus(bits uint) string {
	n := new(big.Int).Lsh(big.NewInt(1), bits-1)
	return base64.RawURLEncoding.EncodeToString(n.SetBit(n, 0, 1).Bytes())
}

// junk is entries that are no usable key, under the name of one that is.
func junk() map[string]string {
	kid, public := publicKey()
	n := base64.RawURLEncoding.EncodeToString(public.N.Bytes())
	even := new(big.Int).Add(public.N, big.NewInt(1))
	return map[string]string{
		"null":             `null`,
		"text":             `"key"`,
		"array":            `[[[]]]`,
		"empty":            `{}`,
		"kid a number":     `{"kty":"RSA","kid":7,"n":"AQAB","e":"AQAB"}`,
		"no kid":           key("", n, "AQAB"),
		"N not base64":     key(kid, "!!!", "AQAB"),
		"N padded":         key(kid, n+"==", "AQAB"),
		"N with more":      key(kid, modulus(2064)+"!", "AQAB"),
		"N empty":          key(kid, "", "AQAB"),
		"N of 1024 bits":   key(kid, modulus(1024), "AQAB"),
		"N of 16384 bits":  key(kid, modulus(16384), "AQAB"),
		"N of 2 Mbit":      key(kid, modulus(2<<20), "AQAB"),
		"N even":           key(kid, base64.RawURLEncoding.EncodeToString(even.Bytes()), "AQAB"),
		"E not base64":     key(kid, n, "="),
		"E with more":      key(kid, n, "AQAB!"),
		"E of 0":           key(kid, n, "AA"),
		"E empty":          key(kid, n, ""),
		"E of 1":           key(kid, n, "AQ"),
		"E even":           key(kid, n, "Ag"),
		"E of 32 bits":     key(kid, n, "gAAAAQ"),
		"E huge":           key(kid, n, strings.Repeat("A", 10000)+"AQAB"),
		"another type":     strings.Replace(key(kid, n, "AQAB"), `"RSA"`, `"EC"`, 1),
		"for encryption":   strings.Replace(key(kid, n, "AQAB"), `"sig"`, `"enc"`, 1),
		"another alg":      strings.Replace(key(kid, n, "AQAB"), `"RS256"`, `"RS512"`, 1),
		"elliptic, no RSA": `{"kty":"EC","crv":"P-256","kid":"` + kid + `","x":"","y":""}`,
	}
}

// breakages are the ways in which a page can fail to be one.
func breakages() map[string]func(*site) {
	all := map[string]func(*site){
		"dark":  func(s *site) { s.dark = true },
		"slow":  func(s *site) { s.slow = time.Hour },
		"broke": func(s *site) { s.broken = true },
		"other": func(s *site) { s.handler = page("<html>example</html>") },
		"empty": func(s *site) { s.handler = page("") },
		"null":  func(s *site) { s.handler = page("null") },
		"array": func(s *site) { s.handler = page("[]") },
		"no keys": func(s *site) {
			s.handler = page(`{"keys":[]}`)
		},
		"keys null": func(s *site) { s.handler = page(`{"keys":null}`) },
		"keys text": func(s *site) { s.handler = page(`{"keys":"example"}`) },
		"cut":       func(s *site) { s.handler = page(googlePage()[:300]) },
		"over 1 MiB": func(s *site) {
			s.handler = page(googlePage() + strings.Repeat(" ", 1<<20))
		},
		"deep": func(s *site) { s.handler = page(`{"keys":` + strings.Repeat("[", 100000)) },
		"all junk": func(s *site) {
			var entries []string
			for name, entry := range junk() {
				if name != "N of 2 Mbit" { // alone it is near the limit of a page
					entries = append(entries, entry)
				}
			}
			s.handler = page(`{"keys":[` + strings.Join(entries, ",") + `]}`)
		},
	}
	for _, status := range []int{204, 206, 302, 403, 404, 429, 500, 503} {
		all[fmt.Sprint(status)] = func(s *site) {
			s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				google().ServeHTTP(w, r)
			})
		}
	}
	return all
}

func TestAPageThatHolds1MiBIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := googlePage()
		v := running(t, &site{handler: page(text + strings.Repeat(" ", 1<<20-len(text)))}, nil)
		wantPass(t, v, mint(t, google()))
	})
}

// A body that stays open keeps its connection.
func TestEachPageIsClosed(t *testing.T) {
	for name, handler := range map[string]http.Handler{"a good one": google(), "none": http.NotFoundHandler()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &site{handler: handler}
				running(t, s, nil)
				wantFetches(t, s, 1)
				if got := s.closed.Load(); got != 1 {
					t.Errorf("closed %d times, want once", got)
				}
			})
		})
	}
}

func TestJunkOnThePageSpoilsNothing(t *testing.T) {
	for name, entry := range junk() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := running(t, &site{handler: page(googlePage(entry))}, nil)
				wantPass(t, v, mint(t, google()))
				wantError(t, v, forge("RS256", "{}", mac(nil)), taskauth.ErrUnauthenticated)
			})
		})
	}
}

func TestAPageOfJunkAloneIsNoKeys(t *testing.T) {
	for name, entry := range junk() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := running(t, &site{handler: page(`{"keys":[` + entry + `]}`)}, nil)
				wantError(t, v, mint(t, google()), taskauth.ErrNoKeys)
			})
		})
	}
}

func TestAKeyAtALimitIsUsable(t *testing.T) {
	kid, public := publicKey()
	n := base64.RawURLEncoding.EncodeToString(public.N.Bytes())
	for name, entry := range map[string]string{
		"N of 8192 bits":       key(kid, modulus(8192), "AQAB"),
		"N of 8192 characters": key(kid, strings.Repeat("A", 8192-344)+modulus(2064), "AQAB"),
		"E of 2 bits":          key(kid, n, "Aw"),
		"E of 31 bits":         key(kid, n, "f____w"),
		"E of 8 characters":    key(kid, n, "AAAAAQAB"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := running(t, &site{handler: page(`{"keys":[` + entry + `]}`)}, nil)
				wantError(t, v, forge("RS256", "{}", mac(nil)), taskauth.ErrUnauthenticated)
			})
		})
	}
}

// Whoever knows a key's exponent to be 1 signs anything with it.
func TestTheFirstOfTwoKeysOfOneNameCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kid, _ := publicKey()
		v := running(t, &site{handler: page(googlePage(key(kid, modulus(2048), "AQAB")))}, nil)
		wantError(t, v, mint(t, google()), taskauth.ErrUnauthenticated)
	})
}
