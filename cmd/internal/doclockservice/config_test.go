package doclockservice

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/locks/document/server"
)

const (
	secret  = "SESSION_SECRET=0123456789abcdef0123456789abcdef"
	cookies = "TASK_AUTH=iam " + secret
	people  = "TASK_AUTH=iam SESSION_AUTH=oidc SESSION_AUDIENCE=https://d.example"
	pusher  = people + " PUSHER_APP_KEY=k PUSHER_APP_SECRET=s"

	namesOfClaims, namesOfPusher = "SESSION_NAME_CLAIM SESSION_USER_CLAIM", "PUSHER_CHANNEL PUSHER_EVENT_NAMESPACE"
)

// environ returns an environment of settings such as PORT=1.
func environ(words ...string) func(string) (string, bool) {
	env := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		env[k] = v
	}
	return func(k string) (string, bool) { v, ok := env[k]; return v, ok }
}

// parse parses an environment of settings with spaces between them.
func parse(settings string) (Config, error) { return ParseConfig(environ(strings.Fields(settings)...)) }

func TestDoclockConfig(t *testing.T) {
	t.Run("the defaults are the contract's", func(t *testing.T) {
		got := must.Get(parse(cookies))(t)
		want := Config{
			Process: got.Process, Tasks: got.Tasks, Secret: got.Secret, Sessions: "cookie", Collection: "documentLocks",
			TTL: 30 * time.Second, Sweep: time.Minute, Locks: 100, Sockets: 100,
			Pusher:    server.Pusher{Channel: "documents.{room}"},
			variables: got.variables,
		}
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) || got.Port != 8080 {
			t.Errorf("%+v, want %+v", got, want)
		}
	})

	t.Run("the durations are configuration", func(t *testing.T) {
		for _, sweep := range []string{"0", "0s"} {
			c := must.Get(parse(cookies + " DOCUMENT_LOCK_TTL=45s SWEEP_INTERVAL=" + sweep))(t)
			if c.TTL != 45*time.Second || c.Sweep != 0 {
				t.Errorf("%+v", c)
			}
		}
	})

	t.Run("a namespace is read as Laravel Echo reads it", func(t *testing.T) {
		for _, text := range []string{`App\Events`, `App\\Events`, "App.Events"} {
			c := must.Get(parse(pusher + " PUSHER_EVENT_NAMESPACE=" + text))(t)
			if c.Pusher.Namespace != `App\Events` {
				t.Errorf("%s: %s", text, c.Pusher.Namespace)
			}
		}
	})

	t.Run("what is wrong is named", whatIsWrongIsNamed)
}

func whatIsWrongIsNamed(t *testing.T) {
	for settings, names := range map[string]string{
		"":                                      "TASK_AUTH SESSION_SECRET",
		"FIRESTORE_EMULATOR_HOST=h:1 " + secret: "",
		"TASK_AUTH=none " + secret:              "TASK_AUTH", // is for emulators
		secret + " SWEEP_INTERVAL=10s":          "TASK_AUTH",
		"TASK_AUTH=iam " + secret[:len(secret)-1]:  "SESSION_SECRET", // 31 bytes
		"TASK_AUTH=iam SESSION_AUTH=application":   "SESSION_SECRET",
		cookies + " SESSION_AUTH=application":      "",
		cookies + " SESSION_AUTH=OIDC":             "SESSION_AUTH",
		cookies + " DOCUMENT_LOCK_TTL=999ms":       "DOCUMENT_LOCK_TTL",
		cookies + " SWEEP_INTERVAL=-1s":            "SWEEP_INTERVAL",
		cookies + " DOCUMENT_LOCKS_COLLECTION=a/b": "DOCUMENT_LOCKS_COLLECTION",

		people:                            "",
		people + " " + secret:             "SESSION_SECRET",
		"TASK_AUTH=iam SESSION_AUTH=oidc": "SESSION_AUDIENCE",
		cookies + " SESSION_AUDIENCE=x":   "SESSION_AUDIENCE",
		cookies + " SESSION_NAME_CLAIM=x SESSION_USER_CLAIM=y":                                 namesOfClaims,
		people + " SESSION_NAME_CLAIM=name SESSION_USER_CLAIM=sub":                             "",
		people + " TASK_JWKS_URL=x":                                                            "TASK_JWKS_URL",
		people + " TASK_JWKS_URL=x TASK_AUTH=oidc TASK_AUDIENCE=a TASK_SERVICE_ACCOUNTS=a@b.c": "TASK_JWKS_URL", // once

		people + " AUTHORIZE_URL=https://a.example/may-lock": "",
		people + " AUTHORIZE_URL=/may-lock":                  "AUTHORIZE_URL",
		people + " AUTHORIZE_URL=http://u:p@a.example/":      "AUTHORIZE_URL",

		pusher + ` PUSHER_CHANNEL=rooms.{room}.lock PUSHER_EVENT_NAMESPACE=App\\Events`: "",
		people + " PUSHER_CHANNEL=rooms.{room} PUSHER_EVENT_NAMESPACE=App":              namesOfPusher,
		pusher + " PUSHER_CHANNEL=documents":                                            "PUSHER_CHANNEL",
		pusher + " PUSHER_CHANNEL={room}":                                               "PUSHER_CHANNEL",
		pusher + " PUSHER_CHANNEL=private-x.{room} PUSHER_EVENT_NAMESPACE=a-b":          namesOfPusher,
		people + " PUSHER_APP_KEY=k":                                                    "PUSHER_APP_SECRET",
		people + " PUSHER_APP_SECRET=s":                                                 "PUSHER_APP_KEY",
		pusher + " PUSHER_APP_KEY=k/:":                                                  "PUSHER_APP_KEY",
	} {
		if got := named(settings); got != names {
			t.Errorf("%s: %q, want %q", settings, got, names)
		}
	}

	for _, origin := range []string{
		"https://a.example", "http://localhost:5173", "http://[::1]:8080", "https://xn--r8jz45g.example:80",
	} {
		if got := named(people + " ALLOWED_ORIGINS=" + origin); got != "" {
			t.Errorf("%s: %s", origin, got)
		}
	}
	for _, origin := range []string{
		"*", "https://*.a.example", "https://a.example/", "a.example", "https://A.example", "https://a.example/x",
		"ftp://a.example", "https://u@a.example", "null", "https://a.example:443", "http://a.example:80",
		"http://[::1]:80", "https://a.example:", "https://例え.example",
	} {
		if got := named(people + " ALLOWED_ORIGINS=" + origin); got != "ALLOWED_ORIGINS" {
			t.Errorf("%s: %q is named, want it refused", origin, got)
		}
	}
}

// named returns the variables at the beginning of the lines of the error.
func named(settings string) string {
	_, err := parse(settings)
	if err == nil {
		return ""
	}
	var names []string
	for line := range strings.Lines(err.Error()) {
		name, _, _ := strings.Cut(line, ":")
		names = append(names, name)
	}
	return strings.Join(names, " ")
}
