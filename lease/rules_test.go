package lease_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
)

var (
	noon   = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	policy = lease.Policy{TTL: 300 * time.Second, MaxAttempts: 3}
	mine   = lease.Grant{Owner: "me", Token: 7}
)

// leased returns a lease that "me" holds until noon.
func leased(changes ...func(*lease.Lease)) lease.Lease {
	l := lease.Lease{Owner: "me", Token: 7, Attempts: 2, HeartbeatAt: noon.Add(-300 * time.Second), ExpiresAt: noon}
	for _, change := range changes {
		change(&l)
	}
	return l
}

func freed(l *lease.Lease)    { l.Owner, l.HeartbeatAt, l.ExpiresAt = "", time.Time{}, time.Time{} }
func finished(l *lease.Lease) { l.Finished = true }
func spent(l *lease.Lease)    { l.Attempts = 3 }

func TestAcquire(t *testing.T) {
	// "you" acquires at noon.
	taken := lease.Lease{
		Owner: "you", Token: 8, Attempts: 3, HeartbeatAt: noon, ExpiresAt: noon.Add(300 * time.Second),
	}
	never, reopened := taken, taken
	never.Token, never.Attempts, reopened.FinishedBy = 1, 1, "old"
	undated := func(l *lease.Lease) { l.ExpiresAt = time.Time{} }
	unowned := func(l *lease.Lease) { l.Owner, l.ExpiresAt = "", noon.Add(time.Hour) }
	byOld := func(l *lease.Lease) { l.FinishedBy = "old" }
	for name, c := range map[string]struct{ was, want lease.Lease }{
		"one that was never leased":                       {lease.Lease{}, never},
		"a freed one":                                     {leased(freed), taken},
		"one that expires now is expired":                 {leased(), taken},
		"one without an expiry is stale":                  {leased(undated), taken},
		"an expiry without an owner holds nothing":        {leased(unowned), taken},
		"who finished it before it was reopened is known": {leased(freed, byOld), reopened},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := lease.Acquire(c.was, noon, "you", policy)
			must.OK(t, err)
			same(t, c.want, got)
		})
	}

	t.Run("the times are in whole milliseconds", func(t *testing.T) {
		got, err := lease.Acquire(leased(freed), noon.Add(999*time.Microsecond), "you", policy)
		must.OK(t, err)
		same(t, taken, got)
	})
	t.Run("without a limit nothing is exhausted", func(t *testing.T) {
		got, err := lease.Acquire(lease.Lease{Attempts: math.MaxInt32}, noon, "you", lease.Policy{})
		must.OK(t, err)
		same(t, noon.Add(lease.DefaultTTL), got.ExpiresAt)
	})
	t.Run("the first token of a fresh lease is its time in microseconds", func(t *testing.T) {
		got, err := lease.Acquire(lease.Fresh(noon), noon, "me", policy)
		must.OK(t, err)
		same(t, lease.Grant{Owner: "me", Token: noon.UnixMicro()}, got.Grant())
	})
}

func TestAcquire_Refused(t *testing.T) {
	for name, c := range map[string]struct {
		was  lease.Lease
		left time.Duration // until the expiry
		want error         // nil: it is held
	}{
		"one that expires in a nanosecond is held": {leased(), 1, nil},
		"one of the same owner is held too":        {leased(func(l *lease.Lease) { l.Owner = "you" }), 1, nil},
		"held comes before exhausted":              {leased(spent), 1, nil},
		"finished comes before held":               {leased(finished), 1, lease.ErrFinished},
		"finished comes before exhausted":          {leased(finished, spent), 0, lease.ErrFinished},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := lease.Acquire(c.was, noon.Add(-c.left), "you", policy)
			same(t, c.was, got)
			if c.want != nil {
				wantErr(t, err, c.want)
				return
			}
			same(t, &lease.HeldError{Owner: c.was.Owner, Token: 7, ExpiresAt: noon, Remaining: 1}, err)
		})
	}
	t.Run("exhausted comes before taking", func(t *testing.T) {
		got, err := lease.Acquire(leased(spent), noon, "you", policy)
		wantErr(t, err, lease.ErrExhausted)
		same(t, lease.Lease{Token: 8, Attempts: 3, Finished: true, FinishedBy: "you"}, got)
	})
}

// Renew, Finish and Release are for the holder alone, and leave another's lease as it is.
func TestLost(t *testing.T) {
	rules := map[string]func(l lease.Lease, g lease.Grant) (lease.Lease, error){
		"renew":   func(l lease.Lease, g lease.Grant) (lease.Lease, error) { return lease.Renew(l, noon, g, policy) },
		"finish":  lease.Finish,
		"release": func(l lease.Lease, g lease.Grant) (lease.Lease, error) { return lease.Release(l, g, true) },
	}
	for name, c := range map[string]struct {
		was    lease.Lease
		grant  lease.Grant
		reason string
	}{
		"another token":      {leased(), lease.Grant{Owner: "me", Token: 6}, lease.Taken},
		"another owner":      {leased(), lease.Grant{Owner: "you", Token: 7}, lease.Taken},
		"released":           {leased(freed), mine, lease.Taken},
		"released, no owner": {leased(freed), lease.Grant{Token: 7}, lease.Taken},
		"finished":           {leased(finished), mine, lease.Finished},
	} {
		for verb, rule := range rules {
			t.Run(verb+", "+name, func(t *testing.T) {
				got, err := rule(c.was, c.grant)
				wantLost(t, err, c.reason)
				same(t, c.was, got)
			})
		}
	}
}

// An hour after its expiry, a lease that was not taken is revived.
func TestRenew(t *testing.T) {
	later := noon.Add(time.Hour)
	got, err := lease.Renew(leased(), later.Add(time.Microsecond), mine, policy)
	must.OK(t, err)
	same(t, leased(func(l *lease.Lease) { l.HeartbeatAt, l.ExpiresAt = later, later.Add(300*time.Second) }), got)
}

func TestFinish(t *testing.T) {
	got, err := lease.Finish(leased(), mine)
	must.OK(t, err)
	same(t, lease.Lease{Token: 7, Attempts: 2, Finished: true, FinishedBy: "me"}, got)
}

func TestAdopt(t *testing.T) {
	got, err := lease.Adopt(leased(finished), mine)
	must.OK(t, err)
	same(t, lease.Lease{Token: 7, Attempts: 2, Finished: true, FinishedBy: "me"}, got)
	for name, c := range map[string]struct {
		was   lease.Lease
		grant lease.Grant
	}{
		"unfinished":    {leased(), mine},
		"another token": {leased(finished), lease.Grant{Owner: "me", Token: 6}},
		"released":      {leased(finished, freed), lease.Grant{Token: 7}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := lease.Adopt(c.was, c.grant)
			wantErr(t, err, lease.ErrLost)
			same(t, c.was, got)
		})
	}
}

func TestRelease(t *testing.T) {
	for name, c := range map[string]struct {
		attempts int
		refund   bool
		want     int
	}{
		"it counts":                   {2, false, 2},
		"a refund":                    {2, true, 1},
		"a refund never goes below 0": {0, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := lease.Release(leased(func(l *lease.Lease) { l.Attempts = c.attempts }), mine, c.refund)
			must.OK(t, err)
			same(t, lease.Lease{Token: 7, Attempts: c.want}, got)
		})
	}
}

func TestUnlock(t *testing.T) { same(t, lease.Lease{Token: 7, Attempts: 2}, lease.Unlock(leased())) }

func TestReopen(t *testing.T) {
	if _, err := lease.Reopen(leased(), noon.Add(-1)); !errors.As(err, new(*lease.HeldError)) {
		t.Errorf("held: %v; want a HeldError", err)
	}
	for name, l := range map[string]lease.Lease{"expired": leased(), "finished": leased(finished)} {
		t.Run(name, func(t *testing.T) {
			got, err := lease.Reopen(l, noon)
			must.OK(t, err)
			same(t, lease.Lease{Token: 7}, got)
		})
	}
}

func TestCancel(t *testing.T) {
	got, err := lease.Cancel(leased(), "by")
	must.OK(t, err)
	same(t, lease.Lease{Token: 8, Attempts: 2, Finished: true, FinishedBy: "by"}, got)

	before := lease.Lease{Token: 7, Finished: true, FinishedBy: "w/1"}
	got, err = lease.Cancel(before, "by")
	wantErr(t, err, lease.ErrFinished)
	same(t, before, got)
}

// A token is only raised, and only of a free record.
func TestRaiseToken(t *testing.T) {
	for minimum, want := range map[int64]int64{6: 7, 8: 8} {
		got, err := lease.RaiseToken(leased(freed), noon, minimum)
		must.OK(t, err)
		same(t, lease.Lease{Token: want, Attempts: 2}, got)
	}
	if got, err := lease.RaiseToken(leased(), noon.Add(-1), 8); !errors.As(err, new(*lease.HeldError)) {
		t.Errorf("held: %+v, %v; want a HeldError", got, err)
	}
}

// A lease ends once its record was seen unchanged for one TTL.
func TestOutwaited(t *testing.T) {
	reversed := leased(func(l *lease.Lease) { l.HeartbeatAt = noon.Add(time.Hour) })
	for name, c := range map[string]struct {
		was       lease.Lease
		unchanged time.Duration
		want      bool
	}{
		"for one TTL":                  {leased(), 300 * time.Second, true},
		"for less":                     {leased(), 300*time.Second - 1, false},
		"free":                         {leased(freed), time.Hour, false},
		"a heartbeat after its expiry": {reversed, time.Hour, false},
	} {
		got, expired := lease.Outwaited(c.was, noon.Add(-1), c.unchanged)
		same(t, c.want, expired)
		if c.want != !lease.Held(got, noon.Add(-1)) && c.was.Owner != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A record is orphaned if it is unfinished and free.
func TestOrphaned(t *testing.T) {
	for name, c := range map[string]struct {
		was  lease.Lease
		left time.Duration
		want bool
	}{
		"a freed one":                     {leased(freed), 0, true},
		"held":                            {leased(), 1, false},
		"one that expires now is expired": {leased(), 0, true},
		"finished, with a stale lock":     {leased(finished), 0, false},
	} {
		t.Run(name, func(t *testing.T) { same(t, c.want, lease.Orphaned(c.was, noon.Add(-c.left))) })
	}
}

// It counts from the heartbeat, or else from the last update.
func TestAssumedExpiry(t *testing.T) {
	updated := noon.Add(time.Minute)
	same(t, noon.Add(300*time.Second), lease.AssumedExpiry(noon, updated, policy))
	same(t, updated.Add(lease.DefaultTTL), lease.AssumedExpiry(time.Time{}, updated, lease.Policy{}))
}

// The store's clock is an hour ahead: trust lasts for the distance between that and
// the expiry, from the start of the call.
func TestTrusted(t *testing.T) {
	at := noon.Add(time.Hour)
	trusted := func(left time.Duration) time.Time {
		return lease.Trusted(lease.Lease{ExpiresAt: at.Add(left)}, at, noon, policy)
	}
	same(t, noon.Add(170*time.Second), trusted(200*time.Second))
	same(t, noon.Add(-31*time.Second), trusted(-time.Second))
}

func TestCredible(t *testing.T) {
	for ahead, want := range map[time.Duration]bool{
		-time.Hour: true, lease.MaxAhead: true, lease.MaxAhead + 1: false,
	} {
		t.Run(ahead.String(), func(t *testing.T) { same(t, want, lease.Credible(noon.Add(ahead), noon)) })
	}
}

// An expiry is distinct from the last that was tried.
func TestDistinct(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct{ tried, want time.Duration }{
		"earlier":                  {-ms, 0},
		"the same":                 {0, ms},
		"later":                    {5 * ms, 6 * ms},
		"the clock has been reset": {time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			same(t, noon.Add(c.want), lease.Distinct(lease.Lease{ExpiresAt: noon}, noon.Add(c.tried)).ExpiresAt)
		})
	}
}

func TestPolicy_Check(t *testing.T) {
	for name, c := range map[string]struct {
		policy lease.Policy
		ok     bool
	}{
		"zero":                         {lease.Policy{}, true},
		"the widest heartbeat":         {lease.Policy{TTL: 100 * time.Second, Heartbeat: 45 * time.Second}, true},
		"one nanosecond wider":         {lease.Policy{TTL: 100 * time.Second, Heartbeat: 45*time.Second + 1}, false},
		"twelve hours":                 {lease.Policy{TTL: 12 * time.Hour}, true},
		"over twelve hours":            {lease.Policy{TTL: 12*time.Hour + 1}, false},
		"a second":                     {lease.Policy{TTL: time.Second}, true},
		"under a second":               {lease.Policy{TTL: time.Second - 1}, false},
		"the longest heartbeat":        {lease.Policy{Heartbeat: math.MaxInt64}, false},
		"a negative TTL":               {lease.Policy{TTL: -time.Hour}, false},
		"a negative heartbeat":         {lease.Policy{Heartbeat: -1}, false},
		"a negative limit of attempts": {lease.Policy{MaxAttempts: -1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := lease.NewRecords(&lease.Memory[job]{}, leaseOf, c.policy); (err == nil) != c.ok {
				t.Errorf("%v; want ok %v", err, c.ok)
			}
		})
	}
}

// It ends before the lease: within the margin, a tenth of the TTL.
func TestPolicy_KillAfter(t *testing.T) {
	same(t, 5*time.Second, lease.Policy{}.KillAfter()) // half the margin would be 15 s
	same(t, time.Second, lease.Policy{TTL: 20 * time.Second}.KillAfter())
}
