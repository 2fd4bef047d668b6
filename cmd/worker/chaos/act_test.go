package chaos

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/proof"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// purchase is a request to the provider, and its answer.
type purchase struct {
	Analysis string
	Token    int64
	Key      string
	Find     bool   // asks for a charge, and makes none
	Receipt  string // empty: there is no charge
}

// keys reports whether the provider knows keys for an analysis. Then the program can ask for the
// charge, too.
func keys(id string) bool { return id[len(id)-1]%2 == 0 }

// provider serves charges, and forwards other requests. A request may take longer than the TTL. For
// four analyses of ten it loses the first reply, to a charge that it has made or not.
func (c *chaos) provider(other http.Handler) http.Handler {
	made := map[string][]string{} // receipts by analysis and key
	asked := map[string]bool{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/charge") {
			other.ServeHTTP(w, r)
			return
		}
		var p purchase
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			c.check(err)
			return
		}
		random := c.random(fmt.Sprint("charge ", p.Analysis, p.Token))
		takes := between(random, 0, c.ttl/4)
		if random.IntN(8) == 0 {
			takes = c.ttl * 5 / 4
		}
		if !p.Find {
			time.Sleep(takes) // also if the program has ended
		}

		lost := false
		c.locked(func() {
			step := proof.ActStep{At: time.Now(), Writer: p.Token, State: proof.ActCharged}
			account := p.Analysis
			if keys(account) {
				account += p.Key
			}
			digit := p.Analysis[len(p.Analysis)-1]
			lost = !asked[p.Analysis] && digit >= '6'
			asked[p.Analysis] = true

			known := len(made[account]) > 0
			switch {
			case p.Find && !known:
				step.State = proof.ActMissing
				c.counts["acts missing"]++
			case p.Find:
				c.counts["acts found"]++
			case lost && digit < '8', known && keys(p.Analysis): // it makes none
			default:
				step.Receipt = fmt.Sprintf("charge %d of %s", len(made[account]), account)
				made[account] = append(made[account], step.Receipt)
				c.counts["charges"]++
			}
			if step.Receipt != "" || step.State == proof.ActMissing {
				c.acts[p.Analysis] = append(c.acts[p.Analysis], step)
			}
			if len(made[account]) > 0 {
				p.Receipt = made[account][0]
			}
			if p.Receipt = cmp.Or(step.Receipt, p.Receipt); lost {
				c.counts["charges without a reply"]++
			}
		})
		if lost {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(p) // the program may have ended
	})
}

// answerActs answers uncertain acts, as an operator does who asks the provider.
func (c *chaos) answerActs(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, c.ttl/5) {
		all, err := c.operator.Uncertain(ctx, 100)
		if err != nil { // Firestore is paused, or the end
			continue
		}
		for i := range all {
			d := &all[i]
			if d.Status != analysislock.Failed {
				continue
			}
			var answer analysislock.Answer
			c.locked(func() {
				at := slices.IndexFunc(c.acts[d.ID], func(s proof.ActStep) bool { return s.State == proof.ActCharged })
				if answer.Done = at >= 0; answer.Done {
					answer.Result = c.acts[d.ID][at].Receipt
				}
			})
			seen := &analysislock.Seen{Status: d.Status, Grant: d.Lock.Grant()}
			_, err := c.operator.Resolve(ctx, d.ID, seen, "charge", answer, "")
			switch {
			case err == nil:
				c.add(map[bool]string{true: "answered done", false: "answered not done"}[answer.Done])
				c.check(c.queue.deliver(context.WithoutCancel(ctx), d.ID, 0))
			case !errors.Is(err, lease.ErrUnavailable) && !errors.Is(err, lease.ErrConflict) && ctx.Err() == nil:
				c.check(err)
			}
		}
	}
}

// judgeAct judges the charges of an analysis.
func (c *chaos) judgeAct(t *testing.T, id string, applied []write) {
	t.Helper()
	steps, token := slices.Clone(c.acts[id]), int64(0)
	for i := range applied {
		w := &applied[i]
		if w.Kind == proof.Acquire {
			token = w.Token
		}
		if w.act != nil {
			step := *w.act
			if w.Kind != proof.Requeue {
				step.Writer = token
			}
			steps = append(steps, step)
		}
	}
	for _, wrong := range proof.JudgeAct(steps, keys(id)) {
		t.Errorf("%s: %s", id, wrong)
	}

	charges := 0
	for _, s := range steps {
		if s.State == proof.ActCharged {
			charges++
		}
	}
	if charges > 1 {
		c.counts["second charges after an answer"]++
	}
	doc := c.docs.Fields(t, id)
	effects, _ := doc["effects"].(map[string]any)
	act, _ := effects["charge"].(map[string]any)
	if charges == 0 || act["state"] != analysislock.EffectDone || doc["openEffects"] != nil {
		t.Errorf("%s: READY after %d charges, act %v, openEffects %v", id, charges, act, doc["openEffects"])
	}
}

// charge charges once, as a marked act.
func (p *program) charge(url string) error {
	for n := 1; ; n++ {
		state, key, err := p.mark(`"ack":%d`, n)
		this := purchase{Analysis: p.Analysis, Token: p.Token, Key: key}
		switch {
		case err != nil:
			return err
		case state == "done":
			return nil
		case state == "uncertain" && !keys(p.Analysis):
			return errors.New("an earlier attempt may have charged")
		case state == "uncertain":
			this.Find = true
		}

		if this, err = this.send(url); err != nil {
			return err
		}
		if this.Receipt != "" {
			_, _, err := p.mark(`"done":%q,"ack":-1`, this.Receipt)
			return err
		}
		if _, _, err := p.mark(`"not_done":true,"ack":-1`); err != nil {
			return err
		}
	}
}

// mark writes a line about the act, and returns the reply to it.
func (p *program) mark(format string, args ...any) (state, key string, err error) {
	if _, err := fmt.Fprintf(p.reports, `{"effect":"charge",`+format+"}\n", args...); err != nil {
		return "", "", err
	}
	var reply struct {
		Error  string
		Effect struct{ State, Key string }
	}
	if err := p.replies.Decode(&reply); err != nil {
		return "", "", err
	}
	if reply.Error != "" {
		return "", "", errors.New(reply.Error)
	}
	return reply.Effect.State, reply.Effect.Key, nil
}

// send sends the request to the provider.
func (p purchase) send(url string) (answer purchase, err error) {
	body, err := json.Marshal(p)
	if err != nil {
		return answer, err
	}
	response, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, errors.New("the provider: "+response.Status))
	}
	err = errors.Join(err, json.Unmarshal(text, &answer))
	return answer, err
}
