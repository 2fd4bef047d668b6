package doctor

import (
	"fmt"
	"strings"
	"time"
)

func queueRules() []rule {
	return []rule{
		{"queue-other", []part{workerEnvironment, queueSettings, queueNamed}, queueOther},
		{"queue-region", []part{workerEnvironment, queueSettings}, queueRegion},
		{"queue-stopped", []part{queueSettings}, queueStopped},
		{"dispatches", []part{workerSettings, queueSettings}, dispatches},
		{"queue-gives-up", []part{workerEnvironment, queueSettings}, queueGivesUp},
		{"queue-shorter-than-lock", []part{workerEnvironment, queueSettings}, queueShorterThanLock},
		{"queue-hot", []part{workerEnvironment, queueSettings}, queueHot},
	}
}

func queueOther(v *view) []Finding {
	q, read := v.worker.Queue, v.Queue.Value.Name
	return one(q != nil && read != "" && q.Queue != read, Problem,
		fmt.Sprintf("TASK_QUEUE is %s, and the queue that was read is %s: follow-ups go to another queue.", v.Worker.Environment.Value.value("TASK_QUEUE"), read),
		v.Worker.set("TASK_QUEUE", read)+"; or name the other one with --queue.")
}

func queueRegion(v *view) []Finding {
	set, region := v.Worker.Environment.Value.value("TASK_QUEUE"), v.Queue.Value.Location
	_, location, _ := resource(set)
	return one(region != "" && location != "" && region != location, Problem,
		fmt.Sprintf("TASK_QUEUE is %s, and the flags are for a queue in %s: the one that the worker uses is not made, or keeps other settings.", set, region),
		"--location: "+location+" in "+v.Queue.From+"; or TASK_QUEUE in "+region+".")
}

func queueStopped(v *view) []Finding {
	q := v.Queue.Value
	switch q.State {
	case "PAUSED":
		return one(true, Problem, "The queue is paused: nothing is delivered.", q.gcloud("resume", ""))
	case "DISABLED":
		return one(true, Problem, "The queue is disabled, by an App Engine queue.yaml that lacks it: nothing is delivered.", q.gcloud("resume", ""))
	}
	return nil
}

func dispatches(v *view) []Finding {
	q, s := v.Queue.Value, v.Worker.Settings.Value
	places := s.MaxInstances * s.Concurrency
	return one(q.Concurrent > places, Problem,
		fmt.Sprintf("The queue dispatches %d tasks at once, and %s has places for %d (%d instances × %d): the others are answered 429, which slows the whole queue.", q.Concurrent, s.Name, places, s.MaxInstances, s.Concurrency),
		mendQueue(v, fmt.Sprintf("--max-concurrent-dispatches=%d", places))+", or more instances.")
}

func queueGivesUp(v *view) []Finding {
	if v.lives() {
		return nil // queue-shorter-than-lock says it
	}
	q := v.Queue.Value
	return one(q.limited(), Problem,
		fmt.Sprintf("The queue drops a task after %s, also one that was merely locked or unlucky; MAX_ATTEMPTS is what ends an analysis, and says so in its document.", q.limit()),
		mendQueue(v, "--max-attempts=-1", "--max-retry-duration=0s"))
}

// lives reports whether a lock may live longer than the queue retries for, with no
// follow-up booked.
func (v *view) lives() bool {
	return v.worker.Queue == nil && v.Queue.Value.limited() && v.Queue.Value.retries() < v.locked()
}

// locked is how long a lock may live, and be left by a worker that died.
func (v *view) locked() time.Duration { return v.worker.RunTimeout + v.worker.Policy.TTL }

func queueShorterThanLock(v *view) []Finding {
	q := v.Queue.Value
	return one(v.lives(), Problem,
		fmt.Sprintf("TASK_QUEUE is not set, so a delivery that meets a lock is answered 409 and must come again; a lock may live for %v, and the queue gives up after about %v (%s): the analysis is left lying.", v.locked(), q.retries().Round(time.Second), q.limit()),
		"Set TASK_QUEUE, TASK_TARGET_URL and TASK_CALLER; or "+mendQueue(v, "--max-attempts=-1", "--max-retry-duration=0s"))
}

func queueHot(v *view) []Finding {
	q, attempts, ttl := v.Queue.Value, v.worker.Policy.MaxAttempts, v.worker.Policy.TTL
	if attempts < 2 {
		return nil
	}
	all := q.waits(int64(attempts) - 1)
	return one(all < ttl, Problem,
		fmt.Sprintf("The queue comes again after %v first: all %d attempts are used up within %v, and a shorter outage of what the analyzer needs makes analyses FAILED.", q.MinBackoff, attempts, all.Round(time.Second)),
		mendQueue(v, "--min-backoff=30s", "--max-backoff=600s", "--max-doublings=5"))
}

// gcloud is the command that changes the queue.
func (q Queue) gcloud(verb, flags string) string {
	project, location, name := resource(q.Name)
	if name == "" {
		location, name = "LOCATION", "QUEUE"
	}
	return strings.TrimSpace(fmt.Sprintf("gcloud tasks queues %s %s --location=%s%s %s", verb, name, location, inProject(project), flags))
}

func (q Queue) limited() bool { return q.MaxAttempts > 0 || q.MaxDuration > 0 }

// limit is when the queue gives up, in words.
func (q Queue) limit() string {
	switch {
	case q.MaxAttempts > 0 && q.MaxDuration > 0:
		return fmt.Sprintf("%d attempts and %v", q.MaxAttempts, q.MaxDuration)
	case q.MaxAttempts > 0:
		return fmt.Sprintf("%d attempts", q.MaxAttempts)
	}
	return q.MaxDuration.String()
}

// retries is for how long the queue comes again with answers that take no time:
// both of its limits must be spent, where both are set.
func (q Queue) retries() time.Duration {
	if q.MaxAttempts <= 0 {
		return q.MaxDuration
	}
	return max(q.waits(q.MaxAttempts-1), q.MaxDuration)
}

// Bounds of what waits adds up; more is as good as for ever.
const (
	mostPauses = 1 << 20
	forEver    = 1 << 60 * time.Nanosecond
)

// waits is the sum of the first n pauses between deliveries: they double so many
// times, then grow by the last step, up to the longest.
func (q Queue) waits(n int64) (sum time.Duration) {
	longest := min(q.MaxBackoff, forEver/2)
	pause := min(q.MinBackoff, longest)
	step := pause
	for i := int64(0); i < min(n, mostPauses) && sum < forEver; i++ {
		sum += pause
		if i < q.Doublings {
			step = 2 * pause
			pause = step
		} else {
			pause += step
		}
		pause = min(pause, longest)
	}
	return sum
}
