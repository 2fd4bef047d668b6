package oidc_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"taskguard/emulator/oidc"
)

// A service verifies a token with the keys that the issuer serves. A worker fetches them
// from its TASK_JWKS_URL.
func Example() {
	if err := call(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// caller@my-project.iam.gserviceaccount.com calls [https://worker.example]
}

func call() error {
	issuer := oidc.NewIssuer()
	server := httptest.NewServer(issuer)
	defer server.Close()
	raw, err := issuer.Token("caller@my-project.iam.gserviceaccount.com", "https://worker.example")
	if err != nil {
		return err
	}

	answer, err := http.Get(server.URL)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var keys jose.JSONWebKeySet
	if err := json.NewDecoder(answer.Body).Decode(&keys); err != nil {
		return err
	}
	token, err := jwt.ParseSigned(raw, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		return err
	}
	var claims struct {
		Email    string       `json:"email"`
		Audience jwt.Audience `json:"aud"`
	}
	if err := token.Claims(keys, &claims); err != nil {
		return err
	}
	fmt.Println(claims.Email, "calls", claims.Audience)
	return nil
}
