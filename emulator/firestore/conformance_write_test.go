package firestore_test

import (
	"errors"
	"testing"
	"time"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"taskguard/internal/testing/must"
)

func wantData(t *testing.T, snap *client.DocumentSnapshot, want object) {
	t.Helper()
	var got object
	if snap.Exists() {
		got = snap.Data()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("document differs (-want +got):\n%s", diff)
	}
}

var readCases = []conformanceCase{
	{"GetOfAMissingDocumentHasAReadTime", func(t *testing.T, r *rig) {
		snap, err := r.doc(nil).Get(r.ctx)
		wantCode(t, err, codes.NotFound)
		if snap.ReadTime.IsZero() {
			t.Error("no read time")
		}
	}},
	{"ReadTimeIsNotBeforeTheWriteItShows", func(t *testing.T, r *rig) {
		ref := r.doc(nil)
		for range 20 {
			wrote := must.Get(ref.Set(r.ctx, object{"t": client.ServerTimestamp}))(t)
			snap := r.get(ref)
			if !snap.UpdateTime.Equal(wrote.UpdateTime) || snap.ReadTime.Before(snap.UpdateTime) {
				t.Fatalf("written %v, update time %v, read time %v", wrote.UpdateTime, snap.UpdateTime, snap.ReadTime)
			}
			if !snap.ReadTime.Equal(snap.ReadTime.Truncate(time.Microsecond)) {
				t.Fatalf("read time %v is finer than a microsecond", snap.ReadTime)
			}
		}
	}},
	{"UpdateTimesGrowAndCreateTimeStays", func(t *testing.T, r *rig) {
		ref := r.doc(object{"n": 0})
		first := r.get(ref)
		last := first.UpdateTime
		for n := range 20 {
			r.ok(ref.Set(r.ctx, object{"n": n + 1}))
			snap := r.get(ref)
			if !snap.UpdateTime.After(last) || !snap.CreateTime.Equal(first.CreateTime) {
				t.Fatalf("update time %v after %v, create time %v", snap.UpdateTime, last, snap.CreateTime)
			}
			last = snap.UpdateTime
		}
		r.ok(ref.Delete(r.ctx))
		r.ok(ref.Create(r.ctx, object{"n": 1}))
		if again := r.get(ref); !again.CreateTime.After(last) {
			t.Errorf("created again at %v, before its deletion", again.CreateTime)
		}
	}},
	{"BatchGetAnswersEveryDocumentOnce", func(t *testing.T, r *rig) {
		found, missing := r.doc(object{"n": 1}), r.doc(nil)
		snaps := must.Get(r.client.GetAll(r.ctx, []*client.DocumentRef{missing, found, missing}))(t)
		for i, want := range []bool{false, true, false} {
			if got := snaps[i].Exists(); got != want {
				t.Errorf("%d exists: %v, want %v", i, got, want)
			}
		}
		answers := must.Get(r.read(nil, found, found))(t)
		if len(answers) != 1 {
			t.Errorf("%d answers for one name asked twice, want 1", len(answers))
		}
	}},
	{"MaskLimitsWhatIsRead", func(t *testing.T, r *rig) {
		ref := r.doc(object{"a": 1, "b": object{"c": 2, "d": 3}})
		got := must.Get(r.readName(ref.Path, "b.c", "zz"))(t)[0].GetFound().GetFields()
		want := fields{"b": mapValue(fields{"c": integerValue(2)})}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("fields (-want +got):\n%s", diff)
		}
	}},
}

var writeCases = []conformanceCase{
	{"CommitAcceptsOnlyTheCurrentUpdateTime", func(t *testing.T, r *rig) {
		ref := r.doc(object{"n": 1})
		before := r.get(ref)
		r.ok(ref.Set(r.ctx, object{"n": 2}))
		update := []client.Update{{Path: "n", Value: 3}}
		_, err := ref.Update(r.ctx, update, client.LastUpdateTime(before.UpdateTime))
		wantCode(t, err, codes.FailedPrecondition)
		_, err = ref.Delete(r.ctx, client.LastUpdateTime(before.UpdateTime))
		wantCode(t, err, codes.FailedPrecondition)
		wantData(t, r.get(ref), object{"n": int64(2)})
		r.ok(ref.Update(r.ctx, update, client.LastUpdateTime(r.get(ref).UpdateTime)))
		r.ok(ref.Delete(r.ctx, client.LastUpdateTime(r.get(ref).UpdateTime)))
		wantData(t, r.get(ref), nil)
	}},
	{"UpdateTimeOnAMissingDocumentFailsAndOfTheFutureIsInvalid", func(t *testing.T, r *rig) {
		update := []client.Update{{Path: "n", Value: 3}}
		future := time.Now().Add(time.Hour).Truncate(time.Microsecond)
		_, err := r.doc(nil).Update(r.ctx, update, client.LastUpdateTime(future))
		wantCode(t, err, codes.FailedPrecondition)
		_, err = r.doc(object{"n": 1}).Update(r.ctx, update, client.LastUpdateTime(future))
		wantCode(t, err, codes.InvalidArgument)
	}},
	{"DeleteOfAMissingDocumentSucceedsUnlessItMustExist", func(t *testing.T, r *rig) {
		ref := r.doc(nil)
		r.ok(ref.Delete(r.ctx))
		_, err := ref.Delete(r.ctx, client.Exists)
		wantCode(t, err, codes.NotFound)
	}},
	{"CommitAppliesAllWritesOrNone", func(t *testing.T, r *rig) {
		first, second, none := r.doc(nil), r.doc(object{"n": 1}), r.doc(nil)
		err := r.atOnce(func(tx *client.Transaction) error {
			return errors.Join(
				tx.Set(first, object{"n": 1}), tx.Delete(second),
				tx.Update(none, []client.Update{{Path: "n", Value: 1}}))
		})
		wantCode(t, err, codes.NotFound)
		wantData(t, r.get(first), nil)
		wantData(t, r.get(second), object{"n": int64(1)})
	}},
	{"WritesOfOneCommitShareItsTimeAndSeeEachOther", func(t *testing.T, r *rig) {
		ref, other := r.doc(nil), r.doc(nil)
		err := r.atOnce(func(tx *client.Transaction) error {
			return errors.Join(
				tx.Create(ref, object{"a": 1}), tx.Update(ref, []client.Update{{Path: "b", Value: 2}}),
				tx.Set(other, object{"c": 3}))
		})
		wantCode(t, err, codes.OK)
		if a, b := r.get(ref).UpdateTime, r.get(other).UpdateTime; !a.Equal(b) {
			t.Errorf("one document at %v, the other at %v", a, b)
		}
		wantData(t, r.get(ref), object{"a": int64(1), "b": int64(2)})
	}},
	{"UpdateChangesOnlyTheNamedPaths", func(t *testing.T, r *rig) {
		ref := r.doc(object{"a": object{"b": 1, "c": 2}, "d": 3, "e": object{"f": 1}, "odd.name `x`": object{"g": 1}})
		r.ok(ref.Update(r.ctx, []client.Update{
			{Path: "a.b", Value: client.Delete}, {Path: "a.x", Value: 9}, {Path: "d.deep", Value: 4},
			{Path: "none.at.all", Value: client.Delete}, {FieldPath: client.FieldPath{"odd.name `x`", "in"}, Value: 5},
		}))
		wantData(t, r.get(ref), object{
			"a": object{"c": int64(2), "x": int64(9)}, "d": object{"deep": int64(4)},
			"e": object{"f": int64(1)}, "odd.name `x`": object{"g": int64(1), "in": int64(5)},
		})
	}},
	{"SetReplacesAndMergeAllMerges", func(t *testing.T, r *rig) {
		ref := r.doc(object{"a": 1, "b": object{"c": 2}})
		r.ok(ref.Set(r.ctx, object{"b": object{"d": 3}}, client.MergeAll))
		wantData(t, r.get(ref), object{"a": int64(1), "b": object{"c": int64(2), "d": int64(3)}})
		r.ok(ref.Set(r.ctx, object{"z": 1}))
		wantData(t, r.get(ref), object{"z": int64(1)})
	}},
	{"MaskedUpdateCreatesAMissingDocument", func(t *testing.T, r *rig) {
		ref := r.doc(nil)
		w := putFields(ref.Path, fields{"a": integerValue(1), "b": integerValue(2)})
		w.UpdateMask = &firestorepb.DocumentMask{FieldPaths: []string{"a"}}
		answer := must.Get(r.commit(nil, w))(t)
		if got, want := answer.CommitTime.AsTime(), answer.WriteResults[0].UpdateTime.AsTime(); !got.Equal(want) {
			t.Errorf("committed at %v, updated at %v", got, want)
		}
		wantData(t, r.get(ref), object{"a": int64(1)})
	}},
}

var noOpCases = []conformanceCase{
	{"WriteThatChangesNothingKeepsTheUpdateTime", func(t *testing.T, r *rig) {
		ref := r.doc(object{"n": 1, "a": []any{1}})
		before := r.get(ref).UpdateTime
		r.ok(ref.Set(r.ctx, object{"n": 1, "a": []any{1}}))
		r.ok(ref.Update(r.ctx, []client.Update{{Path: "n", Value: 1}}))
		r.ok(ref.Update(r.ctx, []client.Update{{Path: "none", Value: client.Delete}}))
		result := must.Get(ref.Update(r.ctx, []client.Update{{Path: "n", Value: client.Increment(0)}}))(t)
		if after := r.get(ref).UpdateTime; !after.Equal(before) || !result.UpdateTime.Equal(before) {
			t.Errorf("update time %v, reported %v, want %v", after, result.UpdateTime, before)
		}
		r.ok(ref.Update(r.ctx, []client.Update{{Path: "n", Value: 1.0}}))
		if after := r.get(ref).UpdateTime; !after.After(before) {
			t.Errorf("a change of the type alone leaves the update time %v", after)
		}
	}},
	{"CommitThatRestoresTheDocumentKeepsTheUpdateTime", func(t *testing.T, r *rig) {
		ref := r.doc(object{"n": 1})
		before := r.get(ref).UpdateTime
		answer := must.Get(r.commit(nil, put(ref, 2), put(ref, 1)))(t)
		for _, result := range answer.WriteResults {
			if !result.UpdateTime.AsTime().Equal(before) {
				t.Errorf("reported %v, want %v", result.UpdateTime.AsTime(), before)
			}
		}
	}},
}
