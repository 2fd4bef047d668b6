package docs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	workerUpdate = "update w --image=registry/w@sha256:1 --no-traffic --tag=candidate"
	locksUpdate  = "update d --image=registry/d@sha256:1 --no-traffic --tag=candidate"
	workerShift  = "update-traffic w --to-revisions=w-new=100"
	locksShift   = "update-traffic d --to-revisions=d-new=100"

	workerBack = "update-traffic w --to-revisions=w-2=10,w-1=80,w-3=10"
	locksBack  = "update-traffic d --to-revisions=d-1=100"
	workerOld  = "update w --image=registry/w@sha256:0 --no-traffic"
	locksOld   = "update d --image=registry/d@sha256:0 --no-traffic"

	workerHost, workerCandidate = "w-1.r.run.app", "candidate---w-hash.a.run.app"
	locksHost, locksCandidate   = "d-1.r.run.app", "candidate---d-hash.a.run.app"
)

// deaf is more often than anybody asks.
const deaf = "99"

func TestAReleaseGivesTheTrafficToWhatItHasTried(t *testing.T) {
	t.Run("the worker alone", func(t *testing.T) {
		s := ship(t)
		s.reach("")
		s.wantChanges(workerUpdate, workerShift)
		s.wantState(map[string]string{"w.traffic": "w-new,100,,\n", "w.template": "registry/app@sha256:9\nregistry/w@sha256:1\n"})
	})
	t.Run("both, when they are slow to answer", func(t *testing.T) {
		s := ship(t, "d")
		for _, host := range []string{workerCandidate, locksCandidate, workerHost} {
			s.write("deaf-"+host, "4")
		}
		s.reach("")
		s.wantChanges(workerUpdate, locksUpdate, workerShift, locksShift)
		s.wantState(map[string]string{
			"w.traffic": "w-new,100,,\n", "w.template": "registry/app@sha256:9\nregistry/w@sha256:1\n",
			"d.traffic": "d-new,100,,\n", "d.template": "registry/d@sha256:1\n",
		})
	})
}

// failure is what happens to one of the three calls.
type failure struct {
	verb    string
	files   map[string]string // written before it
	changes []string          // that it made
	other   map[string]string // what is not as before: nothing
	says    string
}

func (f failure) happen(t *testing.T) *shipment {
	t.Helper()
	s := ship(t, "d")
	s.reach(f.verb)
	s.write("calls", "")
	for file, text := range f.files {
		s.write(file, text)
	}
	if s.do(f.verb) {
		t.Errorf("%s succeeds", f.verb)
	}
	if !strings.Contains(s.said.String(), f.says) {
		t.Errorf("it does not say %q", f.says)
	}
	s.wantChanges(f.changes...)
	s.wantState(f.other)
	return s
}

func TestACandidateThatFailsLeavesTheServicesAsTheyWere(t *testing.T) {
	one := []string{workerUpdate, workerOld}
	for name, f := range map[string]failure{
		"no image":                 {files: map[string]string{"w.image": ""}},
		"an image by tag":          {files: map[string]string{"w.image": "registry/w:1"}},
		"the second has no image":  {files: map[string]string{"d.image": ""}, changes: one},
		"nothing to go back to":    {files: map[string]string{"w.traffic": ""}, other: map[string]string{"w.traffic": ""}, says: "none to go back to"},
		"a service not made":       {files: map[string]string{"fail-describe-w": ""}},
		"a revision not readable":  {files: map[string]string{"fail-describe-w-1": ""}},
		"a revision of no image":   {files: map[string]string{"w-1.containers": ""}},
		"it is refused":            {files: map[string]string{"fail-update-w": ""}, changes: []string{workerUpdate}},
		"it does not start":        {files: map[string]string{"after-update-w": "exit 1"}, changes: one},
		"it has no tag":            {files: map[string]string{"after-update-w": `: >"$FAKE/w.tagged"`}, changes: one, says: "w: no revision has the tag candidate"},
		"the second is refused":    {files: map[string]string{"fail-update-d": ""}, changes: []string{workerUpdate, locksUpdate, workerOld}},
		"the build is cancelled":   {files: map[string]string{"before-update-w": `kill -TERM "$(cat "$FAKE/pid")"`}, changes: one},
		"another build comes next": {files: map[string]string{"after-update-w": `echo registry/w@sha256:5 >"$FAKE/w.template"; exit 1`}, changes: []string{workerUpdate}, other: map[string]string{"w.template": "registry/w@sha256:5\n"}},
		"the image is what serves": {files: map[string]string{"w-1.containers": "8080,registry/w@sha256:1\n", "after-update-w": "exit 1"}, changes: []string{workerUpdate}, other: map[string]string{"w.template": "registry/app@sha256:9\nregistry/w@sha256:1\n"}},
	} {
		f.verb = "candidate"
		t.Run(name, func(t *testing.T) { f.happen(t) })
	}
}

func TestACandidateThatDoesNotWorkLeavesTheServicesAsTheyWere(t *testing.T) {
	both := []string{workerOld, locksOld}
	for name, f := range map[string]failure{
		"never ready":            {files: map[string]string{"deaf-" + workerCandidate: deaf}, changes: both},
		"the second never ready": {files: map[string]string{"deaf-" + locksCandidate: deaf}, changes: both},
		"another program":        {files: map[string]string{"reason": "no_such_route"}, changes: both},
		"open to everybody":      {files: map[string]string{"open-w": ""}, changes: both},
		"a sweep for everybody":  {files: map[string]string{"open-d": ""}, changes: both},
		"no recovery":            {files: map[string]string{"recovery": "503"}, changes: both, says: "/internal/tasks/recover answers 503"},
		"no token":               {files: map[string]string{"fail-token": ""}, changes: both},
		"the build is cancelled": {files: map[string]string{"in-" + workerCandidate: `kill -TERM "$(cat "$FAKE/pid")"`}, changes: both},
		"another took the tag": {files: map[string]string{"w.tagged": "w-other,,candidate,https://" + workerCandidate + "\n", "w.template": "registry/w@sha256:5\n"},
			changes: []string{locksOld}, other: map[string]string{"w.template": "registry/w@sha256:5\n"}, says: "the tag candidate is w-other's now"},
	} {
		f.verb = "smoke"
		t.Run(name, func(t *testing.T) { f.happen(t) })
	}
}

func TestAShiftThatFailsIsRolledBack(t *testing.T) {
	back := []string{workerShift, locksShift, workerBack, locksBack, workerOld, locksOld}
	first := []string{workerShift, workerBack, workerOld, locksOld}
	for name, f := range map[string]failure{
		"it has no effect":            {files: map[string]string{"ignore-w": ""}, changes: back, says: "the traffic goes to w-2=10,w-1=80,w-3=10, not to w-new"},
		"the service is not ready":    {files: map[string]string{"deaf-" + workerHost: deaf}, changes: back},
		"the second is not ready":     {files: map[string]string{"deaf-" + locksHost: deaf}, changes: back},
		"no recovery":                 {files: map[string]string{"recovery": "503"}, changes: back},
		"no token":                    {files: map[string]string{"fail-token": ""}, changes: back, says: "no token as caller@p.iam"},
		"the build is cancelled":      {files: map[string]string{"in-" + workerHost: `kill -TERM "$(cat "$FAKE/pid")"`}, changes: back},
		"it is, within the call":      {files: map[string]string{"before-update-traffic-w": `kill -TERM "$(cat "$FAKE/pid")"; sleep 1`}, changes: first}, // and Google goes on
		"it is, and again":            {files: map[string]string{"in-" + workerHost: `kill -TERM "$(cat "$FAKE/pid")"; echo 'kill -TERM "$(cat "$FAKE/pid")"' >"$FAKE/before-update-traffic-w"`}, changes: back},
		"the call fails, but works":   {files: map[string]string{"after-update-traffic-w": "exit 1"}, changes: first},
		"the service is not readable": {files: map[string]string{"after-update-traffic-d": `: >"$FAKE/fail-describe-w"`}, changes: back},
		"nothing to go back to":       {files: map[string]string{"w.traffic": ""}, changes: []string{workerOld, locksOld}, other: map[string]string{"w.traffic": ""}},
		"the second has nothing to":   {files: map[string]string{"d.traffic": ""}, changes: first, other: map[string]string{"d.traffic": ""}, says: "none to go back to"},
		"the tag taken by another":    {files: map[string]string{"d.tagged": "d-other,,candidate,https://" + locksCandidate + "\n"}, changes: []string{workerOld, locksOld}},
		"the call and what undoes it": {files: map[string]string{"fail-update-traffic-w": ""}, changes: first, says: "w: NOT DONE. Do:"},
		"another build has shifted it": {files: map[string]string{"in-" + workerHost: `echo w-other,100,, >"$FAKE/w.traffic"; echo registry/w@sha256:5 >"$FAKE/w.template"; echo 99 >"$FAKE/deaf-$host"`},
			changes: []string{workerShift, locksShift, locksBack, locksOld}, other: map[string]string{"w.traffic": "w-other,100,,\n", "w.template": "registry/w@sha256:5\n"},
			says: "w: the traffic goes to w-other=100 now, which this build has not done: left alone"},
	} {
		f.verb = "shift"
		t.Run(name, func(t *testing.T) { f.happen(t) })
	}
}

func TestWhatCannotBeUndoneIsSaid(t *testing.T) {
	for name, f := range map[string]failure{
		"the traffic": {verb: "shift", files: map[string]string{"after-update-traffic-w": `: >"$FAKE/fail-update-traffic-w"; exit 1`},
			changes: []string{workerShift, workerBack, workerOld, locksOld}, other: map[string]string{"w.traffic": "w-new,100,,\n"}},
		"the template": {verb: "candidate", files: map[string]string{"after-update-w": `: >"$FAKE/fail-update-w"; : >"$FAKE/fail-describe-w"`},
			changes: []string{workerUpdate, workerOld}, other: map[string]string{"w.template": "registry/app@sha256:9\nregistry/w@sha256:1\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := f.happen(t)
			failing, err := filepath.Glob(filepath.Join(s.dir, "fail-*"))
			if err != nil || len(failing) == 0 {
				t.Fatalf("%v, %v", failing, err)
			}
			for _, file := range failing {
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
			}
			s.obey(": NOT DONE. Do:")
			s.wantState(nil)
		})
	}
}

func TestABuildThatIsKilledHasSaidWhatToDo(t *testing.T) {
	const kill = `kill -KILL "$(cat "$FAKE/pid")"`
	for name, f := range map[string]failure{
		"candidate": {files: map[string]string{"after-update-w": kill}, other: map[string]string{"w.template": "registry/app@sha256:9\nregistry/w@sha256:1\n"}, changes: []string{workerUpdate}},
		"shift": {files: map[string]string{"after-update-traffic-w": kill}, changes: []string{workerShift}, other: map[string]string{
			"w.traffic": "w-new,100,,\n", "w.template": "registry/app@sha256:9\nregistry/w@sha256:1\n", "d.template": "registry/d@sha256:1\n",
		}},
	} {
		f.verb = name
		t.Run(name, func(t *testing.T) {
			s := f.happen(t)
			s.obey("put the image back:", "give the traffic back:")
			s.wantState(nil)
		})
	}
}

func TestTheSmokeTestIsOutOfPatienceBeforeTheBuildIsOutOfTime(t *testing.T) {
	s := ship(t)
	s.reach("smoke")
	s.write("deaf-"+workerCandidate, "1") // the second try would do
	s.env = append(s.env, "PATIENCE=0")
	if s.do("smoke") {
		t.Error("it has tried again")
	}
	s.wantState(nil)
}

func TestReleaseKnowsItsThreeCallsAlone(t *testing.T) {
	s := ship(t)
	s.reach("smoke")
	calls := s.changed()
	for _, verb := range []string{"", "shift_traffic", "undo", "candidate2"} {
		if s.do(verb) || !slices.Equal(s.changed(), calls) {
			t.Errorf("release.sh %s did %v", verb, s.changed())
		}
	}
}
