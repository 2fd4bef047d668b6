package document

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// cases are behaviours of a room "r", each on stores of its own, whose clocks differ from
// this machine's, and in virtual time. The TTL is 30 s.
var cases = map[string]func(t *testing.T, s *store, l *Locks){
	"a free room is locked for 30 s": func(t *testing.T, s *store, l *Locks) { // D1
		got := acquire(t, l, "r", "s/1")
		if lived := got.Lock.ExpiresAt.Sub(got.Lock.LockedAt); lived != 30*time.Second {
			t.Errorf("%+v lives %v, want 30 s", got, lived)
		}
		if !got.Locked || got.Lock.Holder == "" {
			t.Errorf("%+v, want a holder", got)
		}
		if until := time.Until(got.Until); until <= 26*time.Second || until > 27*time.Second {
			t.Errorf("can be relied on for %v, want the margin of a tenth less", until)
		}
		if r := s.records["r"]; r.lock != got.Lock {
			t.Errorf("record %+v, want %+v", r.lock, got.Lock)
		}
	},
	"a refusal shows since when the room is held": func(t *testing.T, s *store, l *Locks) { // C: 409
		first := acquire(t, l, "r", "s/1")
		time.Sleep(29 * time.Second)
		extended := renew(t, l)
		before := s.records["r"]
		_, err := l.Acquire(t.Context(), "r", "s/2")
		var held *HeldError
		if !errors.As(err, &held) || !errors.As(err, new(*lease.HeldError)) {
			t.Fatalf("err = %#v, want it held", err)
		}
		if !held.LockedAt.Equal(first.Lock.LockedAt) || !held.ExpiresAt.Equal(extended.Lock.ExpiresAt) {
			t.Errorf("err = %#v, want held since %v", err, first.Lock.LockedAt)
		}
		if s.records["r"] != before {
			t.Error("the record was touched")
		}
	},
	"an expired lock is taken by another or again under a new name": func(t *testing.T, _ *store, l *Locks) { // D1
		last := acquire(t, l, "r", "s/1")
		for i := range 20 {
			time.Sleep(30 * time.Second)
			next := acquire(t, l, "r", fmt.Sprint("s/", i/2%2))
			if next.Lock.Token <= last.Lock.Token || next.Lock.Holder == last.Lock.Holder {
				t.Errorf("%+v after %+v; want a larger token and another holder", next.Lock, last.Lock)
			}
			if next.Lock.Attempts != 0 {
				t.Errorf("%+v counts attempts", next.Lock)
			}
			last = next
		}
	},
	"a lock is trusted from the start of the request": func(t *testing.T, s *store, _ *Locks) {
		slow := leasetest.NewFaulty(s, leasetest.Every(leasetest.Swap, leasetest.SlowReply))
		if got := acquire(t, on(t, slow), "r", "s/1"); time.Until(got.Until) > 25*time.Second {
			t.Errorf("can be relied on for %v, want a second less for the reply", time.Until(got.Until))
		}
	},
	"both commits of an acquisition have 8 s together": func(t *testing.T, s *store, _ *Locks) {
		slow := leasetest.NewFaulty(s, leasetest.On(leasetest.Swap, leasetest.SlowReply, leasetest.Unavailable))
		slow.Delay = 6 * time.Second
		began := time.Now()
		_, err := on(t, slow).Acquire(t.Context(), "r", "s/1")
		if took := time.Since(began); !errors.Is(err, lease.ErrUnavailable) || took != timeout {
			t.Errorf("%v after %v", err, took)
		}
	},
	"a heartbeat of an expired lock finds none": func(t *testing.T, s *store, l *Locks) { // D2: 404; R7, R8
		if _, err := l.Renew(t.Context(), "r", "s/1"); !errors.Is(err, ErrNotLocked) || len(s.records) != 0 {
			t.Errorf("free: %v, want ErrNotLocked; records %v", err, s.records)
		}
		acquire(t, l, "r", "s/1")
		time.Sleep(30 * time.Second)
		if _, err := l.Renew(t.Context(), "r", "s/1"); !errors.Is(err, ErrNotLocked) {
			t.Errorf("expired: %v, want ErrNotLocked", err)
		}
		if release(t, l, "s/1") {
			t.Error("released what has expired")
		}
	},
	"a release whose reply is lost is done also if another acquires next": func(t *testing.T, s *store, l *Locks) {
		acquire(t, l, "r", "s/1")
		lost := leasetest.NewFaulty(s, func(c leasetest.Call) leasetest.Fault {
			if c.Op == leasetest.Load && c.N == 2 {
				acquire(t, l, "r", "s/2")
			}
			return leasetest.On(leasetest.Swap, leasetest.ReplyLost)(c)
		})
		if !release(t, on(t, lost), "s/1") || lost.Calls(leasetest.Load) != 2 {
			t.Errorf("not released, after %d readings", lost.Calls(leasetest.Load))
		}
	},
	"a lock of another with the same expiry is not one's own": func(t *testing.T, s *store, l *Locks) {
		lost := leasetest.NewFaulty(s, func(c leasetest.Call) leasetest.Fault {
			if c.Op == leasetest.Swap && c.N == 2 {
				acquire(t, l, "r", "s/2")
			}
			return leasetest.On(leasetest.Swap, leasetest.None, leasetest.RequestLost)(c)
		})
		if got, err := on(t, lost).Acquire(t.Context(), "r", "s/1"); !errors.As(err, new(*HeldError)) || got.Mine {
			t.Errorf("%+v, %v; want held", got, err)
		}
	},
	"get shows whether the room is locked and by the owner": func(t *testing.T, _ *store, l *Locks) { // C: GET
		acquire(t, l, "r", "s/1")
		for owner, mine := range map[string]bool{"s/1": true, "s/2": false, "": false} {
			got := get(t, l, owner)
			if !got.Locked || got.Mine != mine {
				t.Errorf("as %q: %+v", owner, got)
			}
			if got.Lock.LockedAt.IsZero() || got.Until.IsZero() == mine {
				t.Errorf("as %q: since %v, until %v", owner, got.Lock.LockedAt, got.Until)
			}
		}
		time.Sleep(30 * time.Second)
		if got := get(t, l, "s/1"); got != (State{Lock: Lock{}}) {
			t.Errorf("expired: %+v", got)
		}
	},
	"a save is confirmed only for the holder under its token": func(t *testing.T, s *store, l *Locks) { // X
		if _, err := l.Confirm(t.Context(), "r", "s/1", 1); !errors.Is(err, ErrNotLocked) {
			t.Errorf("free: %v, want ErrNotLocked", err)
		}
		token := acquire(t, l, "r", "s/1").Lock.Token
		time.Sleep(20 * time.Second)
		got, err := l.Confirm(t.Context(), "r", "s/1", token)
		must.OK(t, err)
		if left := time.Until(got.Until); left <= 6*time.Second || left > 7*time.Second {
			t.Errorf("for %v; want the remaining 10 s less 3", left)
		}
		for owner, token := range map[string]int64{"s/1": token - 1, "s/2": token} {
			if _, err := l.Confirm(t.Context(), "r", owner, token); !errors.Is(err, ErrNotYours) {
				t.Errorf("%s, %d: %v, want ErrNotYours", owner, token, err)
			}
		}
		time.Sleep(10 * time.Second)
		if _, err := l.Confirm(t.Context(), "r", "s/1", token); !errors.Is(err, ErrNotLocked) {
			t.Errorf("expired: %v, want ErrNotLocked", err)
		}
		refusing := on(t, leasetest.NewFaulty(s, leasetest.Always(leasetest.Refuse)))
		_, gotten := refusing.Get(t.Context(), "r", "s/1")
		_, confirmed := refusing.Confirm(t.Context(), "r", "s/1", token)
		if !errors.Is(gotten, lease.ErrRefused) || !errors.Is(confirmed, lease.ErrRefused) {
			t.Errorf("get: %v, confirm: %v; want the store's refusal", gotten, confirmed)
		}
	},
	"an operator unlocks any holder": func(t *testing.T, s *store, l *Locks) {
		if unlock(t, l) {
			t.Error("unlocked a free room")
		}
		token := acquire(t, l, "r", "s/1").Lock.Token
		if !unlock(t, l) || !s.records["r"].lock.Unlocked {
			t.Errorf("record %+v", s.records["r"])
		}
		if _, err := l.Confirm(t.Context(), "r", "s/1", token); !errors.Is(err, ErrNotLocked) {
			t.Errorf("its holder: %v, want ErrNotLocked", err)
		}
		next := acquire(t, l, "r", "s/2")
		if next.Lock.Token <= token || next.Lock.Unlocked {
			t.Errorf("the next is %+v; want a token over %d", next.Lock, token)
		}
	},
	"the record of an unlock is swept later": func(t *testing.T, s *store, l *Locks) {
		acquire(t, l, "r", "s/1")
		unlock(t, l)
		time.Sleep(unlockedFor) // in which feeds learn the reason
		s.wantSwept(t, l, s, 0, 1)
		time.Sleep(time.Second)
		s.wantSwept(t, l, s, 1, 0)
	},
	"a token ahead of the store's time grows": func(t *testing.T, s *store, l *Locks) {
		ahead := s.now().Add(24 * time.Hour).UnixMicro()
		s.put("r", Lock{Lease: lease.Lease{Owner: "s/0", Token: ahead, ExpiresAt: s.now()}})
		if got := acquire(t, l, "r", "s/1").Lock.Token; got <= ahead {
			t.Errorf("token %d after %d", got, ahead)
		}
	},
	"a sweep has many pages also if a room of the first is extended meanwhile": func(t *testing.T, s *store, l *Locks) {
		s.expire(2*sweepBatch + 1)
		s.wantSwept(t, l, extending{s, "0"}, 2*sweepBatch, 1)
	},
	"a room that cannot be swept does not stop the others": func(t *testing.T, s *store, _ *Locks) {
		s.expire(200)
		n, err := on(t, refusing{s, "0"}).Sweep(t.Context(), s)
		if !errors.Is(err, lease.ErrRefused) || n != 199 {
			t.Errorf("swept %d, %v", n, err)
		}
	},
	"a sweep ends if all that it finds are held": func(t *testing.T, s *store, l *Locks) {
		acquire(t, l, "r", "s/1")
		f := &stale{found: slices.Repeat([]Change{{"r", s.cell("r", time.Now())}}, sweepBatch)}
		if s.wantSwept(t, l, f, 0, 1); f.calls != 1 {
			t.Errorf("%d pages", f.calls)
		}
		f.calls = 3
		if _, err := l.Sweep(t.Context(), f); err == nil {
			t.Error("no error of the finder")
		}
	},
	"a room's id has at most 512 bytes and an owner one": func(t *testing.T, _ *store, l *Locks) {
		acquire(t, l, strings.Repeat("x", MaxRoom), "s/1")
		_, err := l.Acquire(t.Context(), strings.Repeat("x", MaxRoom+1), "s/1")
		if !errors.Is(err, lease.ErrInvalidKey) {
			t.Errorf("err = %v, want ErrInvalidKey", err)
		}
		if _, err := l.Acquire(t.Context(), "r", ""); err == nil {
			t.Error("acquired without an owner")
		}
	},
}

// stale is a Finder whose index is behind. It fails after some pages.
type stale struct {
	found []Change
	calls int
}

func (f *stale) Lapsed(context.Context, int) ([]Change, error) {
	if f.calls++; f.calls > 3 {
		return nil, errors.New("too many pages")
	}
	return f.found, nil
}

// extending is a Finder of expired records, one of which is extended right after it was found.
type extending struct {
	*store
	room string
}

func (e extending) Lapsed(ctx context.Context, limit int) ([]Change, error) {
	found, err := e.store.Lapsed(ctx, limit)
	e.put(e.room, Lock{Lease: lease.Lease{Owner: "s/1", Token: 1, ExpiresAt: e.now().Add(time.Minute)}})
	return found, err
}

// refusing refuses to change a room.
type refusing struct {
	*store
	room string
}

func (r refusing) Swap(ctx context.Context, room string, prev cell, next Lock) (cell, error) {
	if room == r.room {
		return cell{}, lease.ErrRefused
	}
	return r.store.Swap(ctx, room, prev, next)
}

func TestLocks(t *testing.T) {
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			for _, ahead := range clocks {
				synctest.Test(t, func(t *testing.T) {
					s, l := open(t)
					s.ahead = ahead
					run(t, s, l)
				})
			}
		})
	}
}

// An acquirer reads that there is no record, and another takes and frees the room
// before its commit arrives: its token must still be larger.
func TestLocks_LateToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, quick := open(t)
		late := leasetest.NewFaulty(s, leasetest.On(leasetest.Swap, leasetest.SlowRequest))
		var slow State
		done := make(chan struct{})
		go func() {
			defer close(done)
			slow = acquire(t, on(t, late), "r", "slow")
		}()
		synctest.Wait() // it has read
		time.Sleep(time.Millisecond)
		between := acquire(t, quick, "r", "quick")
		release(t, quick, "quick")
		<-done
		if slow.Lock.Token <= between.Lock.Token {
			t.Errorf("token %d after %d", slow.Lock.Token, between.Lock.Token)
		}
	})
}

func TestLocks_TTL(t *testing.T) { // D6
	synctest.Test(t, func(t *testing.T) {
		l := must.Get(New(&store{}, 5*time.Second))(t)
		got := acquire(t, l, "r", "s/1")
		if lived := got.Lock.ExpiresAt.Sub(got.Lock.LockedAt); lived != 5*time.Second {
			t.Errorf("lives %v, want 5 s", lived)
		}
		time.Sleep(time.Millisecond) // else the expiry would be one millisecond later, to differ
		extended := renew(t, l).Lock
		if lived := extended.ExpiresAt.Sub(extended.HeartbeatAt); lived != 5*time.Second { // X: another TTL to extend
			t.Errorf("extended for %v", lived)
		}
	})
	for _, ttl := range []time.Duration{-time.Second, time.Second - 1} {
		if _, err := New(&store{}, ttl); err == nil {
			t.Errorf("a TTL of %v is no error", ttl)
		}
	}
}
