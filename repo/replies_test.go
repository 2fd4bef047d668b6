package repo

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// The change is not made a second time, although it is of what was seen, and the next worker has
// finished the analysis.
func TestAnOperatorsLostReplyUndoesNothing(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Internal} { // the client sends the commit again, or does not
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": analysislock.Failed, "attempts": 10, "lockToken": 10})
			other := open(t, b)
			var since map[string]any
			a, conn := openFaulty(t, b)
			conn.inject(map[string][]fault{commit: {func(ctx context.Context, do func() error) error {
				err := lost(code)(ctx, do)
				mustAcquire(t, other, "x", "w/2")
				check(t, other.holds["w/2"].Complete(t.Context(), "second"))
				since = b.Fields(t, "x")
				return err
			}}})
			before, err := a.Requeue(t.Context(), "x", &analysislock.Seen{Status: analysislock.Failed, Grant: lease.Grant{Token: 10}}, false, "")
			if err != nil || before.Status != analysislock.Failed {
				t.Errorf("%v: %+v, %v; want the analysis as it was", code, before, err)
			}
			same(t, since, b.Fields(t, "x"))
		})
	}
}

// The client sends a creation again, and then finds the analysis that it has created.
func TestACreationWhoseReplyIsLostHasCreatedTheAnalysis(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a, conn := openFaulty(t, b)
		conn.inject(map[string][]fault{commit: {lost(codes.Unavailable)}})
		if err := a.Create(t.Context(), "x", "input"); !errors.Is(err, ErrExists) {
			t.Errorf("%v, want ErrExists", err)
		}
		if d, err := a.Get(t.Context(), "x"); err != nil || d.Input != "input" {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// large returns a result of so many values that only one such result is encoded at a time.
func large() []any { return make([]any, largeResult+1) }

func TestAfterALargeResultTheNextIsEncoded(t *testing.T) {
	for kind, pessimistic := range map[string]bool{commit: false, exclusiveCommit: true} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				a, l := openFaulty(t, b)
				a.documents.pessimistic = pessimistic
				for i, id := range []string{"x", "y", "z"} {
					b.Put(t, id, map[string]any{"status": analysislock.Queued})
					mustAcquire(t, a, id, "w/1")
					l.inject(map[string][]fault{kind: {dropped(codes.Aborted)}}) // its second try is encoded too
					began := time.Now()
					if err := a.holds["w/1"].Complete(t.Context(), large()); err != nil || time.Since(began) > 4*time.Second {
						t.Fatalf("result %d: %v after %v", i, err, time.Since(began))
					}
					l.wantAllInjected(t)
				}
				if !a.documents.db.encoders.TryAcquire(1) {
					t.Error("the semaphore was not released")
				}
			})
		})
	}
}

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
			return nil, status.Error([]codes.Code{codes.Unavailable, codes.DeadlineExceeded}[tries%2], "")
		}))
		if _, err := a.Get(t.Context(), "x"); !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		if tries != 6 { // at 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s
			t.Errorf("%d tries in %v, want 6", tries, callTimeout)
		}
	})
}
