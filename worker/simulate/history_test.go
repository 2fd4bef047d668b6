package simulate

import (
	"errors"
	"math"
	"time"

	"github.com/anishathalye/porcupine"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Kinds of operations on a lock, and what their callers were told.
const (
	acquire = "acquire"
	renew   = "renew"
	release = "release"
	finish  = "finish"
	unlock  = "unlock"
	requeue = "requeue"

	ok        = "ok"
	heldBy    = "held"
	finished  = "finished"
	exhausted = "exhausted"
	refused   = "lost"
	unknown   = "unknown"
)

// operation is one call as its caller saw it.
type operation struct {
	kind, answer   string
	owner          string
	token          int64
	expires        int64   // written, or seen in another's lock
	at             int64   // the store's time in the last reply, where there was one
	meant          []int64 // of an acquisition of unknown outcome
	call, answered int64
}

// register is the model: a lock is one register.
type register struct {
	owner    string
	token    int64
	expires  int64
	finished bool
}

// record adds an operation to the history of a lock. The mutex is held.
func (w *world) record(id string, began time.Duration, op operation) {
	op.call, op.answered = int64(began), int64(w.now())
	if op.answer == unknown {
		op.answered = math.MaxInt64
		w.figures["operations of unknown outcome"]++
	}
	w.figures["operations of kind "+op.kind]++
	w.history[id] = append(w.history[id], op)
}

func outcome(err error) string {
	switch {
	case err == nil:
		return ok
	case errors.Is(err, lease.ErrLost):
		return refused
	}
	return unknown
}

func acquisition(t *tag, acq analysislock.Acquisition, err error) operation {
	op := operation{kind: acquire, answer: ok, owner: t.owner, token: acq.Grant.Token, expires: acq.ExpiresAt.UnixNano(), at: t.at.UnixNano(), meant: t.meant}
	switch {
	case err != nil:
		op.answer = unknown
	case acq.Acquired:
	case acq.Reason == analysislock.Locked:
		op.answer, op.owner = heldBy, acq.Grant.Owner
	case acq.Reason == analysislock.AttemptsExhausted:
		op.answer = exhausted
	default:
		op.answer = finished
	}
	return op
}

// wrote adds one write of a holder to the history.
func (w *world) wrote(id string, by *tag, kind string, began time.Duration, expires time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	op := operation{kind: kind, answer: ok, owner: by.owner, token: by.token, expires: expires.UnixNano()}
	if err != nil {
		op.answer = unknown
	}
	w.record(id, began, op)
}

// steps are the states that a register can be in after op, were it applied at
// this moment: none if op's caller cannot have been told what it was.
func (r register) steps(op operation, ttl int64) []register {
	mine := !r.finished && r.owner == op.owner && r.token == op.token
	free := register{token: r.token, finished: r.finished}
	ended := register{token: r.token, finished: true}
	var next register
	may := false
	switch op.kind {
	case acquire:
		return r.acquired(op, ttl)
	case renew:
		may, next = mine, register{r.owner, r.token, op.expires, false}
	case release:
		if !mine {
			return []register{r} // silent
		}
		may, next = true, free
	case finish:
		may, next = mine, ended
	case unlock:
		may, next = true, free
	case requeue:
		may = r.owner == "" || r.expires <= op.at
		next = register{token: r.token}
		if op.answer == heldBy {
			return only(r.owner == op.owner && r.token == op.token && r.expires == op.expires, r)
		}
	}
	switch {
	case op.answer == ok:
		return only(may, next)
	case op.answer == refused:
		return only(!mine, r)
	case may && next != r:
		return []register{r, next}
	}
	return []register{r}
}

func (r register) acquired(op operation, ttl int64) []register {
	took := register{op.owner, r.token + 1, op.expires, false}
	switch op.answer {
	case ok:
		return only(!r.finished && op.token == r.token+1 && (r.owner == "" || r.expires <= op.expires-ttl), took)
	case heldBy:
		return only(!r.finished && r.owner == op.owner && r.token == op.token && r.expires == op.expires, r)
	case finished:
		return only(r.finished, r)
	case exhausted:
		return only(!r.finished && (r.owner == "" || r.expires <= op.at), register{token: r.token + 1, finished: true})
	}
	all := []register{r}
	for _, expires := range op.meant {
		switch {
		case r.finished:
		case expires < 0: // no attempt was left
			all = append(all, register{token: r.token + 1, finished: true})
		case r.owner == "" || r.expires <= expires-ttl:
			all = append(all, register{op.owner, r.token + 1, expires, false})
		}
	}
	return all
}

func only(is bool, r register) []register {
	if !is {
		return nil
	}
	return []register{r}
}

// checked runs porcupine over the history of one lock.
func checked(history []operation, ttl time.Duration) porcupine.CheckResult {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{register{}} },
		Step: func(state, input, _ any) (next []any) {
			for _, r := range state.(register).steps(input.(operation), int64(ttl)) {
				next = append(next, r)
			}
			return next
		},
	}
	var ops []porcupine.Operation
	for n, op := range history {
		ops = append(ops, porcupine.Operation{ClientId: n, Input: op, Call: op.call, Return: op.answered})
	}
	return porcupine.CheckOperationsTimeout(model.ToModel(), ops, checkTime)
}

// decisive leaves out, of what has an unknown outcome, since each doubles what the
// checker has to try, acquisitions that came to no write, and renewals whose expiry nobody was told:
// the model may always take these for not done, as a smaller expiry forbids
// nothing.
func decisive(history []operation) (ops []operation) {
	told := map[int64]bool{}
	for _, op := range history {
		if op.answer == heldBy {
			told[op.expires] = true
		}
	}
	for _, op := range history {
		idle := op.kind == acquire && len(op.meant) == 0 || op.kind == renew && !told[op.expires]
		if op.answer != unknown || !idle {
			ops = append(ops, op)
		}
	}
	return ops
}

// checkTime is far above what a history takes, milliseconds: a checker that
// does not end has proved nothing.
const checkTime = 30 * time.Second

// linear checks the history of each lock.
func (w *world) linear() {
	for id, history := range w.history {
		ops := decisive(history)
		w.figures["operations checked"] += int64(len(ops))
		if got := checked(ops, w.p.policy.TTL); got != porcupine.Ok {
			w.accuse("%s: porcupine says %s of %d operations", id, got, len(ops))
			return
		}
	}
}
