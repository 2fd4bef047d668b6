package repo

import (
	"errors"
	"math"
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/lease/leasetest"
)

// ttl returns the default in a bubble, and a short TTL where time is real.
func ttl(b *emulatortest.Backend) time.Duration {
	if b.Google() {
		return 5 * time.Second
	}
	return lease.DefaultTTL
}

// The fields of a lock in a document, with what another program has written.
func TestAnalysisLock(t *testing.T) {
	cases := map[string]func(t *testing.T, b *emulatortest.Backend, a *worker){
		"TheFirstAcquires": func(t *testing.T, b *emulatortest.Backend, a *worker) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued, "theirs": []any{int64(1), 2.5, nil}})
			acq := mustAcquire(t, a, "x", "w/1")
			if acq.Grant.Token != 1 || acq.Attempt != 1 {
				t.Errorf("token, attempt = %d, %d; want 1, 1", acq.Grant.Token, acq.Attempt)
			}
			got := b.Fields(t, "x")
			for _, name := range []string{"lockExpiresAt", "lockHeartbeatAt", "updatedAt", "startedAt"} {
				if s, _ := got[name].(string); len(s) != len("2006-01-02T15:04:05.000Z") || s[len(s)-1] != 'Z' {
					t.Errorf("%s = %v, want ISO 8601 with three decimals", name, got[name])
				}
			}
			attempt := map[string]any{"attempt": int64(1), "token": int64(1), "owner": "w/1", "startedAt": got["startedAt"]}
			same(t, []any{attempt}, got["history"])
			for _, name := range []string{"lockExpiresAt", "lockHeartbeatAt"} {
				delete(got, name)
			}
			want := map[string]any{"status": analysislock.Processing, "theirs": []any{int64(1), 2.5, nil}, "attempts": int64(1), "lockOwner": "w/1", "lockToken": int64(1)}
			same(t, want, withoutRuns(got))
		},
		"CompleteRecordsTheResultAndFreesTheLock": func(t *testing.T, b *emulatortest.Backend, a *worker) {
			for _, result := range []any{nil, map[string]any{"n": int64(3), "a.b": []any{1.5, "ü"}, "`": nil}} {
				b.Put(t, "x", map[string]any{"status": analysislock.Queued, "error": "of another program", "result": "old"})
				mustAcquire(t, a, "x", "w/1")
				fatal(t, a.holds["w/1"].End(t.Context(), analysislock.Completing(a.holds["w/1"].Now(), result)))
				got := b.Fields(t, "x")
				want := map[string]any{"status": analysislock.Ready, "result": result, "attempts": int64(1), "lockToken": int64(1), "finishedBy": "w/1"}
				same(t, want, withoutRuns(got))
			}
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) { test(t, b, open(t, b)) })
		})
	}
}

type store = documents[analysislock.Analysis]

// suite returns the conformance suite of the stores that open opens.
func suite(open func(t testing.TB) *store) leasetest.Suite[analysislock.Analysis] {
	s := leasetest.Suite[analysislock.Analysis]{
		New:   func(t testing.TB) lease.Store[analysislock.Analysis] { return open(t) },
		Lease: func(a *analysislock.Analysis) *lease.Lease { return &a.Lock },
		Note: func(a analysislock.Analysis) string {
			if a.LastError == nil {
				return ""
			}
			return a.LastError.Message
		},
		SetNote: func(a *analysislock.Analysis, note string) { a.LastError = &analysislock.Error{Message: note} },
		Close:   func(a *analysislock.Analysis) { a.Status = analysislock.Ready },
	}
	collection := func(s lease.Store[analysislock.Analysis]) *firestore.CollectionRef { return s.(*store).collection }
	byDocuments(&s, collection, map[string]any{"touched": 0})
	return s
}

// It also costs no more than TestOnARealProject says.
func TestStoreOnEmbedded(t *testing.T) {
	var made []*emulatortest.Backend
	s := suite(func(t testing.TB) *store {
		b := emulatortest.Embedded(t)
		made = append(made, b)
		return open(t, b).documents
	})
	s.TTL, s.Bubble = lease.DefaultTTL, true
	leasetest.Run(t, s)

	var reads, writes int64
	for _, b := range made {
		u := b.Server.Usage()
		reads, writes = reads+u.Reads, writes+u.Writes // deletes are writes here
	}
	if reads > mostReads-tableReads || writes > mostWrites || min(reads, writes) == 0 {
		t.Errorf("billed %d reads and %d writes, want at most %d and %d", reads, writes, mostReads-tableReads, mostWrites)
	}
}

func TestStoreOnGoogle(t *testing.T) {
	t.Parallel()
	emulatortest.Google(t)
	s := suite(func(t testing.TB) *store { return open(t, emulatortest.OnGoogle(t)).documents })
	s.TTL = 6 * time.Second
	leasetest.Run(t, s)
}

// inBubble runs a test on the embedded server in virtual time.
func inBubble(t *testing.T, run func(t *testing.T, b *emulatortest.Backend)) {
	t.Helper()
	emulatortest.EmbeddedKinds(t, run)
}

// The lock of a document that another program wrote (G5).
func TestLockFields(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	future, past := now.Add(time.Hour), now.Add(-time.Hour)
	cases := map[string]struct {
		lock map[string]any
		want string // "" for acquired
		err  error
	}{
		"no owner":                  {lock: map[string]any{"lockExpiresAt": iso8601.Format(future)}},
		"empty owner":               {lock: map[string]any{"lockOwner": "", "lockExpiresAt": iso8601.Format(future)}},
		"null owner":                {lock: map[string]any{"lockOwner": nil, "lockExpiresAt": iso8601.Format(future)}},
		"ISO future":                {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": iso8601.Format(future)}, want: analysislock.Locked},
		"ISO past":                  {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": iso8601.Format(past)}},
		"ISO without decimals":      {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": future.Format("2006-01-02T15:04:05Z")}, want: analysislock.Locked},
		"ISO nanoseconds and zone":  {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": future.In(time.FixedZone("", 9*3600)).Format(time.RFC3339Nano)}, want: analysislock.Locked},
		"Timestamp future":          {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": future}, want: analysislock.Locked},
		"Timestamp past":            {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": past}},
		"milliseconds future":       {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": future.UnixMilli()}, want: analysislock.Locked},
		"milliseconds past":         {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": float64(past.UnixMilli())}},
		"missing expiry":            {lock: map[string]any{"lockOwner": "js"}},
		"null expiry":               {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": nil}},
		"unreadable, heartbeat old": {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": "soon", "lockHeartbeatAt": iso8601.Format(past)}},
		"unreadable, heartbeat now": {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": map[string]any{"s": 1}, "lockHeartbeatAt": iso8601.Format(future)}, want: analysislock.Locked},
		"unreadable, updated now":   {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": true}, want: analysislock.Locked},
		"year 9999, heartbeat old":  {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": "9999-01-01T00:00:00Z", "lockHeartbeatAt": iso8601.Format(past)}},
		"year 9999, heartbeat now":  {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": "9999-01-01T00:00:00Z", "lockHeartbeatAt": iso8601.Format(now)}, want: analysislock.Locked},
		"ISO in 23 hours":           {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": iso8601.Format(now.Add(23 * time.Hour)), "lockHeartbeatAt": iso8601.Format(past)}, want: analysislock.Locked},
		"Timestamp in 25 hours":     {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": now.Add(25 * time.Hour), "lockHeartbeatAt": iso8601.Format(past)}},
		"owner is a number":         {lock: map[string]any{"lockOwner": 5, "lockExpiresAt": iso8601.Format(future)}, want: analysislock.Locked},
		"owner is a number, stale":  {lock: map[string]any{"lockOwner": 5, "lockExpiresAt": iso8601.Format(past)}},
		"attempts is a string":      {lock: map[string]any{"attempts": "3"}},
		"attempts is a map":         {lock: map[string]any{"attempts": map[string]any{"n": 10}}},
		"attempts is a double":      {lock: map[string]any{"attempts": 10.0}, want: analysislock.AttemptsExhausted},
		"attempts is huge":          {lock: map[string]any{"attempts": int64(math.MaxInt64), "lastError": []any{"c"}}, want: analysislock.AttemptsExhausted},
		"token is a double":         {lock: map[string]any{"lockToken": 3.0}},
		"token is a string":         {lock: map[string]any{"lockToken": "3"}, err: lease.ErrMalformed},
		"token is negative":         {lock: map[string]any{"lockToken": -1}, err: lease.ErrMalformed},
		"token is a fraction":       {lock: map[string]any{"lockToken": 1.5}, err: lease.ErrMalformed},
		"token is NaN":              {lock: map[string]any{"lockToken": math.NaN()}, err: lease.ErrMalformed},
		"finished, token malformed": {lock: map[string]any{"status": analysislock.Ready, "lockToken": "3"}, want: analysislock.AlreadyFinished},
		"status is a number":        {lock: map[string]any{"status": 1}},
		"status is another word":    {lock: map[string]any{"status": "ARCHIVED"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			a := open(t, b)
			b.Put(t, "x", tc.lock)
			acq, err := a.acquire(t.Context(), "x", "w/1")
			if !errors.Is(err, tc.err) {
				t.Fatalf("error = %v, want %v", err, tc.err)
			}
			if err == nil && acq.Reason != tc.want {
				t.Errorf("acquire: %+v, want %q", acq, tc.want)
			}
		})
	}
}
