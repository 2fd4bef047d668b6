package main

import (
	"log/slog"
	"net/http"
	"time"

	"taskguard/emulator/oidc"
)

// The queue of the embedded Cloud Tasks, and the account whose tokens its
// deliveries carry.
const (
	demoQueue  = "projects/demo-taskguard/locations/local/queues/analyses"
	demoCaller = "tasks@demo-taskguard.iam.gserviceaccount.com"
)

// route is how deliveries get from the embedded queue to the workers.
type route struct {
	target string // base URL of the workers; the tokens' audience as well
	tasks  string // host:port of the queue, for those who book
	keys   string // URL of the page of the tokens' keys
}

// variables are a worker's.
func (r route) variables() map[string]string {
	return map[string]string{
		"TASK_AUTH": "oidc", "TASK_AUDIENCE": r.target, "TASK_SERVICE_ACCOUNTS": demoCaller, "TASK_JWKS_URL": r.keys,
		"TASK_QUEUE": demoQueue, "TASK_TARGET_URL": r.target, "TASK_CALLER": demoCaller, tasksEmulator: r.tasks,
	}
}

// serveKeys makes an issuer of tokens and serves its keys at the URL that it
// returns.
func (e *emulated) serveKeys(address string) (page string, err error) {
	if e.issuer, err = oidc.NewIssuer(); err != nil {
		return "", err
	}
	l, err := listen("the page of the tokens' keys", address)
	if err != nil {
		return "", err
	}
	e.keys = &http.Server{
		Handler: e.issuer, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	e.serving.Go(func() { _ = e.keys.Serve(l) }) // returns with Close
	return "http://" + l.Addr().String() + "/oauth2/v3/certs", nil
}
