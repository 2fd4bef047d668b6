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
		MinBackoff  any    `json:"--min-backoff"`
		MaxBackoff  any    `json:"--max-backoff"`
		Doublings   int64  `json:"--max-doublings"`
		Sampling    any    `json:"--log-sampling-ratio"`
		Routing     any    `json:"--routing-override"`
	}{}
	if err := decodeFile(name, "a flags file of a queue", &f); err != nil {
		return Queue{}, err
	}

	q, err := parseQueue(&cloudtasks.Queue{
		RateLimits:  &cloudtasks.RateLimits{MaxConcurrentDispatches: f.Concurrent},
		RetryConfig: &cloudtasks.RetryConfig{MaxAttempts: f.MaxAttempts, MaxRetryDuration: f.MaxDuration},
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return q, err
}

// parseQueue reads a queue of the API. What is unset has Cloud Tasks' default.
func parseQueue(api *cloudtasks.Queue) (Queue, error) {
	limits := cmp.Or(api.RateLimits, &cloudtasks.RateLimits{})
	retries := cmp.Or(api.RetryConfig, &cloudtasks.RetryConfig{})
	longest, err := time.ParseDuration(cmp.Or(retries.MaxRetryDuration, "0s"))
	return Queue{
		State:       api.State,
		Concurrent:  cmp.Or(limits.MaxConcurrentDispatches, 1000),
		MaxAttempts: cmp.Or(retries.MaxAttempts, 100),
		MaxDuration: longest,
	}, err
}
