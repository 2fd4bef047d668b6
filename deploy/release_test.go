package deploy

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	workerUpdate = "update w --no-traffic --tag=candidate --image=registry/w@sha256:1"
	locksUpdate  = "update d --no-traffic --tag=candidate --image=registry/d@sha256:1"
	workerShare  = "update-traffic w --to-revisions=w-new=10,w-1=90"
	workerShift  = "update-traffic w --to-revisions=w-new=100"
	locksShift   = "update-traffic d --to-revisions=d-new=100"

	workerBack = "update-traffic w --async --to-revisions=w-1=80,w-2=10,w-3=10"
	locksBack  = "update-traffic d --async --to-revisions=d-1=100"
	workerOld  = "update w --async --no-traffic --image=registry/w@sha256:0"
	locksOld   = "update d --async --no-traffic --image=registry/d@sha256:0"

	workerHost, workerCandidate = "w-1.r.run.app", "candidate---w-hash.a.run.app"

	never  = "99" // unready for more calls than it makes
	cancel = `kill -TERM "$(cat "$FAKE/pid")"`
	kill   = `kill -KILL "$(cat "$FAKE/pid")"`
	newer  = "w,8080,registry/w@sha256:5\n" // another build's image
)

func TestAReleaseGivesTheTrafficToWhatItHasTested(t *testing.T) {
	t.Parallel()
	const settings, worker, locks = "settings", "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:1\n", "d,8080,registry/d@sha256:1\n"
	all := []string{workerUpdate, locksUpdate, workerShift, locksShift}
	for name, c := range map[string]struct {
		verb, env, prints string
		files, other      map[string]string
		changes           []string
	}{
		"images": {changes: all, other: map[string]string{"w.template": worker, "d.template": locks}},
		"no input for the analyzer": {files: map[string]string{"self-test": `404 {"reason":"not_configured"}`}, changes: all,
			other: map[string]string{"w.template": worker, "d.template": locks}, prints: "NOT TESTED"},
		"a share, then all": {env: "SHARE=10", changes: slices.Insert(slices.Clone(all), 2, workerShare),
			other: map[string]string{"w.template": worker, "d.template": locks}},
		"the settings of the template": {verb: settings, files: map[string]string{"d.template": "d,8080,registry/d@sha256:7\n"}, changes: []string{
			strings.Replace(workerUpdate, ":1", ":0", 1), strings.Replace(locksUpdate, ":1", ":0", 1), workerShift, locksShift,
		}},
		"settings, with the application that serves": {verb: settings, files: map[string]string{"w.template": "app,,registry/app@sha256:8\nw,8080,registry/w@sha256:0\n"}, changes: []string{
			"update w --no-traffic --tag=candidate --container=w --image=registry/w@sha256:0 --container=app --image=registry/app@sha256:9", strings.Replace(locksUpdate, ":1", ":0", 1), workerShift, locksShift,
		}},
		"the settings of a worker without a self-test": {verb: settings, files: map[string]string{"self-test": `404 {"reason":"no_such_route"}`}, changes: []string{
			strings.Replace(workerUpdate, ":1", ":0", 1), strings.Replace(locksUpdate, ":1", ":0", 1), workerShift, locksShift,
		}, prints: "NOT TESTED: this worker has no self-test"},
		"an application's first image": {env: "APP=deploy/sidecar/app", files: map[string]string{"w.template": "w,8080,registry/w@sha256:0\n"},
			other:  map[string]string{"w.template": "w,8080,registry/w@sha256:0\n", "w.traffic": traffic["w"], "d.traffic": traffic["d"]},
			prints: "w has no container app yet: nothing is released. Its first image is\nregistry/w@sha256:1"},
		"an application": {env: "APP=deploy/sidecar/app", files: map[string]string{"w.image": "registry/app@sha256:10"},
			changes: []string{"update w --no-traffic --tag=candidate --container=app --image=registry/app@sha256:10", workerShift},
			other:   map[string]string{"w.template": "app,,registry/app@sha256:10\nw,8080,registry/w@sha256:0\n", "d.traffic": traffic["d"]}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRelease(t, "d")
			s.env = append(s.env, c.env)
			for _, host := range []string{workerCandidate, workerHost} {
				s.write("unready-"+host, "4")
			}
			for file, text := range c.files {
				s.write(file, text)
			}

			if s.prepare(c.verb); c.verb == settings {
				if s.byHand(filepath.Join(s.dir, "build", "state")); !s.call(c.verb) {
					t.Errorf("%s fails", c.verb)
				}
			}

			if !strings.Contains(s.output.String(), c.prints) {
				t.Errorf("it does not print %q", c.prints)
			}
			s.wantChanges(c.changes...)
			other := map[string]string{"w.traffic": "w-new,100,,\n", "d.traffic": "d-new,100,,\n"}
			maps.Copy(other, c.other)
			s.wantState(other)
			if len(c.changes) > 0 {
				s.wantOneSelfTestBeforeTraffic()
			}
		})
	}
}

func TestAReleaseNamesTheBashThatItNeeds(t *testing.T) {
	s := newRelease(t)
	if s.bash(`OLD=(3 2 57); eval "$(sed 's/BASH_VERSINFO/OLD/g' release.sh)"`) || !strings.Contains(s.output.String(), "release.sh needs bash 4.4") {
		t.Errorf("with bash 3.2 it prints\n%s", &s.output)
	}
}

// failure changes files before one of the three calls, which then fails.
type failure struct {
	verb    string
	env     string
	files   map[string]string
	changes []string          // that the call makes
	other   map[string]string // files that are not as before
	prints  string
}

func TestAReleaseThatFailsLeavesTheServicesAsTheyWere(t *testing.T) {
	t.Parallel()
	old, back := []string{workerOld, locksOld}, []string{workerShift, locksShift, workerBack, locksBack, workerOld, locksOld}
	first := []string{workerShift, workerBack, workerOld, locksOld}
	share, settings := []string{workerShare, workerBack, workerOld, locksOld}, []string{strings.Replace(workerUpdate, ":1", ":0", 1), strings.Replace(locksUpdate, ":1", ":0", 1)}
	for name, f := range map[string]failure{
		"image by tag":                   {verb: "candidate", files: map[string]string{"w.image": "registry/w:1"}},
		"nothing to go back to":          {verb: "candidate", files: map[string]string{"w.traffic": ""}, other: map[string]string{"w.traffic": ""}, prints: "none to go back to"},
		"the second is refused":          {verb: "candidate", files: map[string]string{"fail-update-d": ""}, changes: []string{workerUpdate, locksUpdate, workerOld}},
		"it does not start":              {verb: "candidate", files: map[string]string{"after-update-w": "exit 1"}, changes: []string{workerUpdate, workerOld}},
		"cancelled as candidate":         {verb: "candidate", files: map[string]string{"before-update-w": cancel}, changes: []string{workerUpdate, workerOld}},
		"another build is next":          {verb: "candidate", files: map[string]string{"after-update-w": `echo w,8080,registry/w@sha256:5 >"$FAKE/w.template"; exit 1`}, changes: []string{workerUpdate}, other: map[string]string{"w.template": newer}},
		"never ready":                    {verb: "smoke", files: map[string]string{"unready-" + workerCandidate: never}, changes: old},
		"another program":                {verb: "smoke", files: map[string]string{"reason": "no_such_route"}, changes: old},
		"open to everybody":              {verb: "smoke", files: map[string]string{"open-w": ""}, changes: old},
		"a sweep for everybody":          {verb: "smoke", files: map[string]string{"open-d": ""}, changes: old},
		"no recovery":                    {verb: "smoke", files: map[string]string{"recovery": "503"}, changes: old, prints: "/internal/tasks/recover answers 503"},
		"no token":                       {verb: "smoke", files: map[string]string{"fail-token": ""}, changes: old},
		"the analyzer is broken":         {verb: "smoke", files: map[string]string{"self-test": `500 {"reason":"self_test_failed","error":"ok"}`}, changes: old, prints: "/internal/self-test answers 500"},
		"it has no self-test":            {verb: "smoke", files: map[string]string{"self-test": `404 {"reason":"no_such_route"}`}, changes: old, prints: "/internal/self-test answers 404"},
		"the settings do not start":      {verb: "settings", files: map[string]string{"unready-" + workerCandidate: never}, changes: settings},
		"the settings fail with traffic": {verb: "settings", files: map[string]string{"unready-" + workerHost: never}, changes: slices.Concat(settings, back[:4])},
		"the share fails":                {verb: "shift", env: "SHARE=10", files: map[string]string{"errors": `{"status":"success","data":{"result":[{"metric":{},"value":[1,"0.5"]}]}}`}, changes: share, prints: "fails more often"},
		"no delivery of the share":       {verb: "shift", env: "SHARE=10", files: map[string]string{"deliveries": `{"status":"success","data":{"resultType":"vector","result":[]}}`}, changes: share, prints: "w: NOT JUDGED: no delivery of the candidate"},
		"the errors are not known":       {verb: "shift", env: "SHARE=10", files: map[string]string{"fail-errors": ""}, changes: share},
		"cancelled during the share":     {verb: "shift", env: "SHARE=10", files: map[string]string{"after-update-traffic-w": cancel}, changes: share},
		"a broken application":           {verb: "smoke", env: "APP=deploy/sidecar/app", files: map[string]string{"self-test": `500 {}`}, changes: []string{"update w --async --no-traffic --container=app --image=registry/app@sha256:9"}},
		"another build has the tag":      {verb: "smoke", files: map[string]string{"w.tagged": "w-other,,candidate,https://" + workerCandidate + "\n", "w.template": newer}, changes: []string{locksOld}, other: map[string]string{"w.template": newer}, prints: "the tag candidate is w-other's now"},
		"the shift has no effect":        {verb: "shift", files: map[string]string{"ignore-w": ""}, changes: back, prints: "the traffic goes to w-1=80,w-2=10,w-3=10, not to w-new"},
		"not ready after the shift":      {verb: "shift", files: map[string]string{"unready-" + workerHost: never}, changes: back},
		"cancelled during the shift":     {verb: "shift", files: map[string]string{"before-update-traffic-w": cancel + "; sleep 1"}, changes: first}, // and the call continues
		"the shift fails but works":      {verb: "shift", files: map[string]string{"after-update-traffic-w": "exit 1"}, changes: first},
		"the shift and its undo fail":    {verb: "shift", files: map[string]string{"fail-update-traffic-w": ""}, changes: first, prints: "w: NOT DONE. Do:"},
		"the deployment cannot wait":     {verb: "candidate", files: map[string]string{"no-operations": ""}, changes: []string{workerUpdate, workerOld}},
		"the shift cannot wait":          {verb: "shift", files: map[string]string{"no-operations": ""}, changes: first},
		"the undo has no effect": {verb: "shift", files: map[string]string{"after-update-traffic-w": `: >"$FAKE/ignore-w"; exit 1`}, changes: first,
			other: map[string]string{"w.traffic": "w-new,100,,\n"}, prints: "w: NOT DONE. Do:"},
		"another build has the traffic": {verb: "shift", files: map[string]string{"in-" + workerHost: `echo w-other,100,, >"$FAKE/w.traffic"; echo w,8080,registry/w@sha256:5 >"$FAKE/w.template"; echo 99 >"$FAKE/unready-$host"`},
			changes: []string{workerShift, locksShift, locksBack, locksOld}, other: map[string]string{"w.traffic": "w-other,100,,\n", "w.template": newer}, prints: "left alone"},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); f.happen(t) })
	}
}

func (f failure) happen(t *testing.T) *release {
	t.Helper()
	s := newRelease(t, "d")
	if s.env = append(s.env, f.env); f.verb == "settings" {
		s.byHand("")
	}
	if strings.HasPrefix(f.env, "APP=") {
		s.write("w.image", "registry/app@sha256:10")
	}
	s.prepare(f.verb)
	s.write("calls", "")
	for file, text := range f.files {
		s.write(file, text)
	}
	if s.call(f.verb) {
		t.Errorf("%s succeeds", f.verb)
	}
	if !strings.Contains(s.output.String(), f.prints) {
		t.Errorf("it does not print %q", f.prints)
	}
	s.wantChanges(f.changes...)
	s.wantState(f.other)
	return s
}

func TestAReleaseThatCannotUndoOrIsKilledHasPrintedTheCommands(t *testing.T) {
	s := failure{verb: "shift", files: map[string]string{"after-update-traffic-w": `: >"$FAKE/fail-update-traffic-w"; exit 1`},
		changes: []string{workerShift, workerBack, workerOld, locksOld}, other: map[string]string{"w.traffic": "w-new,100,,\n"}}.happen(t)
	s.bash(`rm "$FAKE/fail-update-traffic-w"`)
	s.runPrinted(": NOT DONE. Do:")
	s.wantState(nil)

	s = failure{verb: "shift", files: map[string]string{"after-update-traffic-w": kill}, changes: []string{workerShift}, other: map[string]string{
		"w.traffic": "w-new,100,,\n", "w.template": "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:1\n", "d.template": "d,8080,registry/d@sha256:1\n",
	}}.happen(t)
	s.runPrinted("put the image back:", "give the traffic back:")
	s.wantState(nil)
}
