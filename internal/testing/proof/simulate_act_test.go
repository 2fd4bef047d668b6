package proof

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// actFigures are expected: without them the seeds prove nothing about acts.
var actFigures = []figure{
	leasetest.CrashBefore.At("charge"), leasetest.CrashAfter.At("charge"), leasetest.Pause.At("charge"),
	leasetest.ReplyLost.At("charge"), leasetest.Refuse.At("charge"), leasetest.RequestLost.At("find charge"),
	"charges of a superseded run", "charges refused by their key", "acts found", "acts missing",
	"answered done", "answered not done", "second charges after an answer",
}

// act is how an analysis charges.
type act struct{ charges, keys, finds bool }

func (w *simulation) actOf(id string) act {
	r := w.seed.of("act", id)
	return act{w.analyzer == nil && !w.p.single && w.p.killers == 0 && r.chance(0.5), r.chance(0.5), r.chance(0.4)}
}

// judgeRecord records what a write does to the act's record, and checks what does not need the act's
// other steps.
func (m *model) judgeRecord(r *record, next analysis, p *caller) {
	before, existed := r.acts["charge"]
	if next.Acts != nil {
		r.acts = next.Acts
	}
	after, exists := r.acts["charge"]
	switch {
	case next.OpenActs != len(r.acts.Open()):
		m.fail("%s: %s left openEffects %d for %v", r.doc.ID, p, next.OpenActs, r.acts)
	case p.operates == Resolve && *p.seen != analysislock.Seen{Status: r.doc.Status, Grant: r.doc.Lock.Grant()}:
		m.fail("%s: %s answered an act of %s, and saw %+v", r.doc.ID, p, m.show(r.doc), p.seen)
	case p.operates != Resolve && p.operates != "" &&
		before.State == analysislock.ActStarted && !reflect.DeepEqual(before, after):
		m.fail("%s: %s dropped an uncertain act", r.doc.ID, p)
	case next.Status == analysislock.Ready && len(r.charges) > 0 && len(r.acts.Open()) > 0:
		m.fail("%s: %s left an act open that has been done", r.doc.ID, p)
	}
	if existed == exists && reflect.DeepEqual(before, after) {
		return
	}

	step := actStep{At: time.Now(), State: actRemoved}
	if p.operates == "" {
		step.Writer = p.token
	}
	if exists {
		step.State, step.Token = after.State, after.Token
		_ = json.Unmarshal(after.Result, &step.Receipt) // a marker has none
	}
	r.actSteps = append(r.actSteps, step)
	m.note("%s: act %+v", p, step)
}

// charging is one attempt to charge.
type charging struct {
	*simulation
	by    *caller
	job   orchestrator.Job
	how   act
	r     *draws
	pause time.Duration // if there is one
}

// charge is a marked act at a provider. Its request arrives even if the run is cancelled.
func (w *simulation) charge(ctx context.Context, p *caller, job orchestrator.Job) error {
	how, r := w.actOf(job.AnalysisID), w.seed.of("charge", job.AnalysisID, job.LockToken)
	if !how.charges {
		return nil
	}
	c := &charging{w, p, job, how, r, r.between(w.p.policy.TTL, 4*w.p.policy.TTL)}
	var find []worker.Finder[string]
	if c.how.finds {
		find = append(find, worker.Find(c.find))
	}
	receipt, err := worker.Once(ctx, job, "charge", c.do, find...)
	w.locked(func() {
		w.note("%s: charge: %q, %v", p, receipt, err)
		switch {
		case errors.As(err, new(*worker.UncertainError)):
			w.count("acts uncertain")
		case err == nil && !slices.Contains(w.records[p.analysis].charges, receipt):
			w.fail("%s: Once returned %q, which the provider did not give", p, receipt)
		}
	})
	return err
}

// do asks the provider to charge.
func (c *charging) do(context.Context) (receipt string, err error) {
	if c.happens(leasetest.CrashBefore.At("charge"), 0.05) {
		c.crash()
	} else if c.happens(leasetest.Pause.At("charge"), 0.15) {
		c.apply(incident{kind: leasetest.Pause, slot: c.by.on.slot.n, last: c.pause}, int(c.by.token))
	}
	if !c.passes("asks the provider") {
		return "", errForNow
	}
	if c.happens(leasetest.Refuse.At("charge"), 0.1) {
		return "", worker.NotDone(errForNow)
	}

	c.locked(func() { receipt = c.provide(c.by, c.job.Key("charge"), c.how.keys) })
	if c.happens(leasetest.CrashAfter.At("charge"), 0.1) {
		c.crash()
	}
	if !c.passes("has charged") || c.happens(leasetest.ReplyLost.At("charge"), 0.15) {
		return "", errForNow
	}
	return receipt, nil
}

// find asks the provider whether it has charged.
func (c *charging) find(context.Context) (receipt string, found bool, err error) {
	if c.happens(leasetest.RequestLost.At("find charge"), 0.2) {
		return "", false, errForNow
	}
	c.locked(func() {
		charges := c.records[c.by.analysis].charges
		if found = len(charges) > 0; found {
			receipt = charges[0]
			c.count("acts found")
			return
		}
		c.count("acts missing")
		c.step(c.by, actMissing, "")
	})
	if !c.passes("has asked the provider") {
		return "", false, errForNow
	}
	return receipt, found, nil
}

// happens draws whether a fault happens.
func (c *charging) happens(fault figure, chance float64) (does bool) {
	if does = !c.quiet() && c.r.chance(chance); does {
		c.locked(func() { c.count(fault) })
	}
	return does
}

// passes lets time pass. It reports false if the process has died.
func (c *charging) passes(what string) bool {
	time.Sleep(c.r.between(time.Millisecond, 2*time.Second))
	return c.alive(c.by.on, what, c.job.AnalysisID, c.job.LockToken)
}

func (c *charging) crash() {
	c.going.Go(func() { c.apply(incident{kind: leasetest.Crash, slot: c.by.on.slot.n}, int(c.by.token)) })
}

// step records what happens at the provider. The caller holds the mutex.
func (m *model) step(p *caller, state, receipt string) {
	r := m.records[p.analysis]
	r.actSteps = append(r.actSteps, actStep{At: time.Now(), Writer: p.token, State: state, Receipt: receipt})
	m.note("%s: %s %s", p, state, receipt)
}

// provide serves a charge. With keys it is made once for a key. The caller holds the mutex.
func (w *simulation) provide(p *caller, key string, keys bool) (receipt string) {
	r := w.records[p.analysis]
	if r.holder != p {
		w.count("charges of a superseded run")
	}
	if receipt = r.keys[key]; keys && receipt != "" {
		w.count("charges refused by their key")
		return receipt
	}
	receipt = fmt.Sprintf("charge %d of %s", len(r.charges), p.analysis)
	if r.charges, r.keys[key] = append(r.charges, receipt), receipt; len(r.charges) > 1 {
		w.count("second charges after an answer")
	}
	w.count("charges")
	w.step(p, actCharged, receipt)
	return receipt
}

// answerActs answers uncertain acts as an operator does, who asks the provider first. While there
// are faults, some wait.
func (w *simulation) answerActs() {
	for n := 0; w.pass(20*time.Second + w.seed.of("answers", n).between(0, time.Second)); n++ {
		var open []string
		w.locked(func() {
			for _, id := range slices.Sorted(maps.Keys(w.records)) {
				r := w.records[id]
				if uncertain := r.doc.OpenActs > 0 && r.holder == nil; uncertain && r.doc.Lock.Finished {
					open = append(open, id)
				}
			}
		})
		for _, id := range open {
			r := w.seed.of("answer", n, id)
			if !w.quiet() && r.chance(0.5) {
				continue
			}
			p := &caller{operates: Resolve, analysis: id, books: fmt.Sprintf("answer-%d-%s", n, id)}
			p.name = p.books
			w.locked(func() {
				r := w.records[id]
				p.seen = &analysislock.Seen{Status: r.doc.Status, Grant: r.doc.Lock.Grant()}
				if p.answer.Done = len(r.charges) > 0; p.answer.Done {
					p.answer.Result, _ = json.Marshal(r.charges[0])
				}
				w.count(map[bool]figure{true: "answered done", false: "answered not done"}[p.answer.Done])
			})
			if !w.quiet() && r.chance(0.2) { // another operator does not answer
				name := "requeue-" + p.name
				w.command(&caller{name: name, operates: Requeue, analysis: id, fresh: r.chance(0.5), books: name})
			}
			time.Sleep(r.between(time.Millisecond, 5*time.Second)) // in which a paused worker may charge
			w.command(p)
		}
	}
}

// judgeActs judges the acts of all analyses.
func (w *simulation) judgeActs() {
	for id, r := range w.records {
		for _, wrong := range judgeAct(r.actSteps, w.actOf(id).keys) {
			w.fail("%s: %s", id, wrong)
		}
		uncharged := len(r.charges) == 0 && w.actOf(id).charges
		if uncharged && r.doc.Status == analysislock.Ready {
			w.fail("%s is READY without a charge", id)
		}
	}
}
