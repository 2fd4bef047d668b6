package telemetry

import (
	"slices"

	"go.opentelemetry.io/otel/attribute"
)

// Kind is a kind of OpenTelemetry's instruments.
type Kind string

// The kinds in use.
const (
	Counter       Kind = "counter"
	UpDownCounter Kind = "up-down counter"
	Histogram     Kind = "histogram"
	Gauge         Kind = "gauge"
)

// Metric is one instrument.
type Metric struct {
	Name        string
	Unit        string // UCUM
	Kind        Kind
	Description string
	Attributes  []string
	Buckets     []float64 // a histogram's upper bounds
}

// Attributes of metrics.
const (
	Outcome = "outcome"
	Status  = "http.response.status_code"
	Reason  = "reason"
	// WorkKind names the kind of work, unless it is analysis.
	WorkKind = "kind"
)

// ByOutcome returns the attribute Outcome.
func ByOutcome(outcome string) attribute.KeyValue { return attribute.String(Outcome, outcome) }

// ByReason returns the attribute Reason.
func ByReason(reason string) attribute.KeyValue { return attribute.String(Reason, reason) }

// ID identifies a metric: its row in Metrics.
type ID int

// The metrics.
const (
	Deliveries ID = iota
	Rejections
	RunsActive
	RunDuration
	RunAttempt
	AcquireDuration
	HeartbeatDuration
	Steals
	Losses
	Timeouts
	FollowUps
	Recoveries
	Stuck
	CheckpointSize
	StartDuration
	ReadyDuration
	OldestAge
	Parked
	UncertainActs
	AbandonedRecords
)

// Metrics returns the table of all instruments.
func Metrics() []Metric {
	// A call to Firestore takes milliseconds, and gives up within 20 s.
	calls := []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20}
	// From an analysis's creation: from seconds to a day.
	waits := []float64{1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400}
	runs := []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 900, 1200, 1500, 1800}
	attempts := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	sizes := []float64{256, 1024, 4096, 16384, 65536, 262144}

	return []Metric{
		Deliveries: counter("deliveries", "{delivery}", "Deliveries answered.", Outcome, Status),
		Rejections: counter("rejections", "{task}",
			"Tasks that can never succeed, and that were deleted.", Outcome),
		RunsActive: {Name: "taskguard.runs.active", Kind: UpDownCounter, Unit: "{run}", Description: "Runs in progress."},
		RunDuration: histogram("run.duration", "s",
			"Time from the acquisition of the lock to the end of the analyzer.", runs, Outcome),
		RunAttempt: histogram("run.attempt", "{attempt}", "Attempt number of each run.", attempts),
		AcquireDuration: histogram("lock.acquire.duration", "s",
			"Time until a lock was acquired or refused.", calls, Outcome),
		HeartbeatDuration: histogram("lock.heartbeat.duration", "s",
			"Time of a renewal, including all its tries.", slices.Concat(calls, []float64{30, 60, 120, 300}), Outcome),
		Steals: counter("lock.steals", "{steal}", "Expired locks taken over from another owner."),
		Losses: counter("lock.losses", "{loss}",
			"Locks lost during a run, or before its result was written.", Reason),
		Timeouts: counter("run.timeouts", "{run}", "Runs that passed a limit of time: continued and run_timeout are "+
			"RUN_TIMEOUT, stalled is STALL_TIMEOUT, run_time_exhausted is MAX_RUN_TIME.", Reason),
		FollowUps: counter("followups", "{task}", "Deliveries enqueued by a delivery: follow-ups, retries, "+
			"continuations, and replacements of runs that were stopped.", Outcome),
		Recoveries:     counter("recoveries", "{analysis}", "Deliveries enqueued by recovery."),
		CheckpointSize: histogram("checkpoint.size", "By", "Size of each committed checkpoint, as JSON.", sizes),
		Stuck:          gauge("stuck", "{analysis}", "Orphaned analyses that the last recovery found, unless they wait in the queue."),
		StartDuration: histogram("analysis.start.duration", "s",
			"Time from an analysis's creation to its first acquisition.", waits),
		ReadyDuration: histogram("analysis.ready.duration", "s",
			"Time from an analysis's creation until it was READY.", waits),
		OldestAge: gauge("oldest.age", "s",
			"Time since the creation of the oldest unfinished analysis, at the last recovery; 0 if there is none. "+
				"Parked ones do not count."),
		Parked: gauge("parked", "{analysis}", "Analyses that waited for a slot of their key at the last recovery."),
		UncertainActs: counter("effects.uncertain", "{act}",
			"Acts that may have been done, and that an operator must answer."),
		AbandonedRecords: gauge("records.abandoned", "{record}",
			"Unfinished records of Do with an act, whose callers had not come back at the last recovery."),
	}
}

func counter(name, unit, description string, attributes ...string) Metric {
	return Metric{Name: namespace + name, Unit: unit, Kind: Counter, Description: description, Attributes: attributes}
}

func gauge(name, unit, description string) Metric {
	return Metric{Name: namespace + name, Unit: unit, Kind: Gauge, Description: description}
}

func histogram(name, unit, description string, buckets []float64, attributes ...string) Metric {
	return Metric{
		Name: namespace + name, Unit: unit, Kind: Histogram, Description: description,
		Attributes: attributes, Buckets: buckets,
	}
}

// namespace begins the name of each metric.
const namespace = "taskguard."
