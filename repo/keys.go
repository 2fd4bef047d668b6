package repo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/firestore"
	"golang.org/x/sync/errgroup"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Concurrency limits how many analyses with one key run at a time.
type Concurrency struct {
	// Fields are the fields of a document that Key needs, such as tenant or input.account.
	Fields []string
	// Key returns the key of a document with these fields, and perhaps others; empty: it is not limited. Nil:
	// the key is the first of Fields, if that is a text, a number or a boolean.
	Key func(fields map[string]any) string
	// Limit returns how many analyses with that key may run at a time, up to 1,000. It may change. Zero or
	// less: none.
	Limit func(key string) int
	// Hold keeps the slot of an analysis that must run again until its next attempt.
	Hold bool
}

// Check returns an error if the Fields are not the paths of fields, or Limit is missing.
func (c *Concurrency) Check() error {
	switch {
	case c == nil:
		return nil
	case len(c.Fields) == 0:
		return errors.New("repo: concurrency: no field is named")
	case c.Limit == nil:
		return errors.New("repo: concurrency: there is no limit")
	}
	for _, path := range c.Fields {
		for name := range strings.SplitSeq(path, ".") {
			if !simpleName.MatchString(name) || strings.HasPrefix(name, "__") {
				return fmt.Errorf("repo: concurrency: %q is not the path of a field", path)
			}
		}
	}
	return nil
}

// key returns the key of a document.
func (c *Concurrency) key(r reading) string {
	fields := map[string]any{}
	for _, path := range c.Fields {
		top, _, _ := strings.Cut(path, ".")
		fields[top] = r.fields[top]
		if v := r.encoded[top]; v != nil { // small
			fields[top] = decodeValue(v)
		}
	}
	if c.Key != nil {
		return cut(c.Key(fields))
	}

	var value any = fields
	for name := range strings.SplitSeq(c.Fields[0], ".") {
		m, _ := value.(map[string]any)
		value = m[name]
	}
	switch v := value.(type) {
	case string:
		return cut(v)
	case float64: // one account may be 1000000 in Node, and 1e6 in Python
		return strconv.FormatFloat(v, 'f', -1, 64)
	case int64, bool:
		return fmt.Sprint(v)
	}
	return ""
}

// maxSlots bounds the slots of one key, which are in one document.
const maxSlots = 1000

// limitKeys lets the locks of a take slots, if o has a Concurrency.
func (a *Analyses) limitKeys(d *Database, o Options) {
	if o.Concurrency == nil {
		return
	}
	name := func(id string) slog.Attr { return slog.String("key_hash", id) }
	a.Keys = &analysislock.Keys{
		Store: keyStore{&documents[analysislock.Key]{
			db: d, collection: d.client.Collection(KeyCollection(o.Collection)), noun: "key", log: o.Log,
			codec: keyCodec{lockCodec{policy: o.Policy, log: o.Log, name: name}},
		}},
		Limit:  func(key string) int { return min(o.Concurrency.Limit(key), maxSlots) },
		Parked: a.parked,
	}
}

// KeyCollection returns the collection of the records of the keys of a collection.
func KeyCollection(collection string) string { return collection + "Keys" }

// keyStore has one document for each key whose record is Kept.
type keyStore struct{ *documents[analysislock.Key] }

// Swap makes one commit.
func (s keyStore) Swap(ctx context.Context, id string, prev lease.Cell[analysislock.Key], next analysislock.Key,
) (lease.Cell[analysislock.Key], error) {
	return s.replace(ctx, id, prev, next, next.Kept())
}

// keyCodec is the codec of keys.
type keyCodec struct{ lockCodec }

var _ codec[analysislock.Key] = keyCodec{}

func (keyCodec) mask() []string { return nil }

func (c keyCodec) decode(r reading) (k analysislock.Key, rev revision, _ error) {
	k.Value = cut(r.fields["key"])
	k.Waiting, _ = r.fields["waiting"].(bool)
	limit, _ := parseInt(r.fields["limit"])
	k.Limit = int(max(analysislock.Paused, min(limit, math.MaxInt32)))
	slots, _ := r.fields["slots"].(map[string]any)
	for owner, v := range slots {
		fields, _ := v.(map[string]any)
		lock := map[string]any{
			"lockOwner": owner, "lockHeartbeatAt": fields["lockHeartbeatAt"], "lockExpiresAt": fields["lockExpiresAt"],
		}
		l, _ := c.decodeLock(reading{id: r.id, fields: lock, updated: r.updated, at: r.at})
		l.Token = 1 // see analysislock.Slotted
		if k.Slots == nil {
			k.Slots = map[string]analysislock.Slotted{}
		}
		k.Slots[owner] = analysislock.Slotted{Lease: l, Analysis: cut(fields["analysis"])}
	}
	return k, rev, nil
}

// changes writes all slots if one has changed.
func (keyCodec) changes(prev analysislock.Key, next *analysislock.Key, _ *revision, _ time.Time) map[string]any {
	fields := differences(keyFields(prev), keyFields(*next))
	if !maps.Equal(prev.Slots, next.Slots) {
		fields["slots"] = slotsValue(next.Slots)
	}
	if len(fields) > 0 {
		fields["expireAt"] = keyExpiry(next)
	}
	return fields
}

// keyExpiry returns when a TTL policy may delete the record, a day after its last slot has expired: a worker that
// crashes may leave a record that nobody reads again. A record for which somebody waits must stay.
func keyExpiry(k *analysislock.Key) any {
	if k.Waiting || len(k.Slots) == 0 {
		return firestore.Delete
	}
	ends := make([]time.Time, 0, len(k.Slots))
	for _, s := range k.Slots {
		ends = append(ends, s.Lease.ExpiresAt)
	}
	return slices.MaxFunc(ends, time.Time.Compare).Add(24 * time.Hour)
}

func keyFields(k analysislock.Key) map[string]any {
	return map[string]any{"key": orDelete(k.Value), "waiting": orDelete(k.Waiting), "limit": orDelete(k.Limit)}
}

func slotsValue(slots map[string]analysislock.Slotted) map[string]any {
	all := make(map[string]any, len(slots))
	for owner, s := range slots {
		all[owner] = present(map[string]any{
			"analysis":        s.Analysis,
			"lockHeartbeatAt": timeValue(s.Lease.HeartbeatAt), "lockExpiresAt": timeValue(s.Lease.ExpiresAt),
		})
	}
	return all
}

// maxParkedReads is how many documents a search for parked analyses reads at most.
const maxParkedReads = 1000

// maxLeaving is how many finished analyses leave a line at the same time.
const maxLeaving = 32

// leaveLine removes the place of an analysis that a program has finished which does not know keys, if the
// document has not changed since.
func leaveLine(ctx context.Context, snap *firestore.DocumentSnapshot) error {
	_, err := snap.Ref.Update(ctx, []firestore.Update{
		{Path: "parkedFor", Value: firestore.Delete}, {Path: "parkedAt", Value: firestore.Delete},
	}, firestore.LastUpdateTime(snap.UpdateTime))
	return err
}

// parked implements Keys.Parked. It needs only Firestore's own index of parkedFor. Finished analyses leave the
// line, so that they do not hide others.
func (a *Analyses) parked(ctx context.Context, keyID string, limit int) (found []analysislock.Analysis, err error) {
	q := a.documents.collection.Where("parkedFor", ">", keyID+" ").Where("parkedFor", "<", keyID+"!").
		OrderBy("parkedFor", firestore.Asc).Select(a.parkedFields()...)
	var leaving errgroup.Group
	leaving.SetLimit(maxLeaving)
	defer func() { _ = leaving.Wait() }() // the next search meets analyses that have not left
	for read, size := 0, max(limit, 1); len(found) < limit && read < maxParkedReads; size = 100 {
		n := 0
		for snap, err := range eachDocument(ctx, "find parked analyses", q.Limit(size)) {
			if err != nil {
				return found, err
			}
			n++
			q = q.StartAfter(snap)
			d := a.decode(snapshot(snap))
			switch {
			case d.Malformed != nil:
			case d.Finished():
				leaving.Go(func() error { return leaveLine(ctx, snap) })
			case lease.Orphaned(d.Lock, d.ReadAt):
				found = append(found, d)
			}
		}
		if read += n; n < size {
			break
		}
	}
	return found[:min(limit, len(found))], nil
}

// keyWalks is how many walks through the keys Wakeable makes at the same time, one for each first digit of their ids.
const keyWalks = 16

// Wakeable returns the parked analyses for which a slot is free: up to as many of each key as it has free
// slots, those created first. It makes a query for each key with a parked analysis, and a read and perhaps
// another query. After 10 s it returns the ones found so far, and the next call continues.
func (a *Analyses) Wakeable(ctx context.Context) (found []analysislock.Analysis, err error) {
	if a.Keys == nil {
		return nil, nil
	}
	within, cancel := context.WithTimeout(ctx, orphanTimeout)
	defer cancel()
	if first, err := a.firstParked(within, "", "g"); err != nil || first == nil {
		return nil, err
	}

	var mu sync.Mutex
	var all errgroup.Group
	for n := range keyWalks {
		all.Go(func() error {
			next, err := a.walkKeys(within, n)
			mu.Lock()
			defer mu.Unlock()
			found = append(found, next...)
			return err
		})
	}
	if err = all.Wait(); len(found) > 0 {
		err = nil
	}
	slices.SortFunc(found, func(a, b analysislock.Analysis) int { return strings.Compare(a.Place, b.Place) })
	return found, err
}

// walkKeys does Wakeable's work for the keys whose ids begin with the hexadecimal digit n.
func (a *Analyses) walkKeys(ctx context.Context, n int) (found []analysislock.Analysis, err error) {
	after := fmt.Sprintf("%x", n)
	end := after + "g" // after all ids with this digit
	if stopped := a.keysTo[n].Swap(nil); stopped != nil {
		after = *stopped
	}
	for {
		first, err := a.firstParked(ctx, after, end)
		if err == nil && first == nil {
			return found, nil
		}

		var next []analysislock.Analysis
		if err == nil {
			next, err = a.Recover(ctx, first)
		}
		if err != nil {
			a.keysTo[n].Store(&after)
			return found, err
		}
		found = append(found, next...)
		id, _, _ := strings.Cut(first.Place, " ")
		after = id + "!"
	}
}

// firstParked returns the first parked analysis with a place between after and end, or nil.
func (a *Analyses) firstParked(ctx context.Context, after, end string) (*analysislock.Analysis, error) {
	q := a.documents.collection.Where("parkedFor", ">", after).Where("parkedFor", "<", end).
		OrderBy("parkedFor", firestore.Asc).Limit(1).Select(a.parkedFields()...)
	first, err := a.match(ctx, "find keys with parked analyses", q, 1, nil)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	return &first[0], nil
}

// parkedFields lists the fields by which a parked analysis is judged, and its delivery named.
func (a *Analyses) parkedFields() []string {
	return append(append(a.orphanFields(), "createdAt", "parkedFor"), a.codec.keys.Fields...)
}
