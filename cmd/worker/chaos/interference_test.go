package chaos

import (
	"fmt"
	"net/http"
	"reflect"
	"syscall"
	"testing"
	"time"

	fs "cloud.google.com/go/firestore"
)

// interference is what another program does to an analysis while it runs.
var interference = []struct {
	name   string
	fields map[string]any // nil: the document is deleted
}{
	{"owner rewritten", map[string]any{"lockOwner": "other/instance/1", "lockExpiresAt": time.Date(2100, 1, 2, 3, 4, 5, 678901000, time.UTC)}},
	{"token raised", map[string]any{"lockToken": 7}},
	{"taken over", map[string]any{"lockOwner": "other/instance/1", "lockToken": 2, "lockExpiresAt": "2100-01-02T03:04:05.678901Z"}},
	{"unlocked", map[string]any{"lockOwner": fs.Delete, "lockExpiresAt": fs.Delete, "lockHeartbeatAt": fs.Delete, "status": "QUEUED"}},
	{"finished", map[string]any{"status": "READY", "result": "theirs"}},
	{"failed", map[string]any{"status": "FAILED", "error": map[string]any{"code": "theirs", "message": "theirs"}}},
	{"deleted", nil},
}

// interfere does so, and answers the document as it is then.
func (s *stage) interfere(t *testing.T, id string, fields map[string]any) *fs.DocumentSnapshot {
	t.Helper()
	var err error
	if fields == nil {
		_, err = s.doc(id).Delete(t.Context())
	} else {
		_, err = s.doc(id).Set(t.Context(), fields, fs.MergeAll)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s.get(t, id)
}

// unchanged checks that nobody has written since: Firestore counts microseconds.
func (s *stage) unchanged(t *testing.T, about string, before *fs.DocumentSnapshot) {
	t.Helper()
	after := s.get(t, before.Ref.ID)
	if after.Exists() != before.Exists() || !after.UpdateTime.Equal(before.UpdateTime) || !reflect.DeepEqual(after.Data(), before.Data()) {
		t.Errorf("%s: before %v %v, after %v %v", about, before.UpdateTime, before.Data(), after.UpdateTime, after.Data())
	}
}

// interfered is an analysis whose run is under way when another interferes.
type interfered struct {
	id, name string
	answer   <-chan reply
	before   *fs.DocumentSnapshot // as the other left it
	at       time.Time
}

// interferences begins a run of an analysis for each interference, and then
// interferes.
func (s *stage) interferences(t *testing.T, p *process) (all []interfered) {
	t.Helper()
	for i, other := range interference {
		x := interfered{id: fmt.Sprint(i), name: other.name}
		s.create(t, x.id, nil)
		x.answer = p.delivered(t, x.id)
		s.analyzer.running(t, x.id)
		x.at = time.Now()
		x.before = s.interfere(t, x.id, other.fields)
		all = append(all, x)
	}
	return all
}

// The run would go on for an hour; the worker finds out by its next heartbeat.
func TestARunThatLosesItsLockToAnotherIsCancelled(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(r *run) int { return r.works(time.Hour) })
	for _, x := range s.interferences(t, s.start(t)) {
		if got := await(t, "the answer", x.answer); !got.is(http.StatusConflict, `"lock_lost"`) {
			t.Errorf("%s: %s", x.name, got)
		}
		runs := s.analyzer.until(t, x.id, "cancelled", func(runs []run) bool { return !runs[0].ended.IsZero() })
		if len(runs) != 1 || runs[0].answered {
			t.Errorf("%s: runs %+v", x.name, runs)
		}
		t.Logf("%s: cancelled after %v, of a TTL of 4s", x.name, runs[0].ended.Sub(x.at).Round(time.Millisecond))
		s.unchanged(t, x.name, x.before)
	}
}

// No heartbeat comes before the run ends: the write at its end is what must
// see that the lock is another's.
func TestWhatEndsARunWritesNothingOverAnother(t *testing.T) {
	t.Parallel()
	for _, end := range []struct {
		name   string
		status int // of the analyzer
		code   int // of the worker
	}{
		{"result", http.StatusOK, http.StatusConflict},
		{"rejection", http.StatusBadRequest, http.StatusConflict},
		{"failure for now", http.StatusServiceUnavailable, http.StatusInternalServerError},
		{"SIGTERM", stopped, http.StatusInternalServerError},
	} {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			let := make(chan struct{})
			s := newStage(t, func(r *run) int {
				select {
				case <-let:
				case <-r.gone:
				}
				return end.status
			})
			p := s.start(t, "LOCK_TTL=100s", "LOCK_HEARTBEAT=45s")
			all := s.interferences(t, p)
			if end.status == stopped {
				if err := p.signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			} else {
				close(let)
			}
			for _, x := range all {
				if got := await(t, "the answer", x.answer); !got.is(end.code, "") {
					t.Errorf("%s: %s", x.name, got)
				}
				s.unchanged(t, x.name, x.before)
			}
		})
	}
}
