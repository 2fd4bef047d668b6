package doclockservice

import (
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/locks/document/server"
)

const secret = "SESSION_SECRET=0123456789abcdef0123456789abcdef"

// environ returns an environment of settings such as PORT=1.
func environ(words ...string) func(string) (string, bool) {
	env := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		env[k] = v
	}
	return func(k string) (string, bool) { v, ok := env[k]; return v, ok }
}

func parse(words ...string) (Config, error) { return ParseConfig(environ(words...)) }

func TestTheDefaultsAreTheContracts(t *testing.T) {
	c := must(parse("TASK_AUTH=iam", secret))(t)
	if c.Port != 8080 || c.Database != "(default)" || c.Collection != "documentLocks" || c.TTL != 30*time.Second ||
		c.Sweep != time.Minute || c.Locks != 100 || c.Sockets != 100 || c.Sessions != "cookie" || c.LogFormat != "json" {
		t.Errorf("config = %+v", c)
	}
}

func TestTheDurationsAreConfiguration(t *testing.T) {
	for _, sweep := range []string{"0", "0s"} {
		c, err := parse("TASK_AUTH=iam", secret, "DOCUMENT_LOCK_TTL=45s", "SWEEP_INTERVAL="+sweep)
		if err != nil || c.TTL != 45*time.Second || c.Sweep != 0 {
			t.Errorf("%+v, %v", c, err)
		}
	}
}

func TestTheEventsNamespaceIsReadAsLaravelEchoReadsIt(t *testing.T) {
	for _, text := range []string{`App\Events`, `App\\Events`, "App.Events"} {
		c, err := parse("TASK_AUTH=iam", secret, "PUSHER_APP_KEY=k", "PUSHER_APP_SECRET=s", "PUSHER_EVENT_NAMESPACE="+text)
		if want := (server.Pusher{Key: "k", Secret: "s", Channel: "documents.{room}", Namespace: `App\Events`}); err != nil || c.Pusher != want {
			t.Errorf("%s: got %+v, %v, want %+v", text, c.Pusher, err, want)
		}
	}
}

func TestABadEnvironmentIsNamed(t *testing.T) {
	people := []string{"TASK_AUTH=iam", "SESSION_AUTH=oidc", "SESSION_AUDIENCE=https://d.example"}
	people = people[:len(people):len(people)]
	cases := map[string]struct {
		env  []string
		want []string // one line each, in this order
	}{
		"nothing set":               {nil, []string{"TASK_AUTH: must be set", "SESSION_SECRET: must be set"}},
		"an emulator":               {[]string{"FIRESTORE_EMULATOR_HOST=h:1", secret}, nil},
		"none without an emulator":  {[]string{"TASK_AUTH=none", secret}, []string{"TASK_AUTH: none is for emulators"}},
		"a sweep without a caller":  {[]string{secret, "SWEEP_INTERVAL=10s"}, []string{"TASK_AUTH: must be set"}},
		"a secret too short":        {[]string{"TASK_AUTH=iam", "SESSION_SECRET=0123456789abcdef0123456789abcde"}, []string{"SESSION_SECRET: must be set, to at least 32 random bytes"}},
		"a misspelt auth":           {[]string{"TASK_AUTH=iam", secret, "SESSION_AUTH=OIDC"}, []string{`SESSION_AUTH: "OIDC" is not one of cookie, application, oidc`}},
		"the application's":         {[]string{"TASK_AUTH=iam", "SESSION_AUTH=application", secret}, nil},
		"without a secret":          {[]string{"TASK_AUTH=iam", "SESSION_AUTH=application"}, []string{"SESSION_SECRET: must be set"}},
		"a whole oidc":              {people, nil},
		"oidc without audience":     {[]string{"TASK_AUTH=iam", "SESSION_AUTH=oidc"}, []string{"SESSION_AUDIENCE: must be set"}},
		"oidc with a secret":        {append(people, secret), []string{"SESSION_SECRET: belongs to SESSION_AUTH=cookie and application"}},
		"a cookie's audience":       {[]string{"TASK_AUTH=iam", secret, "SESSION_AUDIENCE=x"}, []string{"SESSION_AUDIENCE: belongs to SESSION_AUTH=oidc"}},
		"a name's claim":            {append(people, "SESSION_NAME_CLAIM=name"), nil},
		"a name's claim of cookies": {[]string{"TASK_AUTH=iam", secret, "SESSION_NAME_CLAIM=name"}, []string{"SESSION_NAME_CLAIM: belongs to SESSION_AUTH=oidc"}},
		"a claim with an id":        {append(people, "SESSION_USER_CLAIM=sub", "AUTHORIZE_URL=https://a.example/may-lock"), nil},
		"a cookie's claim":          {[]string{"TASK_AUTH=iam", secret, "SESSION_USER_CLAIM=sub"}, []string{"SESSION_USER_CLAIM: belongs to SESSION_AUTH=oidc"}},
		"a path that authorizes":    {append(people, "AUTHORIZE_URL=/may-lock"), []string{"AUTHORIZE_URL: is not an http or https URL"}},
		"a user who authorizes":     {append(people, "AUTHORIZE_URL=http://u:p@a.example/"), []string{"AUTHORIZE_URL: has a user or a password"}},
		"Pusher and origins":        {append(people, "PUSHER_APP_KEY=k", "PUSHER_APP_SECRET=s", "ALLOWED_ORIGINS=https://a.example,http://localhost:5173, http://[::1]:8080,https://xn--r8jz45g.example:80"), nil},
		"an application's names":    {append(people, "PUSHER_APP_KEY=k", "PUSHER_APP_SECRET=s", "PUSHER_CHANNEL=rooms.{room}.lock", `PUSHER_EVENT_NAMESPACE=App\\Events`), nil},
		"names of what is disabled": {append(people, "PUSHER_CHANNEL=rooms.{room}", "PUSHER_EVENT_NAMESPACE=App"), []string{"PUSHER_CHANNEL: is used only with", "PUSHER_EVENT_NAMESPACE: is used only with"}},
		"a channel without a room":  {append(people, "PUSHER_APP_KEY=k", "PUSHER_APP_SECRET=s", "PUSHER_CHANNEL=documents"), []string{"PUSHER_CHANNEL: "}},
		"a channel of all rooms":    {append(people, "PUSHER_APP_KEY=k", "PUSHER_APP_SECRET=s", "PUSHER_CHANNEL={room}"), []string{"PUSHER_CHANNEL: "}},
		"a private channel":         {append(people, "PUSHER_APP_KEY=k", "PUSHER_APP_SECRET=s", "PUSHER_CHANNEL=private-x.{room}", "PUSHER_EVENT_NAMESPACE=a b"), []string{"PUSHER_CHANNEL: ", "PUSHER_EVENT_NAMESPACE: "}},
		"a key without a secret":    {append(people, "PUSHER_APP_KEY=k"), []string{"PUSHER_APP_SECRET: must be set"}},
		"a secret without a key":    {append(people, "PUSHER_APP_SECRET=s"), []string{"PUSHER_APP_KEY: must be set"}},
		"a key that is no key":      {append(people, "PUSHER_APP_KEY=k/:", "PUSHER_APP_SECRET=s"), []string{"PUSHER_APP_KEY: has a character"}},
		"origins that match nothing": {
			append(people, "ALLOWED_ORIGINS=*,https://*.a.example,https://a.example/,a.example,https://A.example,https://a.example/x,ftp://a.example,https://u@a.example,null,"+
				"https://a.example:443,http://a.example:80,http://[::1]:80,https://a.example:,https://例え.example"),
			slices.Repeat([]string{"ALLOWED_ORIGINS: "}, 14),
		},
		"a TTL under a second":       {[]string{"TASK_AUTH=iam", secret, "DOCUMENT_LOCK_TTL=999ms"}, []string{"DOCUMENT_LOCK_TTL: "}},
		"a negative sweep":           {[]string{"TASK_AUTH=iam", secret, "SWEEP_INTERVAL=-1s"}, []string{"SWEEP_INTERVAL: "}},
		"a document's path":          {[]string{"TASK_AUTH=iam", secret, "DOCUMENT_LOCKS_COLLECTION=a/b"}, []string{"DOCUMENT_LOCKS_COLLECTION: "}},
		"keys of people alone":       {append(people, "TASK_JWKS_URL=x"), []string{"TASK_JWKS_URL: is not an http or https URL"}},
		"both, with one URL of keys": {[]string{"TASK_AUTH=oidc", "TASK_AUDIENCE=a", "TASK_SERVICE_ACCOUNTS=a@b.c", "SESSION_AUTH=oidc", "SESSION_AUDIENCE=b", "TASK_JWKS_URL=x"}, []string{"TASK_JWKS_URL: "}},
	}
	for name, tc := range cases {
		var lines []string
		if _, err := parse(tc.env...); err != nil {
			lines = strings.Split(err.Error(), "\n")
		}
		if !slices.EqualFunc(lines, tc.want, strings.HasPrefix) {
			t.Errorf("%s: got %q, want %q…", name, lines, tc.want)
		}
	}
}
