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
)

// Rows of Metrics.
const (
	deliveries = iota
	runsActive
	runDuration
	runAttempt
	acquireDuration
	heartbeatDuration
	steals
	losses
	followups
	recoveries
	stuck
)

// Metrics returns the table of all instruments.
func Metrics() []Metric {
	// A call to Firestore takes milliseconds, and gives up within 20 s.
	calls := []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20}
	return []Metric{
		deliveries:        {Name: "taskguard.deliveries", Unit: "{delivery}", Kind: Counter, Description: "Deliveries answered.", Attributes: []string{Outcome, Status}},
		runsActive:        {Name: "taskguard.runs.active", Unit: "{run}", Kind: UpDownCounter, Description: "Runs under way."},
		runDuration:       {Name: "taskguard.run.duration", Unit: "s", Kind: Histogram, Description: "Time under the lock, from its acquisition to the analyzer's end, by the outcome of the delivery.", Attributes: []string{Outcome}, Buckets: []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 900, 1200, 1500, 1800}},
		runAttempt:        {Name: "taskguard.run.attempt", Unit: "{attempt}", Kind: Histogram, Description: "Which attempt at its analysis a run is.", Buckets: []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		acquireDuration:   {Name: "taskguard.lock.acquire.duration", Unit: "s", Kind: Histogram, Description: "Time to acquire a lock, or to learn that it cannot be.", Attributes: []string{Outcome}, Buckets: calls},
		heartbeatDuration: {Name: "taskguard.lock.heartbeat.duration", Unit: "s", Kind: Histogram, Description: "Time of a renewal, all its tries together.", Attributes: []string{Outcome}, Buckets: append(calls[:len(calls):len(calls)], 30, 60, 120, 300)},
		steals:            {Name: "taskguard.lock.steals", Unit: "{steal}", Kind: Counter, Description: "Expired locks of others that were taken over."},
		losses:            {Name: "taskguard.lock.losses", Unit: "{loss}", Kind: Counter, Description: "Locks lost during a run, or before its result was written.", Attributes: []string{Reason}},
		followups:         {Name: "taskguard.followups", Unit: "{task}", Kind: Counter, Description: "Deliveries booked by a delivery: for the time after the lock in the way, or in its own place when stopped.", Attributes: []string{Outcome}},
		recoveries:        {Name: "taskguard.recoveries", Unit: "{analysis}", Kind: Counter, Description: "Deliveries booked by recovery."},
		stuck:             {Name: "taskguard.stuck", Unit: "{analysis}", Kind: Gauge, Description: "Unfinished analyses that no delivery works on, as counted by the last recovery."},
	}
}
