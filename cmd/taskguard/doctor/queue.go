package doctor

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	cloudtasks "google.golang.org/api/cloudtasks/v2"
)

// defaultQueue is what Cloud Tasks makes of a queue of which nothing is said.
func defaultQueue() Queue {
	return Queue{Concurrent: 1000, MaxAttempts: 100, MinBackoff: 100 * time.Millisecond, MaxBackoff: time.Hour, Doublings: 16}
}

// queueFlags is a file for gcloud's --flags-file.
type queueFlags struct {
	Location    string `json:"--location"`
	Project     string `json:"--project"`
	Concurrent  scalar `json:"--max-concurrent-dispatches"`
	PerSecond   scalar `json:"--max-dispatches-per-second"`
	MaxAttempts scalar `json:"--max-attempts"`
	MaxDuration scalar `json:"--max-retry-duration"`
	MinBackoff  scalar `json:"--min-backoff"`
	MaxBackoff  scalar `json:"--max-backoff"`
	Doublings   scalar `json:"--max-doublings"`
	Sampling    scalar `json:"--log-sampling-ratio"`
	Routing     any    `json:"--routing-override"`
}

// scalar is a text or a number, as its text.
type scalar string

// UnmarshalJSON implements json.Unmarshaler.
func (s *scalar) UnmarshalJSON(data []byte) error {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	switch v.(type) {
	case string, float64:
		*s = scalar(fmt.Sprint(v))
		return nil
	}
	return fmt.Errorf("neither a text nor a number")
}

// queueFile reads flags of gcloud.
func queueFile(name string) (Queue, error) {
	data, err := readFile(name)
	if err != nil {
		return Queue{}, err
	}
	var f queueFlags
	if err := decode(data, &f); err != nil {
		return Queue{}, fmt.Errorf("%s is no flags file of a queue: %w", name, err)
	}
	q, err := f.queue()
	if err != nil {
		return Queue{}, fmt.Errorf("%s: %w", name, err)
	}
	return q, nil
}

func (f queueFlags) queue() (Queue, error) {
	q := defaultQueue()
	q.Location = f.Location
	r := reading{}
	r.integer("--max-concurrent-dispatches", f.Concurrent, &q.Concurrent)
	r.integer("--max-attempts", f.MaxAttempts, &q.MaxAttempts)
	r.integer("--max-doublings", f.Doublings, &q.Doublings)
	r.duration("--max-retry-duration", f.MaxDuration, &q.MaxDuration)
	r.duration("--min-backoff", f.MinBackoff, &q.MinBackoff)
	r.duration("--max-backoff", f.MaxBackoff, &q.MaxBackoff)
	return q, r.err
}

// parseQueue reads a queue of the API.
func parseQueue(api *cloudtasks.Queue) (Queue, error) {
	q := defaultQueue()
	q.Name, q.State = api.Name, api.State
	r := reading{}
	if l := api.RateLimits; l != nil && l.MaxConcurrentDispatches > 0 {
		q.Concurrent = l.MaxConcurrentDispatches
	}
	if c := api.RetryConfig; c != nil {
		if c.MaxAttempts != 0 {
			q.MaxAttempts = c.MaxAttempts
		}
		q.Doublings = c.MaxDoublings
		r.duration("maxRetryDuration", scalar(c.MaxRetryDuration), &q.MaxDuration)
		r.duration("minBackoff", scalar(c.MinBackoff), &q.MinBackoff)
		r.duration("maxBackoff", scalar(c.MaxBackoff), &q.MaxBackoff)
	}
	return q, r.err
}

// reading keeps the first error of several values; an empty one leaves what is there.
type reading struct{ err error }

func (r *reading) integer(name string, v scalar, into *int64) {
	if v == "" {
		return
	}
	if v == "unlimited" {
		*into = -1
		return
	}
	n, err := strconv.ParseInt(string(v), 10, 32)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("%s: %q is not a number", name, v)
	}
	*into = n
}

func (r *reading) duration(name string, v scalar, into *time.Duration) {
	if v == "" {
		return
	}
	if v == "unlimited" {
		*into = 0
		return
	}
	d, err := time.ParseDuration(string(v))
	if (err != nil || d < 0) && r.err == nil {
		r.err = fmt.Errorf("%s: %q is not a duration such as 30s", name, v)
	}
	*into = d
}
