package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"taskguard/emulator/emulatortest"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// put writes a document as some other program may.
func put(t *testing.T, env vars, id string, fields map[string]any) {
	t.Helper()
	conn, err := grpc.NewClient(env[firestoreEmulator], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	client, err := firestore.NewClient(t.Context(), env["GOOGLE_CLOUD_PROJECT"], option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close() //nolint:errcheck // what was written was answered
	if _, err := client.Collection("analyses").Doc(id).Set(t.Context(), fields); err != nil {
		t.Fatal(err)
	}
}

const nasty = "a\n\x1b[2J\u202e\u200b\u009b"

func TestWhatDocumentsSayReachesTheTerminalEscaped(t *testing.T) {
	env := store(t)
	id := "i\u202e\u200b"
	put(t, env, id, map[string]any{
		"status": nasty, "lockOwner": nasty, "lockToken": 1, "lockExpiresAt": time.Now().Add(30 * time.Minute), "finishedBy": nasty,
		"error": map[string]any{"code": nasty, "message": nasty}, "input": nasty, "result": map[string]any{nasty: nasty},
	})
	for _, args := range [][]string{{"status"}, {"status", id}, {"requeue", id}, {"unlock", id}} {
		o := taskguard(t, env, args...)
		text := o.out + o.err
		if strings.ContainsAny(text, "\x1b\u202e\u200b\u009b") || !strings.Contains(text, `\x1b[2J\u202e\u200b`) {
			t.Errorf("%q wrote %q", args, text)
		}
	}
	var one map[string]any
	if err := json.Unmarshal([]byte(taskguard(t, env, "status", id, "--json").want(t, exitDone).out), &one); err != nil || one["status"] != nasty || one["input"] != nasty {
		t.Errorf("%v, %v, want JSON to hold what the document does", one, err)
	}
}

func TestAMalformedDocumentIsListedAsOne(t *testing.T) {
	env := store(t)
	put(t, env, "bad", map[string]any{"status": "QUEUED", "lockToken": "7"})
	put(t, env, "fine", map[string]any{"status": "QUEUED"})
	o := taskguard(t, env, "status").want(t, exitDone, "malformed: lockToken is a string, not a usable integer")
	if strings.Count(o.out, "malformed") != 1 || strings.Count(o.out, "free") != 1 {
		t.Errorf("want one malformed and one free:\n%s", o.out)
	}
	lines := strings.Split(strings.TrimSpace(taskguard(t, env, "status", "--json").want(t, exitDone).out), "\n")
	if got := wantKeys(t, lines[0], "id", "status", "attempts", "lock", "malformed"); got["malformed"] != "lockToken is a string, not a usable integer" {
		t.Errorf("malformed: %v", got["malformed"])
	}
	taskguard(t, env, "status", "bad").want(t, exitFailed, "lockToken is a string")
}

func TestALocksTimeIsSaidInAFewDigits(t *testing.T) {
	at := time.Date(2099, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, l := range map[string]lockInfo{
		"held by w, 12.3 s left":                         {Held: true, left: 12345 * time.Millisecond},
		"held by w, 59m1s left":                          {Held: true, left: 59*time.Minute + 1200*time.Millisecond},
		"held by w until 2099-01-02T03:04:05.000Z":       {Held: true, left: 1<<63 - 1},
		"left by w, expired 0.5 s ago":                   {left: -500 * time.Millisecond},
		"left by w, expired 2m0s ago":                    {left: -2 * time.Minute},
		"left by w, expired at 2099-01-02T03:04:05.000Z": {left: -2 * time.Hour},
	} {
		l.Owner, l.ExpiresAt = "w", at
		if got := l.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAChangeIsToldOnceToPeople(t *testing.T) {
	env := store(t)
	a := analyses(t, env)
	locked(t, a, "x")
	o := taskguard(t, env, "unlock", "x").want(t, exitDone)
	if want := "x is QUEUED; no delivery is booked, as TASK_QUEUE is not set\n"; o.out != want {
		t.Errorf("stdout %q, want %q", o.out, want)
	}
	if strings.Count(o.err, "\n") != 1 || !strings.Contains(o.err, "lock_owner=w/1") || strings.Contains(o.err, "TASK_QUEUE") {
		t.Errorf("stderr %q, want the log line alone", o.err)
	}
}

// deaf is a Writer that nothing reaches.
type deaf struct{}

func (deaf) Write([]byte) (int, error) { return 0, errors.New("nobody listens") }

func TestOutputThatDoesNotArriveExits1(t *testing.T) {
	env := store(t)
	for _, args := range [][]string{{"help"}, {"status"}, {"status", "-h"}} {
		var errs emulatortest.Log
		code := run(t.Context(), args, streams{strings.NewReader(""), deaf{}, &errs}, env.lookup)
		if code != exitFailed || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), "nobody listens") {
			t.Errorf("%q: exit %d, want %d; %s", args, code, exitFailed, errs.String())
		}
	}
}

func TestWhyAnUnfinishedAnalysisHasNoResultIsShown(t *testing.T) {
	env := store(t)
	last := map[string]any{"code": "analyzer_failed" + nasty, "message": "no memory" + nasty}
	put(t, env, "a", map[string]any{"status": "QUEUED", "lastError": last})
	put(t, env, "b", map[string]any{"status": "FAILED", "lastError": last, "error": map[string]any{"code": "final", "message": "over"}})
	list := taskguard(t, env, "status").want(t, exitDone, `last: analyzer_faileda\n`, "final")
	one := taskguard(t, env, "status", "a").want(t, exitDone, `last error  analyzer_faileda\n`, ": no memorya\n            \\x1b[2J")
	other := taskguard(t, env, "status", "b").want(t, exitDone, "error     final: over\n")
	if strings.Count(list.out, "analyzer_failed") != 1 || strings.Contains(other.out, "analyzer_failed") || strings.ContainsAny(list.out+one.out, "\x1b\u202e") {
		t.Errorf("want the last error escaped, and only of what is unfinished:\n%q\n%q\n%q", list.out, one.out, other.out)
	}
	lines := strings.Split(strings.TrimSpace(taskguard(t, env, "status", "--json").want(t, exitDone).out), "\n")
	got := wantKeys(t, lines[0], "id", "status", "attempts", "lock", "last_error")
	if e, _ := got["last_error"].(map[string]any); e["code"] != last["code"] || e["message"] != last["message"] {
		t.Errorf("%v, want %v", got["last_error"], last)
	}
	wantKeys(t, lines[1], "id", "status", "attempts", "lock", "error")
}
