package env

import (
	"context"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"

	"taskguard/internal/taskauth"
)

// keysURL is the variable of the URL of the tokens' public keys; unset: Google's.
const keysURL = "TASK_JWKS_URL"

// TaskAuth configures how the calls of Cloud Tasks and Cloud Scheduler are authenticated.
type TaskAuth struct {
	Mode  string           // oidc: by this service; iam: by Cloud Run; none: not at all
	Token taskauth.Options // of a valid token, with oidc
}

// TaskAuth reads TASK_AUTH and its variables, and refuses those of another mode. The mode is
// required if def, the default, is empty. otherTokens reports that the service verifies other
// tokens too: TASK_JWKS_URL is then allowed in any mode.
func (e *Environment) TaskAuth(emulator, def string, otherTokens bool) (a TaskAuth) {
	a.Mode = e.Text("TASK_AUTH", def)
	e.ForTests("FIRESTORE_EMULATOR_HOST")
	e.Refuse(a.Mode == "", "TASK_AUTH", "must be set: oidc (this service verifies tokens), "+
		"iam (Cloud Run's check in front), or none together with FIRESTORE_EMULATOR_HOST")
	e.Refuse(!slices.Contains([]string{"", "oidc", "iam", "none"}, a.Mode),
		"TASK_AUTH", "%q is not one of oidc, iam, none", a.Mode)
	e.Refuse(a.Mode == "none" && (emulator == "" || e.onCloudRun()), "TASK_AUTH", "none is for emulators: "+
		"it needs FIRESTORE_EMULATOR_HOST, and not to be on Cloud Run, where K_SERVICE is set")

	if a.Mode != "oidc" {
		e.Unused("belongs to TASK_AUTH=oidc", "TASK_AUDIENCE", "TASK_SERVICE_ACCOUNTS")
		if !otherTokens {
			e.Unused("belongs to TASK_AUTH=oidc", keysURL)
		}
		return a
	}
	a.Token = e.token()
	return a
}

// token reads the claims that a valid token has.
func (e *Environment) token() taskauth.Options {
	o := taskauth.Options{Audience: e.Text("TASK_AUDIENCE", ""), Accounts: e.List("TASK_SERVICE_ACCOUNTS")}
	e.Refuse(o.Audience == "", "TASK_AUDIENCE",
		"must be set with TASK_AUTH=oidc, to the audience of the queue's tokens")
	e.Refuse(len(o.Accounts) == 0, "TASK_SERVICE_ACCOUNTS",
		"must be set with TASK_AUTH=oidc, to the accounts that may call, separated by commas")
	for _, account := range o.Accounts {
		e.Refuse(!strings.Contains(account, "@"), "TASK_SERVICE_ACCOUNTS",
			"%q is not the e-mail address of a service account", account)
	}
	o.KeysURL = e.KeysURL()
	return o
}

// KeysURL reads TASK_JWKS_URL.
func (e *Environment) KeysURL() string {
	e.ForTests(keysURL)
	v := e.Text(keysURL, "")
	u, err := url.Parse(v)
	e.Refuse(v != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil),
		keysURL, "is not an http or https URL")
	return v
}

// Warn logs a warning if the callers seem to be unchecked.
func (a TaskAuth) Warn(ctx context.Context, log *slog.Logger) {
	if a.Mode == "iam" && os.Getenv("K_SERVICE") == "" {
		log.WarnContext(ctx, "TASK_AUTH=iam leaves the check of the callers to Cloud Run, and K_SERVICE, "+
			"which Cloud Run sets, is not set: anybody who reaches this process may call")
	}
}
