package worker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"time"

	"taskguard/internal/telemetry"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// DoOptions configures a call of DoOutcome, Lookup or Reset. Do uses the zero value.
type DoOptions struct {
	Collection string // has the records; the default is idempotency
	// Params are the parameters of the call. The record keeps a hash of their JSON, and a later call with other Params
	// returns ErrParams. The order of fields, the form of a number (1, 1.0 or 1e0, up to 100 bytes), and whether it is
	// a struct or a map make no difference. If two fields have one name, the last counts. All bytes that are not UTF-8
	// are equal. Nil is not compared.
	Params any
	// Keep is how long a record is kept after its last change, by expireAt and a TTL policy of the collection.
	// Firestore deletes it up to a day later, and until then the key has its result. An unfinished record with an act
	// has no expireAt. The default is 24 h; Keep must be at least 1 h and longer than the lock's TTL.
	Keep time.Duration
	// Lock is the policy of the lock: after a crash, the function can run again when its TTL has passed. MaxAttempts is
	// ignored, because each caller decides when to give up. The default is the Guard's.
	Lock lease.Policy
	// RunTimeout limits one run of the function, to at most 24 h. The default is the Guard's.
	RunTimeout time.Duration
}

// record is the record of one operation and key.
type record struct {
	collection
	id     string // operation:key
	params string // the hash of DoOptions.Params
}

// record returns the record of an operation and a key. It makes no call to Firestore.
func (g *Guard) record(operation, key string, o DoOptions) (r record, err error) {
	const maxID = 1500 // Firestore's limit, in bytes
	if g.work.Err() != nil {
		return r, ErrStopping
	}
	if !simpleName.MatchString(operation) {
		return r, fmt.Errorf("worker: do: the operation %q is not a letter and then letters, digits, - and _", operation)
	}
	if err := lease.CheckKey("record", key, maxID-len(operation+":")); err != nil {
		return r, err
	}

	r.id = operation + ":" + key
	if r.params, err = hash(o.Params); err != nil {
		return r, fmt.Errorf("worker: do: encode the parameters: %w", err)
	}
	if r.collection, err = g.openRecords(o); err != nil {
		return r, fmt.Errorf("worker: do: %w", err)
	}
	return r, nil
}

// read reads the record with its result. It returns ErrParams, or a *FailedError with a record
// that has failed.
func (r record) read(ctx context.Context) (analysislock.Analysis, error) {
	d, params, err := r.analyses.Outcome(ctx, r.id)
	switch {
	case err != nil:
	case r.params != "" && params != "" && r.params != params:
		return analysislock.Analysis{}, ErrParams
	case d.Status == analysislock.Failed:
		e := cmp.Or(d.Error, &analysislock.Error{})
		err = &FailedError{Code: e.Code, Message: e.Message}
	}
	return d, err
}

// recordsName is the name of the kind of all records of Do, recordsCollection their collection by default.
const recordsName, recordsCollection = "do", "idempotency"

// openRecords returns the collection of records that o names. From now on reportRecords includes it, and
// no kind can be registered with it. It is an error if a kind already has it.
func (g *Guard) openRecords(o DoOptions) (records collection, err error) {
	k := Kind{
		Name: recordsName, Collection: cmp.Or(o.Collection, recordsCollection),
		RunTimeout: cmp.Or(o.RunTimeout, g.options.RunTimeout),
	}
	switch {
	case o.Keep != 0 && o.Keep < time.Hour:
		return records, fmt.Errorf("the option Keep %v is under 1h", o.Keep)
	case k.RunTimeout < 0 || k.RunTimeout > 24*time.Hour:
		return records, fmt.Errorf("the option RunTimeout %v is not between 0 and 24h", k.RunTimeout)
	}

	store := g.storeOptions(k)
	store.Keep, store.KeepAll, store.Noun = cmp.Or(o.Keep, 24*time.Hour), true, "record"
	store.Policy, store.MaxRunTime = cmp.Or(o.Lock, g.options.Lock), 0
	store.Policy.MaxAttempts = 0 // each caller decides when to give up
	if records, err = g.collection(k, store); err != nil {
		return records, err
	}
	records.runner.Queue, records.runner.StallTimeout = nil, 0 // no task can call fn, and fn need not report
	records.runner.RetryUncertain = true

	g.mu.Lock()
	defer g.mu.Unlock()
	for _, other := range g.works {
		if other.Collection == k.Collection || other.keyCollection() == k.Collection {
			return records, fmt.Errorf("the collection %q belongs to kind %q", k.Collection, other.Name)
		}
	}
	g.records[k.Collection], g.reported[k.Collection] = true, records.analyses
	return records, nil
}

// maxReported limits the records of one collection that one report counts.
const maxReported = 1000

// reportRecords logs, for each collection of Do, how many records have no lock and an act that may
// have been done. Their callers may never call again. It returns how many records with an act are
// abandoned. It reports the default collection also before this process has called Do: the process
// that has called it may have died.
func (g *Guard) reportRecords(ctx context.Context) (abandoned int) {
	g.mu.Lock()
	records := maps.Clone(g.reported)
	g.mu.Unlock()
	for collection, analyses := range records {
		log := g.options.Log.With("collection", collection)
		uncertain, err := analyses.Uncertain(ctx, maxReported)
		lost, lostErr := analyses.Abandoned(ctx, maxReported)
		if err = errors.Join(err, lostErr); err != nil {
			log.WarnContext(ctx, "records of Do not counted", "error", err)
		}
		if len(uncertain) > 0 {
			log.WarnContext(ctx, "acts of Do are uncertain", "records", len(uncertain))
		}
		if len(lost) > 0 {
			log.WarnContext(ctx, "records of Do are abandoned", "records", len(lost))
		}
		abandoned += len(lost)
	}
	g.telemetry.Record(ctx, telemetry.AbandonedRecords, float64(abandoned))
	return abandoned
}

// hash returns a hash of params as JSON with sorted fields, or "" for nil.
func hash(params any) (string, error) {
	if params == nil {
		return "", nil
	}
	text, err := json.Marshal(params)
	if err != nil {
		return "", err
	}

	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()        // a float64 would make large integers equal
	_ = decoder.Decode(&value) // Marshal has written it
	text, err = json.Marshal(value)
	return fmt.Sprintf("%x", sha256.Sum256(stringOrNumber.ReplaceAllFunc(text, canonical))), err
}

// stringOrNumber matches a string or a number of JSON.
var stringOrNumber = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*`)

// canonical returns a number as a fraction, so that 1, 1.0 and 1e0 are equal. It leaves strings, and
// numbers of which big.Rat would need much memory, as they are.
func canonical(token []byte) []byte {
	_, exponent, _ := bytes.Cut(bytes.ToLower(token), []byte("e"))
	if token[0] == '"' || len(token) > 100 || len(bytes.TrimLeft(exponent, "+-0")) > 2 {
		return token
	}
	value, _ := new(big.Rat).SetString(string(token))
	return []byte(value.RatString())
}
