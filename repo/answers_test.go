package repo

import (
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// answers is a read that gets these messages.
type answers struct {
	grpc.ClientStream
	messages []frame
}

func (*answers) SendMsg(any) error { return nil }
func (*answers) CloseSend() error  { return nil }

func (s *answers) RecvMsg(m any) error {
	if len(s.messages) == 0 {
		return io.EOF
	}
	*m.(*frame), s.messages = s.messages[0], s.messages[1:]
	return nil
}

func TestAnAnswerThatFirestoreDoesNotGiveIsAnError(t *testing.T) {
	whole, err := proto.Marshal(&firestorepb.BatchGetDocumentsResponse{Result: &firestorepb.BatchGetDocumentsResponse_Missing{Missing: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		messages []frame
		ok       bool
	}{
		"one": {[]frame{whole}, true}, "none": {nil, false}, "two": {[]frame{whole, whole}, false}, "an empty one": {[]frame{{}}, false}, "garbage": {[]frame{{0xff}}, false},
		"garbage after a result": {[]frame{append(whole[:len(whole):len(whole)], 0xff)}, false},
	} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			a := open(t, b, grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				if path.Base(method) == read {
					return &answers{messages: c.messages}, nil
				}
				return open(ctx, desc, cc, method, opts...)
			}))
			used := false
			db := a.documents.db
			err := db.request(t.Context(), time.Second, a.documents.collection.Doc("x"), nil).receive(t.Context(), func(reading) error { used = true; return nil })
			if (err == nil) != c.ok || used != c.ok {
				t.Errorf("%s: %v, used %v", name, err, used)
			}
		})
	}
}

func TestALargeDocumentThatWaitsForItsTurnInVainIsAnError(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": strings.Repeat("x", largeAnswer)})
		if !a.documents.db.decoders.TryAcquire(1) {
			t.Fatal("the turn is taken")
		}
		if d, err := a.Get(t.Context(), "x"); !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("%+v, %v; want ErrUnavailable", d, err)
		}
		a.documents.db.decoders.Release(1)
		for range 2 { // it is given back
			if d, err := a.Get(t.Context(), "x"); err != nil || d.Status != analysislock.Queued {
				t.Errorf("%+v, %v", d, err)
			}
		}
	})
}

func TestAbandonedOfWhichTheSecondQueryFailsIsAnError(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		l := &line{}
		a := open(t, b, l.options()...)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(time.Now().Add(-time.Hour))})
		l.befall(map[string][]fault{"RunQuery": {nil, dropped(codes.PermissionDenied)}})
		if err := a.Abandoned(t.Context(), 10, func(string, int64, time.Time) { t.Error("each was called") }); !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		l.wantAllMet(t)
	})
}

// No more is written than has changed.
func TestAChangeWritesWhatDiffersAndTheUpdate(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	for name, c := range map[string]struct {
		prev    analysislock.Analysis
		replace bool
		change  func(d *analysislock.Analysis)
		want    map[string]any
	}{
		"nothing":                             {change: func(*analysislock.Analysis) {}},
		"nothing, of an unusable token":       {prev: analysislock.Analysis{Stored: stored{tokenAssumed: true}, Lock: lease.Lease{Token: 7}}, change: func(*analysislock.Analysis) {}},
		"nothing, of a token to be replaced":  {prev: analysislock.Analysis{Stored: stored{tokenAssumed: true}, Lock: lease.Lease{Token: 7}}, replace: true, change: func(*analysislock.Analysis) {}, want: map[string]any{"lockToken": int64(7), "updatedAt": timeValue(now)}},
		"the status":                          {prev: analysislock.Analysis{Lock: lease.Lease{Token: 7}}, change: func(d *analysislock.Analysis) { d.Status = analysislock.Queued }, want: map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(now)}},
		"the status, no token to be replaced": {prev: analysislock.Analysis{Lock: lease.Lease{Token: 7}}, replace: true, change: func(d *analysislock.Analysis) { d.Status = analysislock.Queued }, want: map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(now)}},
		"the status, of an unusable token":    {prev: analysislock.Analysis{Stored: stored{tokenAssumed: true}, Lock: lease.Lease{Token: 7}}, change: func(d *analysislock.Analysis) { d.Status = analysislock.Queued }, want: map[string]any{"status": analysislock.Queued, "lockToken": int64(7), "updatedAt": timeValue(now)}},
		"the status, beside a Timestamp":      {prev: analysislock.Analysis{Stored: stored{updatedAsTimestamp: true}}, change: func(d *analysislock.Analysis) { d.Status = analysislock.Queued }, want: map[string]any{"status": analysislock.Queued, "updatedAt": now}},
		"the end of a lock":                   {prev: analysislock.Analysis{Lock: lease.Lease{Owner: "w/1"}}, change: func(d *analysislock.Analysis) { d.Lock.Owner = "" }, want: map[string]any{"lockOwner": firestore.Delete, "lockHeartbeatAt": firestore.Delete, "lockExpiresAt": firestore.Delete, "updatedAt": timeValue(now)}},
		"an error":                            {change: func(d *analysislock.Analysis) { d.LastError = &analysislock.Error{Code: "c", Message: "m"} }, want: map[string]any{"lastError": map[string]any{"code": "c", "message": "m"}, "updatedAt": timeValue(now)}},
		"failed":                              {change: func(d *analysislock.Analysis) { d.Status = analysislock.Failed }, want: map[string]any{"status": analysislock.Failed, "result": firestore.Delete, "error": firestore.Delete, "lastError": firestore.Delete, "lockHeartbeatAt": firestore.Delete, "lockExpiresAt": firestore.Delete, "updatedAt": timeValue(now)}},
		"ready":                               {change: func(d *analysislock.Analysis) { d.Status, d.Result = analysislock.Ready, "r" }, want: map[string]any{"status": analysislock.Ready, "result": "r", "error": firestore.Delete, "lastError": firestore.Delete, "lockHeartbeatAt": firestore.Delete, "lockExpiresAt": firestore.Delete, "updatedAt": timeValue(now)}},
	} {
		next := c.prev
		c.change(&next)
		var got map[string]any
		for _, u := range (analysisCodec{replaceToken: c.replace}).changes(c.prev, &next, now) {
			if got == nil {
				got = map[string]any{}
			}
			got[u.Path] = u.Value
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Firestore routes by headers, and a read that fails is not repeated at once.
func TestAReadNamesItsDatabaseAndPausesBetweenTries(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		tries := 0
		a := open(t, b, grpc.WithChainStreamInterceptor(func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ grpc.Streamer, _ ...grpc.CallOption) (grpc.ClientStream, error) {
			tries++
			sent, _ := metadata.FromOutgoingContext(ctx)
			name := "projects/" + b.Project + "/databases/(default)"
			routing := "database_id=%28default%29&project_id=" + b.Project
			if got := sent["google-cloud-resource-prefix"]; !slices.Equal(got, []string{name}) {
				t.Errorf("resource %q, want %s", got, name)
			}
			if got := sent["x-goog-request-params"]; !slices.Equal(got, []string{routing}) {
				t.Errorf("parameters %q, want %s", got, routing)
			}
			return nil, status.Error(codes.Unavailable, "")
		}))
		if _, err := a.Get(t.Context(), "x"); !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		if tries != 6 { // at 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s
			t.Errorf("%d tries in %v, want 6", tries, callTimeout)
		}
	})
}
