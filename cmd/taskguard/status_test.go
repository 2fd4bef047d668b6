package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
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

func TestAnIDThatIsRefusedHidesNoHolder(t *testing.T) {
	env := store(t)
	put(t, env, "a\x01", map[string]any{"status": "PROCESSING", "updatedAt": time.Now(), "lockOwner": "js/1", "lockExpiresAt": time.Now().Add(30 * time.Minute)})
	for _, args := range [][]string{{"status"}, {"status", "--unfinished"}} {
		taskguard(t, env, args...).want(t, exitDone, `a\x01  PROCESSING`, "held by js/1, ")
	}
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

// What is worked on was updated last, so it would be missing from a list of what
// is overdue; and reading changes nothing.
func TestStatusUnfinishedListsByAgeWhatIsNotDoneAndWhoHoldsIt(t *testing.T) {
	env := store(t)
	locked(t, analyses(t, env), "a-held")
	put(t, env, "b-done", map[string]any{"status": "READY", "updatedAt": "2020-01-01T00:00:00.000Z"})
	put(t, env, "c-dead", map[string]any{
		"status": "PROCESSING", "updatedAt": "2020-01-02T00:00:00.000Z", "lockOwner": "w/0", "lockToken": 3, "lockExpiresAt": "2020-01-02T00:05:00.000Z",
		"input": "secret", "result": "secret", "lastError": map[string]any{"code": "flaky", "message": "m"},
	})
	put(t, env, "d-old", map[string]any{"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z"})
	before := taskguard(t, env, "status").want(t, exitDone).out
	o := taskguard(t, env, "status", "--unfinished").want(t, exitDone)
	rows := strings.Split(strings.TrimSpace(o.out), "\n")
	for i, want := range []string{"ID ", "d-old ", "c-dead ", "a-held "} {
		if len(rows) != 4 || !strings.HasPrefix(rows[i], want) {
			t.Fatalf("want d-old, c-dead, a-held:\n%s", o.out)
		}
	}
	for i, want := range map[int]string{1: "free", 2: "left by w/0, expired at 2020-01-02T00:05:00.000Z  last: flaky", 3: "held by w/1, "} {
		if !strings.Contains(rows[i], want) {
			t.Errorf("%q lacks %q", rows[i], want)
		}
	}
	if after := taskguard(t, env, "status").want(t, exitDone).out; o.err != "" || columns(after, 4) != columns(before, 4) {
		t.Errorf("it wrote %q, or changed something:\n%s%s", o.err, before, after)
	}
	lines := strings.Split(strings.TrimSpace(taskguard(t, env, "status", "--unfinished", "--json").want(t, exitDone).out), "\n")
	wantKeys(t, lines[1], "id", "status", "attempts", "updated_at", "lock", "last_error")
	if all := taskguard(t, env, "status", "--json").want(t, exitDone).out; !strings.Contains(all, lines[1]+"\n") {
		t.Errorf("%s is another line in the list of all:\n%s", lines[1], all)
	}
}

// columns are the first n words of each line: what follows tells the time left.
func columns(table string, n int) string {
	var all []string
	for line := range strings.Lines(table) {
		words := strings.Fields(line)
		all = append(all, strings.Join(words[:min(n, len(words))], " "))
	}
	return strings.Join(all, "\n")
}

func TestAListSaysThatThereIsMoreOnlyWhereThereIs(t *testing.T) {
	env := store(t)
	for i := range 101 {
		put(t, env, fmt.Sprintf("a%03d", i), map[string]any{"status": "QUEUED", "updatedAt": time.Unix(int64(i), 0)})
	}
	for args, rows := range map[string]int{"status": 100, "status --unfinished": 100, "status --unfinished --limit 7": 7} {
		o := taskguard(t, env, strings.Fields(args)...).want(t, exitDone)
		if want := fmt.Sprintf("taskguard status: the first %d; --limit shows more\n", rows); o.err != want || strings.Count(o.out, "\n") != rows+1 {
			t.Errorf("%s: %d lines and %q, want %d and %q", args, strings.Count(o.out, "\n"), o.err, rows+1, want)
		}
	}
	for _, args := range []string{"status --limit 101", "status --unfinished --limit 101", fmt.Sprint("status --limit ", math.MaxInt)} {
		if o := taskguard(t, env, strings.Fields(args)...).want(t, exitDone, "a100"); o.err != "" || strings.Count(o.out, "\n") != 102 {
			t.Errorf("%s: %d lines and %q, want 102 and nothing", args, strings.Count(o.out, "\n"), o.err)
		}
	}
}

func TestStatusUnfinishedTakesNoID(t *testing.T) {
	for _, args := range [][]string{{"status", "--unfinished", "x"}, {"status", "x", "--unfinished"}} {
		o := taskguard(t, vars{}, args...).want(t, exitUsage, "taskguard status: an ID and --unfinished exclude each other (see: taskguard help status)")
		if o.out != "" || strings.Count(o.err, "\n") != 1 {
			t.Errorf("%q: want one line on standard error alone\nstdout: %s\nstderr: %s", args, o.out, o.err)
		}
	}
}
