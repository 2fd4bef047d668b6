package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/documentlock"
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
	for name, list := range map[string]func(ctx context.Context, a *Analyses) error{
		"List":   func(ctx context.Context, a *Analyses) error { _, err := a.List(ctx, 1); return err },
		"Newest": func(ctx context.Context, a *Analyses) error { _, _, err := a.Newest(ctx, 1); return err },
		"InState": func(ctx context.Context, a *Analyses) error {
			_, err := a.InState(ctx, analysislock.Ready, 1)
			return err
		},
		"Overdue":       func(ctx context.Context, a *Analyses) error { _, err := a.Overdue(ctx, 1); return err },
		"Unfinished":    func(ctx context.Context, a *Analyses) error { _, err := a.Unfinished(ctx, 1); return err },
		"UnknownStatus": func(ctx context.Context, a *Analyses) error { _, err := a.UnknownStatus(ctx, 1); return err },
		"Abandoned": func(ctx context.Context, a *Analyses) error {
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
	for name, ask := range map[string]func(ctx context.Context, a *Analyses) error{
		"Overdue": func(ctx context.Context, a *Analyses) error { _, err := a.Overdue(ctx, 1); return err },
		"Newest":  func(ctx context.Context, a *Analyses) error { _, _, err := a.Newest(ctx, 1); return err },
		"Ping":    func(ctx context.Context, a *Analyses) error { return a.Ping(ctx) },
		"Create":  func(ctx context.Context, a *Analyses) error { return a.Create(ctx, "x", 1) },
		"Peek":    func(ctx context.Context, a *Analyses) error { _, err := a.PeekAnalysisLock(ctx, "x"); return err },
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

// Exactly as many as are named need no line that there are more.
func TestAsManyAsTheWarningsAreAllNamed(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		a, err := Open(t.Context(), b.Project, Options{Log: logger}, b.Client(t)...)
		if err != nil {
			t.Fatal(err)
		}
		r := openRooms(t, b)
		r.documents.log = logger
		for i := range maxWarnings {
			b.Put(t, fmt.Sprint("x", i), map[string]any{"status": analysislock.Queued, "updatedAt": timeValue(time.Now().Add(-time.Hour)), "lockToken": "?"})
			r.put(t, fmt.Sprint("bad\x01", i), map[string]any{"lockExpiresAt": "1999-01-01T00:00:00.000Z"})
		}
		abandoned(t, a, 100)
		if n := strings.Count(log.String(), "\n"); n != maxWarnings {
			t.Errorf("%d lines of analyses, want %d:\n%s", n, maxWarnings, log.String())
		}
		log.Reset()
		if _, err := r.Lapsed(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "\n"); n != maxWarnings {
			t.Errorf("%d lines of rooms, want %d:\n%s", n, maxWarnings, log.String())
		}
	})
}

func TestRoomsAreDatedByTheQueryThatReadThem(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		l := &line{}
		r := openRooms(t, b, l.options()...)
		r.put(t, "a", map[string]any{"lockOwner": "s/1"})
		l.befall(map[string][]fault{"RunQuery": {slowRequest}})
		began := time.Now()
		if s, err := r.Current(t.Context()); err != nil || s.At.Before(began.Add(delay)) {
			t.Errorf("at %v, %v; want after %v", s.At, err, began.Add(delay))
		}
	})
}

func TestARoomWhoseTokenIsReplacedIsAWarning(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		var log bytes.Buffer
		r, err := OpenRooms(t.Context(), b.Project, RoomOptions{Log: slog.New(slog.NewTextHandler(&log, nil))}, b.Client(t)...)
		if err != nil {
			t.Fatal(err)
		}
		others := openRooms(t, b)
		for token, want := range map[any]string{int64(7): "", "secret": `room_hash=` + documentlock.Hash("a") + ` field=lockToken type="a string"`} {
			log.Reset()
			others.put(t, "a", map[string]any{"lockToken": token})
			if _, err := r.Load(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if got := log.String(); (got == "") != (want == "") || !strings.Contains(got, want) || strings.Contains(got, "secret") {
				t.Errorf("%v: log %q, want %q", token, got, want)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Another's creation that comes first is another's, however alike it is.
func TestACreationThatIsOvertakenIsAConflict(t *testing.T) {
	for name, theirs := range map[string]func(at time.Time) map[string]any{
		"another input": func(at time.Time) map[string]any { return map[string]any{"createdAt": timeValue(at), "input": "b"} },
		"another time": func(at time.Time) map[string]any {
			return map[string]any{"createdAt": timeValue(at.Add(time.Second)), "input": "a"}
		},
		"malformed": func(at time.Time) map[string]any {
			return map[string]any{"createdAt": timeValue(at), "input": "a", "lockToken": "?"}
		},
	} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			l := &line{}
			a := open(t, b, l.options()...)
			at := time.Now()
			l.befall(map[string][]fault{commit: {overtaken(func() { b.Put(t, "x", theirs(at)) })}})
			if err := a.Create(t.Context(), "x", "a"); !errors.Is(err, ErrExists) {
				t.Errorf("%s: %v, want ErrExists", name, err)
			}
			l.befall(map[string][]fault{commit: {dropped(codes.InvalidArgument)}})
			if err := a.Create(t.Context(), "y", "a"); !errors.Is(err, lease.ErrRefused) {
				t.Errorf("refused: %v, want ErrRefused", err)
			}
			l.wantAllMet(t)
		})
	}
}
