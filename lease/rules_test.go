package lease_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskguard/lease"
)

var (
	noon   = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	policy = lease.Policy{TTL: 300 * time.Second, MaxAttempts: 3}
	mine   = lease.Grant{Owner: "me", Token: 7}
)

// leased returns a lease that "me" holds until noon.
func leased(change ...func(*lease.Lease)) lease.Lease {
	l := lease.Lease{Owner: "me", Token: 7, Attempts: 2, HeartbeatAt: noon.Add(-300 * time.Second), ExpiresAt: noon}
	for _, f := range change {
		f(&l)
	}
	return l
}

func freed(l *lease.Lease) { l.Owner, l.HeartbeatAt, l.ExpiresAt = "", time.Time{}, time.Time{} }

func finished(l *lease.Lease) { l.Finished = true }

func TestAcquire(t *testing.T) {
	stolen := leased(func(l *lease.Lease) {
		l.Owner, l.Token, l.Attempts, l.HeartbeatAt, l.ExpiresAt = "you", 8, 3, noon, noon.Add(300*time.Second)
	})
	gaveUp := lease.Lease{Token: 8, Attempts: 3, Finished: true, FinishedBy: "you"}
	spent := func(l *lease.Lease) { l.Attempts = 3 }
	cases := map[string]struct {
		lease lease.Lease
		now   time.Time
		want  lease.Lease
		err   error
	}{
		"one never leased":                             {lease.Lease{}, noon, lease.Lease{Owner: "you", Token: 1, Attempts: 1, HeartbeatAt: noon, ExpiresAt: noon.Add(300 * time.Second)}, nil},
		"a freed one":                                  {leased(freed), noon, stolen, nil},
		"one that expires now is expired":              {leased(), noon, stolen, nil},
		"one that expires in a nanosecond is held":     {leased(), noon.Add(-1), leased(), &lease.HeldError{Owner: "me", Token: 7, ExpiresAt: noon, Remaining: 1}},
		"one without an expiry is stale":               {leased(func(l *lease.Lease) { l.ExpiresAt = time.Time{} }), noon, stolen, nil},
		"an expiry without an owner holds nothing":     {leased(func(l *lease.Lease) { l.Owner, l.ExpiresAt = "", noon.Add(time.Hour) }), noon, stolen, nil},
		"one of the same owner is held too":            {leased(func(l *lease.Lease) { l.Owner = "you" }), noon.Add(-1), leased(func(l *lease.Lease) { l.Owner = "you" }), &lease.HeldError{Owner: "you", Token: 7, ExpiresAt: noon, Remaining: 1}},
		"finished comes before held":                   {leased(finished), noon.Add(-1), leased(finished), lease.ErrFinished},
		"finished comes before exhausted":              {leased(finished, spent), noon, leased(finished, spent), lease.ErrFinished},
		"held comes before exhausted":                  {leased(spent), noon.Add(-1), leased(spent), &lease.HeldError{Owner: "me", Token: 7, ExpiresAt: noon, Remaining: 1}},
		"exhausted comes before taking":                {leased(spent), noon, gaveUp, lease.ErrExhausted},
		"the last attempt is granted":                  {leased(), noon, stolen, nil},
		"heartbeat and expiry are in whole millis":     {leased(freed), noon.Add(999 * time.Microsecond), stolen, nil},
		"who finished it before it was reopened stays": {leased(freed, func(l *lease.Lease) { l.FinishedBy = "old" }), noon, func() lease.Lease { l := stolen; l.FinishedBy = "old"; return l }(), nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := lease.Acquire(c.lease, c.now, "you", policy)
			var held *lease.HeldError
			if errors.As(c.err, &held) {
				same(t, c.err, err)
			} else if !errors.Is(err, c.err) {
				t.Errorf("err = %v; want %v", err, c.err)
			}
			same(t, c.want, got)
		})
	}
}

func TestAcquireWithoutALimitNeverExhausts(t *testing.T) {
	l, err := lease.Acquire(lease.Lease{Attempts: math.MaxInt32}, noon, "you", lease.Policy{})
	if err != nil || l.ExpiresAt != noon.Add(lease.DefaultTTL) {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestRenewAndFinishAreForTheHolderAlone(t *testing.T) {
	cases := map[string]struct {
		lease  lease.Lease
		grant  lease.Grant
		reason string // of the loss; none
		adopts bool
	}{
		"held":                      {leased(), mine, "", false},
		"another's token":           {leased(), lease.Grant{Owner: "me", Token: 6}, lease.Taken, false},
		"another owner":             {leased(), lease.Grant{Owner: "you", Token: 7}, lease.Taken, false},
		"released":                  {leased(freed), mine, lease.Taken, false},
		"released, no owner":        {leased(freed), lease.Grant{Token: 7}, lease.Taken, false},
		"finished":                  {leased(finished), mine, lease.Finished, true},
		"finished, another's token": {leased(finished), lease.Grant{Owner: "me", Token: 6}, lease.Finished, false},
		"finished, another owner":   {leased(finished), lease.Grant{Owner: "you", Token: 7}, lease.Finished, false},
		"finished and released":     {leased(finished, freed), lease.Grant{Token: 7}, lease.Finished, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			wantExtended, wantFinished := c.lease, c.lease
			if c.reason == "" {
				later := noon.Add(time.Hour)
				wantExtended.HeartbeatAt, wantExtended.ExpiresAt = later, later.Add(300*time.Second)
				wantFinished = lease.Lease{Token: 7, Attempts: 2, Finished: true, FinishedBy: "me"}
			}
			check := func(verb string, got, want lease.Lease, err error) {
				same(t, want, got)
				if c.reason != "" {
					wantLost(t, err, c.reason)
				} else if err != nil {
					t.Errorf("%s: %v", verb, err)
				}
			}
			// An hour after the expiry, a lease that was not taken is revived.
			got, err := lease.Renew(c.lease, noon.Add(time.Hour+time.Microsecond), c.grant, policy)
			check("extend", got, wantExtended, err)
			got, err = lease.Finish(c.lease, c.grant)
			check("finish", got, wantFinished, err)
			wantAdopted := c.lease
			if c.adopts {
				wantAdopted = lease.Lease{Token: 7, Attempts: 2, Finished: true, FinishedBy: "me"}
			}
			got, err = lease.Adopt(c.lease, c.grant)
			if diff := cmp.Diff(wantAdopted, got); diff != "" || errors.Is(err, lease.ErrLost) == c.adopts {
				t.Errorf("adopt: %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestRelease(t *testing.T) {
	free := lease.Lease{Token: 7, Attempts: 2}
	cases := map[string]struct {
		lease  lease.Lease
		grant  lease.Grant
		refund bool
		want   lease.Lease
	}{
		"ours":                          {leased(), mine, false, free},
		"ours, with a refund":           {leased(), mine, true, lease.Lease{Token: 7, Attempts: 1}},
		"a refund never goes below 0":   {leased(func(l *lease.Lease) { l.Attempts = 0 }), mine, true, lease.Lease{Token: 7}},
		"another's is left unchanged":   {leased(), lease.Grant{Owner: "you", Token: 7}, true, leased()},
		"a later one of the same owner": {leased(), lease.Grant{Owner: "me", Token: 6}, true, leased()},
		"a finished one":                {leased(finished), mine, true, leased(finished)},
		"a free one":                    {free, lease.Grant{Token: 7}, true, free},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := lease.Release(c.lease, c.grant, c.refund)
			same(t, c.want, got)
			if unchanged := got == c.lease; unchanged != errors.Is(err, lease.ErrLost) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestUnlockFreesTheLeaseOfAnyOwner(t *testing.T) {
	want := lease.Lease{Token: 7, Attempts: 2}
	same(t, want, lease.Unlock(leased()))
}

func TestReopen(t *testing.T) {
	if _, err := lease.Reopen(leased(), noon.Add(-1)); !errors.As(err, new(*lease.HeldError)) {
		t.Errorf("held: %v; want a HeldError", err)
	}
	for name, l := range map[string]lease.Lease{"expired": leased(), "finished": leased(finished)} {
		got, err := lease.Reopen(l, noon)
		if diff := cmp.Diff(lease.Lease{Token: 7}, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestARecordIsOrphanedIfItIsUnfinishedAndFree(t *testing.T) {
	for name, c := range map[string]struct {
		lease lease.Lease
		now   time.Time
		want  bool
	}{
		"a freed one":                     {leased(freed), noon, true},
		"held":                            {leased(), noon.Add(-1), false},
		"one that expires now is expired": {leased(), noon, true},
		"finished, with a stale lock":     {leased(finished), noon, false},
	} {
		if got := lease.Orphaned(c.lease, c.now); got != c.want {
			t.Errorf("%s: orphaned = %v; want %v", name, got, c.want)
		}
	}
}

func TestPresumeCountsFromTheHeartbeatElseFromTheUpdate(t *testing.T) {
	beat, updated := noon, noon.Add(time.Minute)
	if got, want := lease.AssumedExpiry(beat, updated, policy), noon.Add(300*time.Second); !got.Equal(want) {
		t.Errorf("from the heartbeat: %v; want %v", got, want)
	}
	if got, want := lease.AssumedExpiry(time.Time{}, updated, lease.Policy{}), updated.Add(lease.DefaultTTL); !got.Equal(want) {
		t.Errorf("from the update: %v; want %v", got, want)
	}
}

// The store's clock is an hour ahead: trust lasts for the distance between that and
// the expiry, from the start of the call.
func TestTrustCountsFromTheStartOfTheCall(t *testing.T) {
	asked := noon
	at := noon.Add(time.Hour)
	l := lease.Lease{ExpiresAt: at.Add(200 * time.Second)}
	if got, want := lease.Trusted(l, at, asked, policy), noon.Add(170*time.Second); !got.Equal(want) {
		t.Errorf("trusted until %v; want %v", got, want)
	}
	l.ExpiresAt = at.Add(-time.Second)
	if got := lease.Trusted(l, at, asked, policy); !got.Before(asked) {
		t.Errorf("an expired lease is trusted until %v", got)
	}
}

func TestPolicyCheck(t *testing.T) {
	cases := map[string]struct {
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
		"a heartbeat beyond the TTL":   {lease.Policy{Heartbeat: lease.DefaultTTL}, false},
		"a heartbeat of 146 years":     {lease.Policy{Heartbeat: 1 << 62}, false},
		"the longest heartbeat":        {lease.Policy{Heartbeat: math.MaxInt64}, false},
		"a negative TTL":               {lease.Policy{TTL: -time.Hour}, false},
		"a negative heartbeat":         {lease.Policy{Heartbeat: -1}, false},
		"a negative limit of attempts": {lease.Policy{MaxAttempts: -1}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := c.policy.Check(); (err == nil) != c.ok {
				t.Errorf("check: %v; want ok %v", err, c.ok)
			}
			if _, err := lease.NewRecords(&lease.Memory[job]{}, leaseOf, c.policy); (err == nil) != c.ok {
				t.Errorf("NewRecords: %v; want ok %v", err, c.ok)
			}
		})
	}
}

func TestKillAfterEndsBeforeTheLease(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		0:                 5 * time.Second, // of 300 s: half the margin would be 15 s
		100 * time.Second: 5 * time.Second,
		20 * time.Second:  time.Second,
	} {
		p := lease.Policy{TTL: ttl}
		if got := p.KillAfter(); got != want || got >= p.Margin() {
			t.Errorf("TTL %v: kill after %v of margin %v; want %v", ttl, got, p.Margin(), want)
		}
	}
}

func TestAFreshLeaseGivesItsTimeInMicrosecondsAsTheFirstToken(t *testing.T) {
	got, err := lease.Acquire(lease.Fresh(noon), noon, "me", policy)
	if want := noon.UnixMicro(); err != nil || got.Token != want || got.Attempts != 1 {
		t.Errorf("%+v, %v; want the token %d of the first attempt", got, err, want)
	}
}

func TestAStoredTimeIsCredibleUpToADayAhead(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	for ahead, want := range map[time.Duration]bool{-time.Hour: true, lease.MaxAhead: true, lease.MaxAhead + 1: false} {
		if got := lease.Credible(now.Add(ahead), now); got != want {
			t.Errorf("%v ahead: %v, want %v", ahead, got, want)
		}
	}
}

func TestACancelledLeaseIsFinishedWithAnotherToken(t *testing.T) {
	held := lease.Lease{Owner: "w/1", Token: 7, Attempts: 2, ExpiresAt: time.UnixMilli(1)}
	if got, err := lease.Cancel(held, "by"); err != nil || got != (lease.Lease{Token: 8, Attempts: 2, Finished: true, FinishedBy: "by"}) {
		t.Errorf("%+v, %v", got, err)
	}
	finished := lease.Lease{Token: 7, Finished: true, FinishedBy: "w/1"}
	if got, err := lease.Cancel(finished, "by"); !errors.Is(err, lease.ErrFinished) || got != finished {
		t.Errorf("%+v, %v; want it unchanged and ErrFinished", got, err)
	}
}

func TestAnExpiryIsDistinctFromTheLastThatWasTried(t *testing.T) {
	const ms = time.Millisecond
	for name, tc := range map[string]struct{ tried, want time.Duration }{
		"earlier":                  {-ms, 0},
		"the same":                 {0, ms},
		"later":                    {5 * ms, 6 * ms},
		"the clock has been reset": {time.Hour, 0},
	} {
		expiry := time.Unix(1000, 0)
		l := lease.Distinct(lease.Lease{ExpiresAt: expiry}, expiry.Add(tc.tried))
		if got := l.ExpiresAt.Sub(expiry); got != tc.want {
			t.Errorf("%s: moved by %v; want %v", name, got, tc.want)
		}
	}
}
