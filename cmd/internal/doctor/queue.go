package doctor

import (
	"cmp"
	"fmt"
	"time"

	cloudtasks "google.golang.org/api/cloudtasks/v2"
)

// queueFile reads a file for gcloud's --flags-file.
func queueFile(name string) (Queue, error) {
	f := struct {
		Location    string `json:"--location"`
		Project     string `json:"--project"`
		Concurrent  int64  `json:"--max-concurrent-dispatches"`
		PerSecond   any    `json:"--max-dispatches-per-second"`
		MaxAttempts int64  `json:"--max-attempts"`
		MaxDuration string `json:"--max-retry-duration"`
		MinBackoff  string `json:"--min-backoff"`
		MaxBackoff  string `json:"--max-backoff"`
		Doublings   int64  `json:"--max-doublings"`
		Sampling    any    `json:"--log-sampling-ratio"`
		Routing     any    `json:"--routing-override"`
	}{}
	if err := decodeFile(name, "a flags file of a queue", &f); err != nil {
		return Queue{}, err
	}

	q, err := parseQueue(&cloudtasks.Queue{
		RateLimits: &cloudtasks.RateLimits{MaxConcurrentDispatches: f.Concurrent},
		RetryConfig: &cloudtasks.RetryConfig{
			MaxAttempts: f.MaxAttempts, MaxRetryDuration: f.MaxDuration,
			MinBackoff: f.MinBackoff, MaxBackoff: f.MaxBackoff,
		},
	})
	if err != nil {
		return Queue{}, fmt.Errorf("%s: %w", name, err)
	}
	q.Project, q.Region = f.Project, f.Location
	return q, nil
}

// parseQueue reads a queue of the API. What is unset has Cloud Tasks' default.
func parseQueue(api *cloudtasks.Queue) (q Queue, err error) {
	limits := cmp.Or(api.RateLimits, &cloudtasks.RateLimits{})
	retries := cmp.Or(api.RetryConfig, &cloudtasks.RetryConfig{})
	duration := func(name, text, unset string) time.Duration {
		d, invalid := time.ParseDuration(cmp.Or(text, unset))
		if invalid != nil {
			err = fmt.Errorf("the queue's %s %q is not a duration such as 30s", name, text)
		}
		return d
	}

	q = Queue{
		State:       api.State,
		Concurrent:  cmp.Or(limits.MaxConcurrentDispatches, 1000),
		MaxAttempts: cmp.Or(retries.MaxAttempts, 100),
		MinBackoff:  duration("min backoff", retries.MinBackoff, "100ms"),
		MaxBackoff:  duration("max backoff", retries.MaxBackoff, "3600s"),
		MaxDuration: duration("max retry duration", retries.MaxRetryDuration, "0s"),
	}
	return q, err
}
