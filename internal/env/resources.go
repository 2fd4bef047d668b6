package env

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/compute/metadata"

	"taskguard/internal/taskauth"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
)

// Firestore names a database.
type Firestore struct {
	Project  string // empty: from the metadata server
	Database string
	Emulator string // FIRESTORE_EMULATOR_HOST, which Google's library reads itself
}

// Variables that name emulators.
const (
	firestoreEmulator = "FIRESTORE_EMULATOR_HOST"
	tasksEmulator     = "CLOUD_TASKS_EMULATOR_HOST"
)

// Firestore reads the name of the database.
func (e *Environment) Firestore() Firestore {
	return Firestore{
		Project:  e.Checked("GOOGLE_CLOUD_PROJECT", "", CheckName),
		Database: e.Checked("FIRESTORE_DATABASE", "(default)", CheckName),
		Emulator: e.Checked(firestoreEmulator, "", CheckAddress),
	}
}

// EmulateFirestoreToo refuses an emulated queue beside Google's Firestore, which nobody means to use then.
func (e *Environment) EmulateFirestoreToo() {
	e.Refuse(e.Text(tasksEmulator, "") != "" && e.Text(firestoreEmulator, "") == "", firestoreEmulator,
		"must be set too, because %s is: otherwise the documents would be on Google Cloud", tasksEmulator)
}

// emulateQueueToo refuses Google's queue beside an emulated Firestore: its deliveries would find no documents.
func (e *Environment) emulateQueueToo() {
	e.Refuse(e.Text(firestoreEmulator, "") != "" && e.Text(tasksEmulator, "") == "", tasksEmulator,
		"must be set too, because %s is: otherwise the tasks would go to Google Cloud", firestoreEmulator)
}

// LockPolicy reads the policy of the locks of analyses.
func (e *Environment) LockPolicy() lease.Policy {
	p := lease.Policy{
		TTL:         e.Duration("LOCK_TTL", lease.DefaultTTL),
		MaxAttempts: e.Integer("MAX_ATTEMPTS", 10, 1, 1_000_000),
	}
	p.Heartbeat = e.Duration("LOCK_HEARTBEAT", 0)
	e.Add(Named("LOCK_TTL, LOCK_HEARTBEAT", p.Check()))
	return p
}

// KeepFinished reads the time for which finished analyses are kept; 0: without limit.
func (e *Environment) KeepFinished() time.Duration {
	keep := e.DurationOrZero("KEEP_FINISHED", 0)
	e.Add(CheckKeep(keep, e.Text("TASK_QUEUE", "") != ""))
	return keep
}

// CheckKeep returns a problem of KEEP_FINISHED if keep is negative, or too short for a service
// whose deliveries come from a queue.
func CheckKeep(keep time.Duration, queue bool) error {
	switch {
	case keep < 0:
		return fmt.Errorf("KEEP_FINISHED: %v is negative", keep)
	case keep > 0 && keep < 32*24*time.Hour && queue:
		return fmt.Errorf("KEEP_FINISHED: %v is under 768h: Cloud Tasks may deliver a task for 31 days", keep)
	}
	return nil
}

// TaskQueue reads the queue of deliveries, their target and their caller. It returns the zero
// Config if no queue is named. It refuses a queue and a Firestore of which only one is
// emulated.
func (e *Environment) TaskQueue() taskqueue.Config {
	c := taskqueue.Config{
		Name: e.Text("TASK_QUEUE", ""), TargetURL: e.Text("TASK_TARGET_URL", ""), Caller: e.Text("TASK_CALLER", ""),
		Audience: e.Text("TASK_AUDIENCE", ""), EmulatorHost: e.Checked(tasksEmulator, "", CheckAddress),
	}
	if c.Name == "" {
		e.Unused("belongs to TASK_QUEUE, which is not set",
			"TASK_TARGET_URL", "TASK_CALLER", tasksEmulator)
		return taskqueue.Config{}
	}
	e.forTests(tasksEmulator)
	if !e.onCloudRun() { // there, either is refused
		e.EmulateFirestoreToo()
		e.emulateQueueToo()
	}
	e.Add(c.Check())
	return c
}

// keysURL is the variable of the URL of the tokens' public keys; unset: Google's.
const keysURL = "TASK_JWKS_URL"

// TaskAuth configures how the calls of Cloud Tasks and Cloud Scheduler are authenticated.
type TaskAuth struct {
	Mode  string           // oidc: by this service; iam: by Cloud Run; none: not at all
	Token taskauth.Options // what a valid token has; only with oidc
}

// TaskAuth reads TASK_AUTH and its variables, and refuses variables of another mode. The mode is
// required if def, the default, is empty. If the service also verifies otherTokens, TASK_JWKS_URL is
// allowed in any mode.
func (e *Environment) TaskAuth(emulator, def string, otherTokens bool) (a TaskAuth) {
	a.Mode = e.Text("TASK_AUTH", def)
	e.forTests(firestoreEmulator)
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
	e.forTests(keysURL)
	return e.URL(keysURL)
}

// URL reads the variable name, which may be unset.
func (e *Environment) URL(name string) string {
	v := e.Text(name, "")
	u, err := url.Parse(v)
	wrong := err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == ""
	e.Refuse(v != "" && wrong, name, "is not an http or https URL")
	e.Refuse(!wrong && u.User != nil, name, "has a user or a password before the host: remove them")
	return v
}

// Warn logs a warning if the callers seem to be unchecked.
func (a TaskAuth) Warn(ctx context.Context, log *slog.Logger) {
	if a.Mode == "iam" && os.Getenv("K_SERVICE") == "" {
		log.WarnContext(ctx, "TASK_AUTH=iam leaves the check of the callers to Cloud Run, and K_SERVICE, "+
			"which Cloud Run sets, is not set: anybody who reaches this process may call")
	}
}

// ProjectHere asks the metadata server for the project. Only Google's machines have that server.
func ProjectHere(ctx context.Context, emulator string) (string, error) {
	const problem = "GOOGLE_CLOUD_PROJECT: not set, and there is no metadata server"
	if emulator != "" {
		return "", errors.New("GOOGLE_CLOUD_PROJECT: must be set with FIRESTORE_EMULATOR_HOST, to any name")
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if !metadata.OnGCEWithContext(ctx) {
		return "", errors.New(problem)
	}
	id, err := metadata.ProjectIDWithContext(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", problem, err)
	}
	return id, nil
}
