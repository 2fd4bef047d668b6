package deploy

import (
	"maps"
	"os"
	"path/filepath"
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
			other: map[string]string{"d.traffic": "d-new,100,,\n"},
		},
		"an application, and no input for the analyzer": {
			verbs: "candidate smoke shift", extra: application, prints: "NOT TESTED: its analyzer, because SMOKE_INPUT is not set",
			files:   map[string]string{"w.image": "registry/app@sha256:10", "self-test": `404 {"reason":"not_configured"}`},
			changes: []string{"update w --no-traffic --tag=candidate --container=app --image=registry/app@sha256:10", workerShift, "tags add registry/app@sha256:10 registry/app:serving-w --quiet"},
			other:   map[string]string{"w.template": "app,,registry/app@sha256:10\nw,8080,registry/w@sha256:0\n"},
		},
		"an application's first image": {
			verbs: "candidate smoke shift", extra: application, prints: "w has no container app yet: nothing is released. Its first image is\nregistry/w@sha256:1",
			files: map[string]string{"w.template": "w,8080,registry/w@sha256:0\n"},
			other: map[string]string{"w.template": "w,8080,registry/w@sha256:0\n", "w.traffic": traffic["w"]},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelease(t, c.extra...)
			for file, text := range c.files {
				r.write(file, text)
			}

			for _, verb := range strings.Fields(c.verbs) {
				if !r.call(verb) {
					t.Errorf("%s fails", verb)
				}
			}

			other := map[string]string{"w.traffic": "w-new,100,,\n"}
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
	if r.bash("-c", `OLD=(3 2 57); eval "$(sed 's/BASH_VERSINFO/OLD/g' release.sh)"`) || !strings.Contains(r.output.String(), "release.sh needs bash 4.4") {
		t.Errorf("with bash 3.2 it prints\n%s", &r.output)
	}
}

// releaseInStages releases images, first for a share. Each thing that a check looks for is wrong
// at one try. It returns the release before each call, and an application's before its smoke test.
func releaseInStages(t *testing.T) map[string]*release {
	t.Helper()
	r := newRelease(t, "SHARE=10", "TRIES=6")
	stages := map[string]*release{"settings": newRelease(t, byHand...), "application": newRelease(t, application...)}
	if !stages["application"].call("candidate") {
		t.Error("an application has no candidate")
	}
	wrong := map[string]string{
		"smoke": "token\nunready " + workerCandidate + "\nopen w\nanalysis\nrecover\nopen d\nsweep\nnothing\n",
		"shift": "unready " + workerHost + "\nnothing\n",
	}
	for _, verb := range []string{"candidate", "smoke", "shift"} {
		stages[verb] = r.continued(t, "SHARE=0", "TRIES=2")
		r.write("wrong", wrong[verb])
		if !r.call(verb) {
			t.Errorf("%s fails", verb)
		}
	}

	r.want("", []string{
		workerUpdate, locksUpdate, workerShare, workerShift, locksShift,
		"tags add registry/w@sha256:1 registry/w:serving-w --quiet", "tags add registry/d@sha256:1 registry/d:serving-w --quiet",
	}, map[string]string{
		"w.traffic": "w-new,100,,\n", "w.template": "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:1\n",
		"d.traffic": "d-new,100,,\n", "d.template": "d,8080,registry/d@sha256:1\n",
	})
	r.wantJudged()
	rest := r.output.String()
	for _, complaint := range []string{
		"no token as caller@p.iam", "/health/ready answers 503, not 200", "/tasks/analysis answers 404, not 401|403", "/tasks/analysis answers 404, not 404 with '\"not_found\"'",
		"/tasks/recover answers 404, not 200", "w works at https://" + workerCandidate, "/internal/sweep answers 200, not 401|403", "/internal/sweep answers 404, not 200",
		"d works at https://candidate", "https://" + workerHost + "/health/ready answers 503", "w works at https://" + workerHost, "d works at https://d-1",
	} {
		_, after, found := strings.Cut(rest, complaint)
		if !found {
			t.Errorf("it does not print %q in its place:\n%s", complaint, &r.output)
		}
		rest = after
	}
	return stages
}

// failure changes files before one of the calls, which then fails.
type failure struct {
	verb, stage string // the stage is that of the verb, or another
	env         string
	files       map[string]string
	changes     []string          // that the call makes
	other       map[string]string // files that are not as before
	prints      string
}

func TestAReleaseThatFailsLeavesTheServicesAsTheyWere(t *testing.T) {
	t.Parallel()
	old, back := []string{workerOld, locksOld}, []string{workerShift, locksShift, workerBack, locksBack, workerOld, locksOld}
	first := []string{workerShift, workerBack, workerOld, locksOld}
	share := []string{workerShare, workerBack, workerOld, locksOld}
	stages := releaseInStages(t)
	for name, f := range map[string]failure{
		"image by tag":               {verb: "candidate", files: map[string]string{"w.image": "registry/w:1"}},
		"nothing to go back to":      {verb: "candidate", files: map[string]string{"w.traffic": ""}, other: map[string]string{"w.traffic": ""}, prints: "none to go back to"},
		"the second does not start":  {verb: "candidate", files: map[string]string{"after-update-d": "exit 1"}, changes: []string{workerUpdate, locksUpdate, workerOld, locksOld}},
		"another build is next":      {verb: "candidate", files: map[string]string{"after-update-w": `echo w,8080,registry/w@sha256:5 >"$FAKE/w.template"; exit 1`}, changes: []string{workerUpdate}, other: map[string]string{"w.template": newer}},
		"it has no self-test":        {verb: "smoke", files: map[string]string{"self-test": `404 {"reason":"no_such_route"}`}, changes: old, prints: "/internal/self-test answers 404"},
		"the analyzer is broken":     {verb: "smoke", stage: "application", files: map[string]string{"self-test": `500 {"reason":"self_test_failed","error":"ok"}`}, changes: []string{"update w --async --no-traffic --container=app --image=registry/app@sha256:9"}, prints: "/internal/self-test answers 500"},
		"another build has the tag":  {verb: "smoke", files: map[string]string{"w.tagged": "w-other,,candidate,https://" + workerCandidate + "\n", "w.template": newer}, changes: []string{locksOld}, other: map[string]string{"w.template": newer}, prints: "the tag candidate is w-other's now"},
		"the settings do not start":  {verb: "settings", files: map[string]string{"wrong": "unready " + workerCandidate}, changes: []string{workerSettings, locksSettings}},
		"the share fails":            {verb: "shift", env: "SHARE=10", files: map[string]string{"errors": `{"metric":{},"value":[1,"0.5"]}`}, changes: share, prints: "fails more often"},
		"no delivery of the share":   {verb: "shift", env: "SHARE=10", files: map[string]string{"deliveries": ""}, changes: share, prints: "w: NOT JUDGED: no delivery of the candidate"},
		"the errors are not known":   {verb: "shift", env: "SHARE=10", files: map[string]string{"fail-errors": ""}, changes: share},
		"cancelled during the share": {verb: "shift", env: "SHARE=10", files: map[string]string{"after-update-traffic-w": cancel}, changes: share},
		"the shift has no effect":    {verb: "shift", files: map[string]string{"ignore-w": ""}, changes: back, prints: "the traffic goes to w-2=10,w-1=80,w-3=10, not to w-new"},
		"not ready after the shift":  {verb: "shift", files: map[string]string{"wrong": "unready " + workerHost}, changes: back},
		"cancelled during the shift": {verb: "shift", files: map[string]string{"before-update-traffic-w": cancel}, changes: first}, // and the call continues
		"the undo has no effect": {verb: "shift", files: map[string]string{"after-update-traffic-w": `: >"$FAKE/ignore-w"; exit 1`}, changes: first,
			other: map[string]string{"w.traffic": "w-new,100,,\n"}, prints: "w: NOT DONE. Do:"},
		"another build has the traffic": {verb: "shift", files: map[string]string{"in-" + workerHost: `echo w-other,100,, >"$FAKE/w.traffic"; echo w,8080,registry/w@sha256:5 >"$FAKE/w.template"; echo "unready $host" >"$FAKE/wrong"`},
			changes: []string{workerShift, locksShift, locksBack, locksOld}, other: map[string]string{"w.traffic": "w-other,100,,\n", "w.template": newer}, prints: "left alone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f.happen(t, stages)
		})
	}

	t.Run("it has printed the commands", func(t *testing.T) {
		t.Parallel()
		shifted := map[string]string{"w.traffic": "w-new,100,,\n"}
		r := failure{verb: "shift", files: map[string]string{"after-update-traffic-w": `: >"$FAKE/fail-update-traffic-w"; exit 1`}, changes: first, other: shifted, prints: "w: NOT DONE. Do:"}.happen(t, stages)
		check(t, os.Remove(filepath.Join(r.dir, "fail-update-traffic-w"))) // it could not undo
		r.runPrinted(": NOT DONE. Do:")
		r.want("w: NOT DONE. Do:", r.changes(), nil)

		maps.Copy(shifted, map[string]string{"w.template": "app,,registry/app@sha256:9\nw,8080,registry/w@sha256:1\n", "d.template": "d,8080,registry/d@sha256:1\n"})
		r = failure{verb: "shift", files: map[string]string{"after-update-traffic-w": "kill -KILL $$"}, changes: []string{workerShift}, other: shifted}.happen(t, stages)
		r.runPrinted("put the image back:", "give the traffic back:")
		r.want("", r.changes(), nil)
	})
}

func (f failure) happen(t *testing.T, stages map[string]*release) *release {
	t.Helper()
	stage := stages[f.verb]
	if f.stage != "" {
		stage = stages[f.stage]
	}
	r := stage.continued(t, f.env)
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
