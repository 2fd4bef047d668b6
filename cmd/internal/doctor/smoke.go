package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/api/googleapi"
	logging "google.golang.org/api/logging/v2"
	"google.golang.org/api/option"

	"taskguard/internal/clock"
)

// Logs finds log lines of a project in Cloud Logging. It waits 2 min for a line.
type Logs struct {
	Project string
	Google  []option.ClientOption
}

var errNoLine = errors.New("no such line in Cloud Logging")

// recoveryWindow is the age of the oldest recovery that counts. Cloud Scheduler calls it each minute.
const recoveryWindow = 10 * time.Minute

// Delivered waits for the log line of the delivery that made an analysis READY after since. It
// returns the name of the service that wrote it.
func (l Logs) Delivered(ctx context.Context, id string, since time.Time) (service string, err error) {
	analysis := fmt.Sprintf("jsonPayload.analysis_id=%q", id)
	return l.find(ctx, since, `jsonPayload.message="delivery"`, `jsonPayload.outcome="ready"`, analysis)
}

// Recovered waits for the log line of a recovery that succeeded lately, of the service NAME-worker
// or of NAME-recovery, which the module may run beside it.
func (l Logs) Recovered(ctx context.Context, service string) error {
	recovery := strings.TrimSuffix(service, "-worker") + "-recovery"
	services := fmt.Sprintf("resource.labels.service_name=(%q OR %q)", service, recovery)
	since := time.Now().Add(-recoveryWindow)
	_, err := l.find(ctx, since, `jsonPayload.message="recovery"`, `jsonPayload.outcome="recovered"`, services)
	return err
}

// find asks for the newest line of Cloud Run that matches all terms, every 5 s until there is one.
func (l Logs) find(ctx context.Context, since time.Time, terms ...string) (service string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errNoLine)
	defer cancel()
	api, err := logging.NewService(ctx, l.Google...)
	if err != nil {
		return "", err
	}

	newer := fmt.Sprintf("timestamp>=%q", since.UTC().Format(time.RFC3339))
	terms = append(terms, `resource.type="cloud_run_revision"`, newer)
	request := &logging.ListLogEntriesRequest{
		ResourceNames: []string{"projects/" + l.Project},
		Filter:        strings.Join(terms, " AND "),
		OrderBy:       "timestamp desc",
		PageSize:      1,
	}
	for {
		got, err := api.Entries.List(request).Context(ctx).Do()
		var refused *googleapi.Error
		switch {
		case errors.As(err, &refused):
			return "", fmt.Errorf("answer %d of Cloud Logging: %s", refused.Code, oneLine(refused.Message))
		case err == nil && len(got.Entries) > 0:
			if r := got.Entries[0].Resource; r != nil {
				service = r.Labels["service_name"]
			}
			return service, nil
		}

		if !clock.Sleep(ctx, 5*time.Second) {
			return "", context.Cause(ctx)
		}
	}
}
