package operate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/doctor"
	"taskguard/lease/analysislock"
)

// smokeMargin is how much longer than a run a smoke test waits for READY: for an instance to
// start, and for a retry.
const smokeMargin = 5 * time.Minute

// smoke submits one analysis to the deployment and waits until it is READY. Then it looks for
// its log line and for that of a recovery. The document stays: a second delivery of its task
// would otherwise be rejected with an alert.
func smoke(ctx context.Context, c *cli.Call, input string) (err error) {
	doc, err := inputDocument(input, "doctor-smoke-"+strings.ToLower(rand.Text()[:12]))
	if err != nil {
		return fmt.Errorf("--smoke: %w", err)
	}
	cl, err := connect(ctx, c, requiredQueue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()

	began, patience := time.Now(), cl.runTimeout+smokeMargin
	s, err := cl.submit(ctx, doc)
	if err != nil {
		return err
	}
	late := fmt.Errorf("%s is not READY after %v: see taskguard status %[1]s", doc.ID, patience)
	limited, cancel := context.WithTimeoutCause(ctx, patience, late)
	defer cancel()
	if err := follow(limited, c, cl, c.Progress(), []*submitted{s}); err != nil {
		return err
	}
	report := func(what string) { cli.Print(c.Out, "%s %s\n", doc.ID, what) }
	report(analysislock.Ready)

	if cl.place.Emulator != "" {
		report("log lines: not checked, since an emulator has no Cloud Logging")
		return nil
	}
	logs := doctor.Logs{Project: cl.place.Project}
	service, err := logs.Delivered(ctx, doc.ID, began.Add(-time.Minute))
	if err != nil {
		return fmt.Errorf("the log line of its delivery: %w; LOG_FORMAT must be json and LOG_LEVEL info", err)
	}
	report("has its log line, of " + service)
	if err := logs.Recovered(ctx, service); err != nil {
		return fmt.Errorf("a recovery by %s: %w; is Cloud Scheduler's job enabled?", service, err)
	}
	report("recovery has run lately")
	return nil
}
