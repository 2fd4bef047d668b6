package operate

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/console"
	"taskguard/internal/testing/emulatortest"
	"taskguard/repo"
	"taskguard/worker"
)

func TestARefusedReadIsARefusalOfTheConsole(t *testing.T) {
	denied := status.Error(codes.PermissionDenied, "denied")
	a, err := repo.Open(t.Context(), "p", repo.Options{}, emulatortest.Embedded(t).Client(t,
		grpc.WithChainStreamInterceptor(func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
			return nil, denied
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })

	s, ctx := consoleSource{&Client{Operator: &worker.Operator{Analyses: a}}}, t.Context()
	for name, read := range map[string]func() error{
		"Page":              func() error { _, err := s.Page(ctx, repo.Filter{}, "", 1); return err },
		"Active":            func() error { _, err := s.Active(ctx, 1); return err },
		"Count":             func() error { _, err := s.Count(ctx, nil); return err },
		"Oldest":            func() error { _, err := s.Oldest(ctx); return err },
		"Failures":          func() error { _, err := s.Failures(ctx, 1); return err },
		"Get":               func() error { _, err := s.Get(ctx, "a", false); return err },
		"Get with contents": func() error { _, err := s.Get(ctx, "a", true); return err },
	} {
		var refused *console.Refusal
		if err := read(); !errors.As(err, &refused) || !errors.Is(err, denied) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}
