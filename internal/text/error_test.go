package text_test

import (
	"errors"
	"fmt"
	"testing"

	"taskguard/internal/text"
	"taskguard/lease"
	"taskguard/orchestrator"
)

func TestError_Package(t *testing.T) {
	declined := &orchestrator.PermanentError{Code: "declined", Message: "no worker: none"}
	for want, err := range map[string]error{
		"declined: no worker: none":          declined,
		"the analyzer panicked: oh":          &orchestrator.PanicError{Value: "oh"},
		"exit status 1":                      &orchestrator.FailureError{Reason: "exit status 1"},
		"the act is done":                    errors.New("worker: the act is done"),
		"the lock is lost":                   fmt.Errorf("worker: %w", errors.New("lease: the lock is lost")),
		"my worker: it is down":              errors.New("my worker: it is down"),
		"unknown: stopped":                   errors.New("orchestrator: unknown: worker: stopped"),
		"workers: all busy":                  errors.New("workers: all busy"),
		`act "a": declined: no worker: none`: fmt.Errorf("worker: act %q: %w", "a", declined),
	} {
		if got := text.Error(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestError_Implied(t *testing.T) {
	err := fmt.Errorf("repo: %w", lease.CheckKey("room", "a/b", 10))
	if got := text.Error(err, lease.ErrInvalidKey); got != "the room id has a slash" {
		t.Errorf("%q", got)
	}
}
