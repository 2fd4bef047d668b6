package repo

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestWhatCannotBeOpenedIsRefused(t *testing.T) {
	for want, open := range map[string]func() error{
		`"a/b" is not the path of a collection`: func() error {
			_, err := Open(t.Context(), "p", Options{Collection: "a/b", Emulator: "localhost:1"})
			return err
		},
		"TTL": func() error {
			_, err := Open(t.Context(), "p", Options{Policy: lease.Policy{TTL: -1}, Emulator: "localhost:1"})
			return err
		},
		"open database (default) of project p": func() error {
			_, err := Open(t.Context(), "p", Options{}, option.WithCredentialsFile("/does/not/exist")) //nolint:staticcheck // refused
			return err
		},
		"open database d of project p": func() error {
			_, err := OpenRooms(t.Context(), "p", RoomOptions{Database: "d"}, option.WithCredentialsFile("/does/not/exist")) //nolint:staticcheck // refused
			return err
		},
		"open database (default) of project :": func() error { _, err := Open(t.Context(), "", Options{Emulator: "localhost:1"}); return err },
	} {
		if err := open(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %s", err, want)
		}
	}
}

// A failure must not look like a list without entries.
func TestAQueryOfAnalysesThatFailsIsNoEmptyAnswer(t *testing.T) {
	for name, list := range map[string]func(ctx context.Context, a *worker) error{
		"List":   func(ctx context.Context, a *worker) error { _, err := a.List(ctx, 1); return err },
		"Newest": func(ctx context.Context, a *worker) error { _, _, err := a.Newest(ctx, 1); return err },
		"InState": func(ctx context.Context, a *worker) error {
			_, err := a.InState(ctx, analysislock.Ready, 1)
			return err
		},
		"Overdue":       func(ctx context.Context, a *worker) error { _, err := a.Overdue(ctx, 1); return err },
		"Unfinished":    func(ctx context.Context, a *worker) error { _, err := a.Unfinished(ctx, 1); return err },
		"UnknownStatus": func(ctx context.Context, a *worker) error { _, err := a.UnknownStatus(ctx, 1); return err },
		"Abandoned": func(ctx context.Context, a *worker) error {
			return a.Abandoned(ctx, 1, func(string, int64, time.Time) {})
		},
	} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			l := &line{}
			a := open(t, b, l.options()...)
			l.befall(map[string][]fault{"RunQuery": {dropped(codes.PermissionDenied)}})
			if err := list(t.Context(), a); !errors.Is(err, lease.ErrUnavailable) {
				t.Errorf("%s: %v, want ErrUnavailable", name, err)
			}
			l.wantAllMet(t)
		})
	}
	for name, ask := range map[string]func(ctx context.Context, a *worker) error{
		"Overdue": func(ctx context.Context, a *worker) error { _, err := a.Overdue(ctx, 1); return err },
		"Newest":  func(ctx context.Context, a *worker) error { _, _, err := a.Newest(ctx, 1); return err },
		"Ping":    func(ctx context.Context, a *worker) error { return a.Ping(ctx) },
		"Create":  func(ctx context.Context, a *worker) error { return a.Create(ctx, "x", 1) },
	} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			l := &line{}
			a := open(t, b, l.options()...)
			l.befall(map[string][]fault{read: {dropped(codes.PermissionDenied)}})
			if err := ask(t.Context(), a); !errors.Is(err, lease.ErrUnavailable) {
				t.Errorf("%s without the time: %v, want ErrUnavailable", name, err)
			}
			l.wantAllMet(t)
		})
	}
}
