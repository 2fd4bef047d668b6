package deploy

import (
	"maps"
	"os"
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

	workerSettings = "update w --no-traffic --tag=candidate --image=registry/w@sha256:0" // what serves
	locksSettings  = "update d --no-traffic --tag=candidate --image=registry/d@sha256:0"

	workerBack = "update-traffic w --async --to-revisions=w-2=10,w-1=80,w-3=10"
	locksBack  = "update-traffic d --async --to-revisions=d-1=100"
	workerOld  = "update w --async --no-traffic --image=registry/w@sha256:0"
	locksOld   = "update d --async --no-traffic --image=registry/d@sha256:0"

	workerHost, workerCandidate = "w-1.r.run.app", "candidate---w-hash.a.run.app"

	never  = "99" // unready for more calls than it makes
	cancel = "kill -TERM $$"
	newer  = "w,8080,registry/w@sha256:5\n" // another build's image
)

var (
	application = []string{"APP=deploy/sidecar/app"}
	// byHand leaves the variables of the module's output environment.
	byHand = []string{
		"PROJECT=", "PROJECT_NUMBER=", "REGION=", "WORKER=", "CALLER=",
		"GOOGLE_CLOUD_PROJECT=p", "CLOUDSDK_RUN_REGION=r", "TASK_TARGET_URL=https://" + workerHost, "TASK_CALLER=caller@p.iam",
	}
)

func TestAReleaseGivesTheTrafficToWhatItHasTested(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verbs, prints string
		extra         []string
		files, other  map[string]string
		changes       []string
	}{
		"images, first for a share": {
			verbs: "candidate smoke shift", extra: []string{"SHARE=10"},
			changes: []string{workerUpdate, locksUpdate, workerShare, workerShift, locksShift, "tags add registry/w@sha256:1 registry/w:serving-w --quiet", "tags add registry/d@sha256:1 registry/d:serving-w --quiet"},
			other:   map[string]string{"w.template": "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:1\n", "d.template": "d,8080,registry/d@sha256:1\n"},
		},
		// By hand, of a worker without a self-test, after roll-backs of the application and of the document lock.
		"settings": {
			verbs: "settings", extra: byHand, prints: "NOT TESTED: this worker has no self-test",
			files: map[string]string{
				"self-test": `404 {"reason":"no_such_route"}`, "d.template": "d,8080,registry/d@sha256:7\n", "w.template": "app,,registry/app@sha256:8\nw,8080,registry/w@sha256:0\n",
			},
			changes: []string{
				"update w --no-traffic --tag=candidate --container=w --image=registry/w@sha256:0 --container=app --image=registry/app@sha256:9", locksSettings, workerShift, locksShift,
				"tags add registry/w@sha256:0 registry/w:serving-w --quiet", "tags add registry/d@sha256:0 registry/d:serving-w --quiet",
			},
		},
		"an application, and no input for the analyzer": {
			verbs: "candidate smoke shift", extra: application, prints: "NOT TESTED: its analyzer, because SMOKE_INPUT is not set",
			files:   map[string]string{"w.image": "registry/app@sha256:10", "self-test": `404 {"reason":"not_configured"}`},
			changes: []string{"update w --no-traffic --tag=candidate --container=app --image=registry/app@sha256:10", workerShift, "tags add registry/app@sha256:10 registry/app:serving-w --quiet"},
			other:   map[string]string{"w.template": "app,,registry/app@sha256:10\nw,8080,registry/w@sha256:0\n", "d.traffic": traffic["d"]},
		},
		"an application's first image": {
			verbs: "candidate smoke shift", extra: application, prints: "w has no container app yet: nothing is released. Its first image is\nregistry/w@sha256:1",
			files: map[string]string{"w.template": "w,8080,registry/w@sha256:0\n"},
			other: map[string]string{"w.template": "w,8080,registry/w@sha256:0\n", "w.traffic": traffic["w"], "d.traffic": traffic["d"]},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelease(t, c.extra...)
			r.write("unready-"+workerCandidate, "1")
			r.write("unready-"+workerHost, "2")
			for file, text := range c.files {
				r.write(file, text)
			}

			for _, verb := range strings.Fields(c.verbs) {
				if !r.call(verb) {
					t.Errorf("%s fails", verb)
				}
			}

			other := map[string]string{"w.traffic": "w-new,100,,\n", "d.traffic": "d-new,100,,\n"}
			maps.Copy(other, c.other)
			r.want(c.prints, c.changes, other)
			if len(c.changes) > 0 {
				r.wantJudged()
			}
		})
	}
}

func TestAReleaseNamesTheBashThatItNeeds(t *testing.T) {
	r := newRelease(t)
	if r.bash(`OLD=(3 2 57); eval "$(sed 's/BASH_VERSINFO/OLD/g' release.sh)"`) || !strings.Contains(r.output.String(), "release.sh needs bash 4.4") {
		t.Errorf("with bash 3.2 it prints\n%s", &r.output)
	}
}

// failure changes files before one of the three calls, which then fails.
type failure struct {
	stages  map[string]*release // before each call
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
	share, settings := []string{workerShare, workerBack, workerOld, locksOld}, []string{workerSettings, locksSettings}
	stages := newStages(t)
	ofApplication := newStages(t, application...)
	for name, f := range map[string]failure{
		"image by tag":                   {verb: "candidate", files: map[string]string{"w.image": "registry/w:1"}},
		"nothing to go back to":          {verb: "candidate", files: map[string]string{"w.traffic": ""}, other: map[string]string{"w.traffic": ""}, prints: "none to go back to"},
		"the second is refused":          {verb: "candidate", files: map[string]string{"fail-update-d": ""}, changes: []string{workerUpdate, locksUpdate, workerOld}},
		"it does not start":              {verb: "candidate", files: map[string]string{"after-update-w": "exit 1"}, changes: []string{workerUpdate, workerOld}},
		"another build is next":          {verb: "candidate", files: map[string]string{"after-update-w": `echo w,8080,registry/w@sha256:5 >"$FAKE/w.template"; exit 1`}, changes: []string{workerUpdate}, other: map[string]string{"w.template": newer}},
		"never ready":                    {verb: "smoke", files: map[string]string{"unready-" + workerCandidate: never}, changes: old},
		"another program":                {verb: "smoke", files: map[string]string{"analysis": `404 {"reason":"no_such_route"}`}, changes: old},
		"open to everybody":              {verb: "smoke", files: map[string]string{"open-w": ""}, changes: old},
		"a sweep for everybody":          {verb: "smoke", files: map[string]string{"open-d": ""}, changes: old},
		"no recovery":                    {verb: "smoke", files: map[string]string{"recovery": "503 {}"}, changes: old, prints: "/internal/tasks/recover answers 503"},
		"no token":                       {verb: "smoke", files: map[string]string{"fail-token": ""}, changes: old},
		"the analyzer is broken":         {verb: "smoke", files: map[string]string{"self-test": `500 {"reason":"self_test_failed","error":"ok"}`}, changes: old, prints: "/internal/self-test answers 500"},
		"it has no self-test":            {verb: "smoke", files: map[string]string{"self-test": `404 {"reason":"no_such_route"}`}, changes: old, prints: "/internal/self-test answers 404"},
		"the settings do not start":      {verb: "settings", files: map[string]string{"unready-" + workerCandidate: never}, changes: settings},
		"the settings fail with traffic": {verb: "settings", files: map[string]string{"unready-" + workerHost: never}, changes: slices.Concat(settings, back[:4])},
		"the share fails":                {verb: "shift", env: "SHARE=10", files: map[string]string{"errors": `{"metric":{},"value":[1,"0.5"]}`}, changes: share, prints: "fails more often"},
		"no delivery of the share":       {verb: "shift", env: "SHARE=10", files: map[string]string{"deliveries": ""}, changes: share, prints: "w: NOT JUDGED: no delivery of the candidate"},
		"the errors are not known":       {verb: "shift", env: "SHARE=10", files: map[string]string{"fail-errors": ""}, changes: share},
		"cancelled during the share":     {verb: "shift", env: "SHARE=10", files: map[string]string{"after-update-traffic-w": cancel}, changes: share},
		"a broken application":           {verb: "smoke", stages: ofApplication, files: map[string]string{"self-test": `500 {}`}, changes: []string{"update w --async --no-traffic --container=app --image=registry/app@sha256:9"}},
		"another build has the tag":      {verb: "smoke", files: map[string]string{"w.tagged": "w-other,,candidate,https://" + workerCandidate + "\n", "w.template": newer}, changes: []string{locksOld}, other: map[string]string{"w.template": newer}, prints: "the tag candidate is w-other's now"},
		"the shift has no effect":        {verb: "shift", files: map[string]string{"ignore-w": ""}, changes: back, prints: "the traffic goes to w-2=10,w-1=80,w-3=10, not to w-new"},
		"not ready after the shift":      {verb: "shift", files: map[string]string{"unready-" + workerHost: never}, changes: back},
		"cancelled during the shift":     {verb: "shift", files: map[string]string{"before-update-traffic-w": cancel}, changes: first}, // and the call continues
		"the shift fails but works":      {verb: "shift", files: map[string]string{"after-update-traffic-w": "exit 1"}, changes: first},
		"the shift and its undo fail":    {verb: "shift", files: map[string]string{"fail-update-traffic-w": ""}, changes: first, prints: "w: NOT DONE. Do:"},
		"the shift cannot wait":          {verb: "shift", files: map[string]string{"no-operations": ""}, changes: first},
		"the undo has no effect": {verb: "shift", files: map[string]string{"after-update-traffic-w": `: >"$FAKE/ignore-w"; exit 1`}, changes: first,
			other: map[string]string{"w.traffic": "w-new,100,,\n"}, prints: "w: NOT DONE. Do:"},
		"another build has the traffic": {verb: "shift", files: map[string]string{"in-" + workerHost: `echo w-other,100,, >"$FAKE/w.traffic"; echo w,8080,registry/w@sha256:5 >"$FAKE/w.template"; echo 99 >"$FAKE/unready-$host"`},
			changes: []string{workerShift, locksShift, locksBack, locksOld}, other: map[string]string{"w.traffic": "w-other,100,,\n", "w.template": newer}, prints: "left alone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if f.stages == nil {
				f.stages = stages
			}
			f.happen(t)
		})
	}

	t.Run("it has printed the commands", func(t *testing.T) {
		t.Parallel()
		shifted := map[string]string{"w.traffic": "w-new,100,,\n"}
		r := failure{stages: stages, verb: "shift", files: map[string]string{"after-update-traffic-w": `: >"$FAKE/fail-update-traffic-w"; exit 1`}, changes: first, other: shifted}.happen(t)
		check(t, os.Remove(filepath.Join(r.dir, "fail-update-traffic-w"))) // it could not undo
		r.runPrinted(": NOT DONE. Do:")
		r.want("", r.changes(), nil)

		maps.Copy(shifted, map[string]string{"w.template": "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:1\n", "d.template": "d,8080,registry/d@sha256:1\n"})
		r = failure{stages: stages, verb: "shift", files: map[string]string{"after-update-traffic-w": "kill -KILL $$"}, changes: []string{workerShift}, other: shifted}.happen(t)
		r.runPrinted("put the image back:", "give the traffic back:")
		r.want("", r.changes(), nil)
	})
}

// newStages returns a release before each of the calls.
func newStages(t *testing.T, extra ...string) map[string]*release {
	t.Helper()
	r := newRelease(t, extra...)
	stages := map[string]*release{"settings": r.continued(t, byHand...)}
	for _, verb := range []string{"candidate", "smoke", "shift"} {
		stages[verb] = r.continued(t)
		if verb != "shift" && !r.call(verb) {
			t.Fatalf("%s fails:\n%s", verb, &r.output)
		}
	}
	return stages
}

func (f failure) happen(t *testing.T) *release {
	t.Helper()
	r := f.stages[f.verb].continued(t, f.env)
	r.write("calls", "")
	for file, text := range f.files {
		r.write(file, text)
	}
	if r.call(f.verb) {
		t.Errorf("%s succeeds", f.verb)
	}
	r.want(f.prints, f.changes, f.other)
	return r
}
