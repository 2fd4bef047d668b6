package repo

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

type value = firestorepb.Value

// encoded encodes a value that encodeValue can encode.
func encoded(v any) *value {
	e, err := encodeValue(v)
	if err != nil {
		panic(err)
	}
	return e
}

func stringValue(s string) *value { return encoded(s) }

// codecFields are the fields that the codec reads. arbitrary gets the kind of each from
// four bits, the lowest bits for the first field.
var codecFields = []string{
	"lockToken", "lockOwner", "lockExpiresAt", "lockHeartbeatAt", "status", "attempts", "finishedBy",
	"updatedAt", "createdAt", "error", "lastError", "result", "input",
}

// arbitrary returns a value of one of 16 kinds, made of n, x and s; nil stands for no field.
// It replaces what Firestore cannot hold, such as a string that is not UTF-8.
func arbitrary(kind uint64, n int64, x float64, s string) *value {
	s = strings.ToValidUTF8(s, "?")
	words := []string{"QUEUED", "PROCESSING", "READY", "FAILED", "", "ARCHIVED"}
	return []*value{
		nil,
		encoded(nil),
		encoded(n%2 == 0),
		encoded(n),
		encoded(x),
		encoded(s),
		encoded(instant(n)),
		{ValueType: &firestorepb.Value_BytesValue{BytesValue: []byte(s)}},
		encoded(doc{"code": s}),
		encoded([]any{s, n}),
		{ValueType: &firestorepb.Value_ReferenceValue{ReferenceValue: "projects/p/databases/(default)/documents/a/b"}},
		{ValueType: &firestorepb.Value_GeoPointValue{GeoPointValue: &latlng.LatLng{Latitude: 1}}},
		encoded(words[uint64(n)%uint64(len(words))]),
		encoded(iso8601.Format(instant(n))),
		encoded(float64(n)),
		encoded(doc{s: doc{"code": n}}),
	}[kind%16]
}

// instant returns the time of n in epoch milliseconds, wrapped into the years 1 to 9999 that a
// Timestamp can have, plus some nanoseconds.
func instant(n int64) time.Time {
	const first, years = -62135596800000, maxMillis + 62135596800000 + 1
	ms := ((n-first)%years+years)%years + first
	return time.UnixMilli(ms).Add(time.Duration(uint64(n) % 1_000_000))
}

// usable reports whether a token can be decoded, and the next token is an integer too.
func usable(token *value) bool {
	switch v := token.GetValueType().(type) {
	case nil, *firestorepb.Value_NullValue:
		return true
	case *firestorepb.Value_IntegerValue:
		return v.IntegerValue >= 0 && v.IntegerValue < math.MaxInt64
	case *firestorepb.Value_DoubleValue:
		x := v.DoubleValue
		return x == math.Trunc(x) && x >= 0 && x < 1<<53
	}
	return false
}

// turns returns the changes that a document goes through. The rules refuse some of them.
func turns(p lease.Policy) []func(d *analysislock.Analysis, now time.Time) error {
	queue := func(d *analysislock.Analysis) {
		if d.Status == analysislock.Processing {
			d.Status = analysislock.Queued
		}
	}
	take := func(d *analysislock.Analysis, now time.Time) (err error) {
		if d.Lock, err = lease.Acquire(d.Lock, now, "w/1", p); err != nil && !errors.Is(err, lease.ErrExhausted) {
			return err
		}
		switch {
		case d.Lock.Finished:
			d.Status = analysislock.Failed
		case d.Status == "" || d.Status == analysislock.Queued:
			d.Status = analysislock.Processing
		}
		return nil
	}
	extend := func(d *analysislock.Analysis, now time.Time) (err error) {
		d.Lock, err = lease.Renew(d.Lock, now, d.Lock.Grant(), p)
		return err
	}
	release := func(d *analysislock.Analysis, _ time.Time) error {
		d.Lock, _ = lease.Release(d.Lock, d.Lock.Grant(), true)
		queue(d)
		return nil
	}
	finish := func(d *analysislock.Analysis, _ time.Time) (err error) {
		d.Lock, err = lease.Finish(d.Lock, d.Lock.Grant())
		d.Status, d.Result = analysislock.Ready, "result"
		return err
	}
	reopen := func(d *analysislock.Analysis, now time.Time) (err error) {
		d.Lock, err = lease.Reopen(d.Lock, now)
		d.Status = analysislock.Queued
		return err
	}
	unlock := func(d *analysislock.Analysis, _ time.Time) error {
		d.Lock = lease.Unlock(d.Lock)
		queue(d)
		return nil
	}
	return []func(*analysislock.Analysis, time.Time) error{
		take, extend, unlock, take, extend, finish, reopen, take, release, take,
	}
}

// page is a document that the codec reads and writes, without a store.
type page struct {
	codec       analysisCodec
	fields      map[string]*value
	at, written time.Time // of the next reading or writing, and of the last writing
}

func (p *page) read() (analysislock.Analysis, revision, error) {
	written := timestamppb.New(p.written)
	found := &firestorepb.Document{Fields: p.fields, CreateTime: written, UpdateTime: written}
	answer := &firestorepb.BatchGetDocumentsResponse{
		Result: &firestorepb.BatchGetDocumentsResponse_Found{Found: found}, ReadTime: timestamppb.New(p.at),
	}
	return p.codec.decode(decodeReading(answer, "x", nil))
}

func (p *page) write(prev, next analysislock.Analysis, rev revision) {
	for path, v := range p.codec.changes(prev, &next, &rev, p.at) {
		p.written = p.at
		if v == any(firestore.Delete) {
			delete(p.fields, path)
		} else {
			p.fields[path] = encoded(v)
		}
	}
}

// Any document is decoded without a panic. It is malformed if its token is and it is not
// finished, and it has an owner if the field has one of any type. Each change that is
// written is decoded as it was, and the fields of other programs stay the same.
func FuzzDocument(f *testing.F) {
	const soon = 1772625600000 // about the page's time, in milliseconds
	for kind := range uint64(16) {
		f.Add(kind, int64(soon), int64(7), 3.0, 1.5, "w/0", "x")                     // the token
		f.Add(kind<<4|kind<<8, int64(soon), int64(soon), 0.5, 1e300, "js/1", "soon") // the owner, and when
		f.Add(0x1234^kind<<20|kind<<36, int64(-1), int64(math.MaxInt64), math.NaN(), math.Inf(-1), "", "x")
	}
	for status := range int64(6) { // READY and FAILED among them, with and without a lock
		f.Add(uint64(0xc0003), status, int64(0), 0.0, 0.0, "", "")
		f.Add(uint64(0xc0d50), status, int64(0), 0.0, 0.0, "", "js/1")              // expired long ago
		f.Add(uint64(0xc0d50), soon+600_000+status, int64(0), 0.0, 0.0, "", "js/1") // held
	}
	f.Add(uint64(0xd5d53), int64(3), int64(soon+1000), 0.0, 0.0, "", "js/1")
	f.Add(uint64(3), int64(math.MaxInt64-2), int64(0), 0.0, 0.0, "", "")
	f.Add(uint64(3), int64(math.MaxInt64-1), int64(0), 0.0, 0.0, "", "")
	f.Add(uint64(0xc0dc6), int64(2), int64(0), 0.0, 0.0, "", "js/1") // finished, an unusable token, a lock left on it
	f.Add(uint64(4), int64(0), int64(0), float64(1<<53), math.Copysign(0, -1), "", strings.Repeat("x", 5000))
	policy := lease.Policy{TTL: lease.DefaultTTL, MaxAttempts: 10}
	codec := silent(Fields{})
	codec.policy = policy
	f.Fuzz(func(t *testing.T, kinds uint64, n, m int64, x, y float64, s, u string) {
		at := time.Date(2026, 3, 4, 12, 0, 0, 123456000, time.UTC)
		p := &page{codec: codec, fields: map[string]*value{"theirs": stringValue("theirs")}, at: at, written: at}
		for i, name := range codecFields {
			if v := arbitrary(kinds>>(4*i), n, x, s); v != nil {
				p.fields[name] = v
			}
			n, m, x, y, s, u = m, n, y, x, u, s
		}
		input := p.fields["input"]
		d, rev, err := p.read()
		ok := usable(p.fields["lockToken"]) || analysislock.Finished(p.fields["status"].GetStringValue())
		if (err == nil) != ok {
			t.Fatalf("token %v: %v; usable %v", p.fields["lockToken"], err, ok)
		}
		if err != nil || d.Lock.Token > math.MaxInt64-10 {
			return // so near the largest token that a change may reach it
		}
		owner := p.fields["lockOwner"]
		free := owner == nil || proto.Equal(owner, encoded(nil)) || proto.Equal(owner, encoded(""))
		if (d.Lock.Owner == "") != free {
			t.Fatalf("owner %v is %q", owner, d.Lock.Owner)
		}
		for i, turn := range turns(policy) {
			p.at = p.at.Add(time.Second)
			next := d
			if turn(&next, p.at) != nil {
				continue
			}
			p.write(d, next, rev)
			if d, rev, err = p.read(); err != nil {
				t.Fatalf("turn %d: read back: %v", i, err)
			}
			if diff := cmp.Diff(next.Lock, d.Lock); diff != "" || next.Status != d.Status {
				t.Fatalf("turn %d: status %q, then %q; lock (-meant +read):\n%s", i, next.Status, d.Status, diff)
			}
		}
		if !proto.Equal(input, p.fields["input"]) || p.fields["theirs"].GetStringValue() != "theirs" {
			t.Errorf("fields of others were changed: %v", p.fields)
		}
	})
}

// A time that was decoded is written as the same millisecond, and a number is decoded as the same number.
func FuzzLockFields(f *testing.F) {
	for _, s := range []string{
		"", "2026-03-04T12:00:00Z", "2026-03-04T12:00:00.123456789Z", "2026-03-04T12:00:00+09:00", "2026-03-04",
		"0001-01-01T00:00:00Z", "9999-12-31T23:59:59.9999Z", "9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00+01:00",
		"soon", "2026-03-04T12:00:00." + strings.Repeat("9", 10_000) + "Z",
	} {
		f.Add(s, int64(1772625600000), 1772625600000.5)
	}
	for _, x := range []float64{math.NaN(), math.Inf(1), -1e300, -1, 0, 1 << 53, maxMillis, maxMillis + 1, 5e-324} {
		f.Add("", int64(-1), x)
	}
	for _, n := range []int64{0, 1, maxMillis, maxMillis + 1, math.MaxInt64, math.MinInt64} {
		f.Add("", n, 0.0)
	}
	f.Fuzz(func(t *testing.T, s string, n int64, x float64) {
		wantMillis(t, instant(n), true, instant(n).UnixMilli())
		wantMillis(t, n, n >= 0 && n <= maxMillis, n)
		wantMillis(t, x, x >= 0 && x <= maxMillis, int64(x))
		at, ok := parseTime(s)
		wantMillis(t, s, ok, at.UnixMilli())
		wantInt(t, s, false, 0)
		wantInt(t, n, true, n)
		wantInt(t, x, x == math.Trunc(x) && math.Abs(x) < 1<<53, int64(x))
	})
}

func wantInt(t *testing.T, v any, readable bool, want int64) {
	t.Helper()
	if !readable {
		want = 0
	}
	if got, ok := parseInt(v); ok != readable || got != want {
		t.Errorf("%v is the integer %d, %v; want %d, %v", v, got, ok, want, readable)
	}
}

// wantMillis decodes v as a time, and decodes what is written for it.
func wantMillis(t *testing.T, v any, readable bool, want int64) {
	t.Helper()
	at, ok := parseTime(v)
	if !readable {
		want = time.Time{}.UnixMilli()
	}
	if ok != readable || at.UnixMilli() != want {
		t.Errorf("%.80v is %v, %v; want %d ms", v, at, ok, want)
	}
	if year := at.UTC().Year(); year < 0 || year > 9999 {
		return // ISO 8601 cannot write it
	}
	if at.IsZero() {
		return // never written
	}
	written, _ := timeValue(at).(string)
	back, ok := parseTime(written)
	if !ok || back.UnixMilli() != at.UnixMilli() {
		t.Errorf("%.80v is %v, written as %q, read as %v, %v", v, at, written, back, ok)
	}
}
