package main

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/lease"
	"taskguard/lease/iso8601"
	"taskguard/worker/console"
)

func TestWhatFirestoreRefusesIsToldApartFromSilence(t *testing.T) {
	for code, want := range map[codes.Code]bool{
		codes.PermissionDenied: true, codes.Unauthenticated: true, codes.FailedPrecondition: true,
		codes.Unavailable: false, codes.DeadlineExceeded: false,
	} {
		err := refusal(fmt.Errorf("repo: %w: %w", lease.ErrUnavailable, status.Error(code, "words of a document")))
		var r *console.Refusal
		if got := errors.As(err, &r); got != want || !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("%v: %v is a refusal: %v", code, err, got)
		}
	}
	if err := refusal(nil); err != nil {
		t.Error(err)
	}
}

func TestTheConsoleIsToldOfWhatIsStuck(t *testing.T) {
	env := store(t)
	a := analyses(t, env)
	put(t, env, "stuck", map[string]any{
		"status": "PROCESSING", "attempts": 2, "updatedAt": iso8601.Format(time.Now().Add(-time.Hour)), "createdAt": iso8601.Format(time.Now().Add(-2 * time.Hour)),
		"lockOwner": "w/1", "lockToken": 2, "lockExpiresAt": iso8601.Format(time.Now().Add(-time.Hour)),
		"input": "secret", "lastError": map[string]any{"code": "flaky", "message": "m"},
	})
	put(t, env, "malformed", map[string]any{"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z", "lockToken": "7"})
	put(t, env, "new", map[string]any{"status": "QUEUED", "updatedAt": iso8601.Format(time.Now())})
	put(t, env, "done", map[string]any{"status": "READY", "updatedAt": "2020-01-01T00:00:00.000Z"})
	found, err := watched{&client{analyses: a}}.Overdue(t.Context(), 10)
	if err != nil || len(found) != 2 || found[0].ID != "malformed" || found[1].ID != "stuck" {
		t.Fatalf("%+v, %v", found, err)
	}
	if s := found[1]; found[0].Malformed == "" || s.Lock.Owner != "w/1" || s.Attempts != 2 || s.LastError == nil || s.Created.IsZero() || s.Malformed != "" {
		t.Errorf("%+v", found)
	}
	if found, err = (watched{&client{analyses: a}}).Overdue(t.Context(), 1); err != nil || len(found) != 1 || found[0].ID != "malformed" {
		t.Errorf("%+v, %v; want the oldest", found, err)
	}
}

// It is asked of the TTL that the workers have.
func TestTheConsolesTTLIsChecked(t *testing.T) {
	env := store(t)
	env["LOCK_TTL"] = "300"
	taskguard(t, env, "console").want(t, exitUsage, `LOCK_TTL: "300" is not a positive duration`)
}
