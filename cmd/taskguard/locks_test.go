package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"regexp"
	"strings"
	"testing"

	"taskguard/emulator/emulatortest"
)

// visitor is somebody with a session at local's document lock.
type visitor struct {
	t    *testing.T
	page string
	http *http.Client
}

func newVisitor(t *testing.T, progress *emulatortest.Log) visitor {
	t.Helper()
	found := regexp.MustCompile(`the document lock, to be tried in two tabs: (http://\S+/)`).FindStringSubmatch(progress.String())
	if found == nil {
		t.Fatalf("no page in\n%s", progress)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return visitor{t, found[1], &http.Client{Jar: jar, Transport: transport}}
}

// ask makes a request and checks that it is answered 200.
func (v visitor) ask(method, path string) (body string) {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), method, v.page+path, http.NoBody)
	if err != nil {
		v.t.Fatal(err)
	}
	resp, err := v.http.Do(r)
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		v.t.Fatalf("%s %s: %d %s, %v", method, path, resp.StatusCode, data, err)
	}
	return string(data)
}

func TestLocalServesTheDocumentLocksPage(t *testing.T) {
	_, progress := localCloud(t, vars{})
	if page := newVisitor(t, progress).ask(http.MethodGet, ""); !strings.Contains(page, "<html") {
		t.Errorf("the page is %s", page)
	}
}

const roomPath = "api/documents/a%20room/lock"

func TestUnlockOfARoomTakesItsLock(t *testing.T) {
	env, progress := localCloud(t, vars{})
	v := newVisitor(t, progress)
	var lock struct {
		Token  int64
		Holder string
	}
	if err := json.Unmarshal([]byte(v.ask(http.MethodPost, roomPath)), &lock); err != nil {
		t.Fatal(err)
	}
	o := taskguard(t, env, "unlock", "--room", "a room", "--json").
		want(t, exitDone, "command=unlock", "room_hash=", "by=", "lock_holder="+lock.Holder, "level=WARN")
	got := wantKeys(t, o.out, "room", "unlocked", "lock_was")
	was, err := json.Marshal(got["lock_was"])
	if err != nil {
		t.Fatal(err)
	}
	held := wantKeys(t, string(was), "holder", "token", "locked_at", "expires_at")
	if got["room"] != "a room" || got["unlocked"] != true || held["holder"] != lock.Holder || held["token"] != float64(lock.Token) {
		t.Errorf("%s, want the lock of %+v", o.out, lock)
	}
	if strings.Contains(o.err, "a room") {
		t.Errorf("the log names the room: %s", o.err)
	}
	if state := v.ask(http.MethodGet, roomPath); !strings.Contains(state, `"is_locked":false`) {
		t.Errorf("after it: %s", state)
	}
	taskguard(t, env, "unlock", "--room", "a room").want(t, exitDone, "room a room is free: nobody held it", "nothing is changed")
	v.ask(http.MethodPost, roomPath)
	taskguard(t, env, "unlock", "--room", "a room").want(t, exitDone, "room a room is unlocked")
}

func TestUnlockOfARoomRefusesWhatNoRoomCanBe(t *testing.T) {
	env := store(t)
	for _, room := range []string{"a/b", "..", "__x__", strings.Repeat("x", 513)} {
		taskguard(t, env, "unlock", "--room", room).want(t, exitUsage, "taskguard unlock: --room: the room id ")
	}
	taskguard(t, env, "unlock", "--room", "a", "b").want(t, exitUsage, "an ID and --room exclude each other")
	taskguard(t, env, "unlock", "--room", "").want(t, exitUsage, "missing argument: want ID")
	env = without(env)
	env["DOCUMENT_LOCKS_COLLECTION"] = "a/b"
	taskguard(t, env, "unlock", "--room", "a").want(t, exitUsage, "DOCUMENT_LOCKS_COLLECTION: ")
}
