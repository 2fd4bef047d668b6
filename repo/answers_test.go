package repo

import (
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
)

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
