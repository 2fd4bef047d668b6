package telemetry

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
	// WorkKind is the attribute of each value of a kind of work that is not analysis.
	WorkKind = "kind"
)

// Rows of Metrics.
const (
	deliveries = iota
	rejections
	runsActive
	runDuration
	runAttempt
	acquireDuration
	heartbeatDuration
	steals
	losses
	timeouts
	followups
	recoveries
	stuck
	checkpointSize
	startDuration
	readyDuration
	oldestAge
)

// Metrics returns the table of all instruments.
func Metrics() []Metric {
	// A call to Firestore takes milliseconds, and gives up within 20 s.
	calls := []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20}
	// From an analysis's creation: from seconds to a day.
	waits := []float64{1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400}
	return []Metric{
		deliveries:        {Name: "taskguard.deliveries", Unit: "{delivery}", Kind: Counter, Description: "Deliveries answered.", Attributes: []string{Outcome, Status}},
		rejections:        {Name: "taskguard.rejections", Unit: "{task}", Kind: Counter, Description: "Tasks that can never succeed, and that were deleted.", Attributes: []string{Outcome}},
		runsActive:        {Name: "taskguard.runs.active", Unit: "{run}", Kind: UpDownCounter, Description: "Runs in progress."},
		runDuration:       {Name: "taskguard.run.duration", Unit: "s", Kind: Histogram, Description: "Time from the acquisition of the lock to the end of the analyzer.", Attributes: []string{Outcome}, Buckets: []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 900, 1200, 1500, 1800}},
		runAttempt:        {Name: "taskguard.run.attempt", Unit: "{attempt}", Kind: Histogram, Description: "Attempt number of each run.", Buckets: []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		acquireDuration:   {Name: "taskguard.lock.acquire.duration", Unit: "s", Kind: Histogram, Description: "Time until a lock was acquired or refused.", Attributes: []string{Outcome}, Buckets: calls},
		heartbeatDuration: {Name: "taskguard.lock.heartbeat.duration", Unit: "s", Kind: Histogram, Description: "Time of a renewal, including all its tries.", Attributes: []string{Outcome}, Buckets: append(calls[:len(calls):len(calls)], 30, 60, 120, 300)},
		steals:            {Name: "taskguard.lock.steals", Unit: "{steal}", Kind: Counter, Description: "Expired locks of other owners that were stolen."},
		losses:            {Name: "taskguard.lock.losses", Unit: "{loss}", Kind: Counter, Description: "Locks lost during a run, or before its result was written.", Attributes: []string{Reason}},
		timeouts:          {Name: "taskguard.run.timeouts", Unit: "{run}", Kind: Counter, Description: "Runs that passed a limit of time: continued and run_timeout are RUN_TIMEOUT, stalled is STALL_TIMEOUT, run_time_exhausted is MAX_RUN_TIME.", Attributes: []string{Reason}},
		followups:         {Name: "taskguard.followups", Unit: "{task}", Kind: Counter, Description: "Deliveries booked by a delivery: follow-ups, next attempts, continuations, and replacements of runs that were stopped.", Attributes: []string{Outcome}},
		recoveries:        {Name: "taskguard.recoveries", Unit: "{analysis}", Kind: Counter, Description: "Deliveries booked by recovery."},
		checkpointSize:    {Name: "taskguard.checkpoint.size", Unit: "By", Kind: Histogram, Description: "Size of each committed checkpoint, as JSON.", Buckets: []float64{256, 1024, 4096, 16384, 65536, 262144}},
		stuck:             {Name: "taskguard.stuck", Unit: "{analysis}", Kind: Gauge, Description: "Orphaned analyses that the last recovery found."},
		startDuration:     {Name: "taskguard.analysis.start.duration", Unit: "s", Kind: Histogram, Description: "Time from an analysis's creation to its first acquisition.", Buckets: waits},
		readyDuration:     {Name: "taskguard.analysis.ready.duration", Unit: "s", Kind: Histogram, Description: "Time from an analysis's creation until it was READY.", Buckets: waits},
		oldestAge:         {Name: "taskguard.oldest.age", Unit: "s", Kind: Gauge, Description: "Time since the creation of the oldest unfinished analysis, at the last recovery; 0 if there is none."},
	}
}
