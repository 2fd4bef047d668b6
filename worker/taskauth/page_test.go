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
	return map[string]string{
		"null":             `null`,
		"text":             `"key"`,
		"no kid":           key("", n, "AQAB"),
		"N not base64":     key(kid, "!!!", "AQAB"),
		"N of 1024 bits":   key(kid, modulus(1024), "AQAB"),
		"E not base64":     key(kid, n, "="),
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
		"no keys": func(s *site) {
			s.handler = page(`{"keys":[]}`)
		},
		"keys text": func(s *site) { s.handler = page(`{"keys":"example"}`) },
		"cut":       func(s *site) { s.handler = page(googlePage()[:300]) },
		"deep":      func(s *site) { s.handler = page(`{"keys":` + strings.Repeat("[", 100000)) },
		"all junk": func(s *site) {
			var entries []string
			for _, entry := range junk() {
				entries = append(entries, entry)
			}
			s.handler = page(`{"keys":[` + strings.Join(entries, ",") + `]}`)
		},
	}
	for _, status := range []int{204, 302, 404, 500} {
		all[fmt.Sprint(status)] = func(s *site) {
			s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				google().ServeHTTP(w, r)
			})
		}
	}
	return all
}

func TestAnUnusableKeyIsSkipped(t *testing.T) {
	for name, entry := range junk() {
		synctest.Test(t, func(t *testing.T) {
			t.Log(name)
			alone := running(t, &site{handler: page(`{"keys":[` + entry + `]}`)}, nil)
			wantError(t, alone, mint(t, google()), taskauth.ErrNoKeys)
			both := running(t, &site{handler: page(googlePage(entry))}, nil)
			wantPass(t, both, mint(t, google()))
			wantError(t, both, forge("RS256", "{}", mac(nil)), taskauth.ErrUnauthenticated)
		})
	}
}
