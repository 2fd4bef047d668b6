package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"time"
)

// replies answers the lines of a program that ask for it: those with ack. It handles a line before
// the next one is read, so a program that does not read its replies waits.
type replies struct {
	ctx  context.Context //nolint:containedctx // of the run
	job  Job
	file *os.File // the writing end of the program's REPLY_FD
	// uncertain has the acts that the program was told are uncertain, and has not answered.
	uncertain map[string]*Effect
}

// reply is a line for the program.
type reply struct {
	Ack    json.RawMessage `json:"ack"`
	Effect *effectReply    `json:"effect,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// effectReply is the state of an act.
type effectReply struct {
	name   string
	State  string          `json:"state"`         // go, done or uncertain
	Key    string          `json:"key,omitempty"` // of go and uncertain: Job.Key
	Result json.RawMessage `json:"result,omitempty"`
	Since  time.Time       `json:"since,omitzero"`
	Token  int64           `json:"token,omitempty"`
}

// answer handles the parts of a line that its program awaits: an act, and the commit of the report
// r. problem is why r is no report. handled is false for a line that only reports.
func (p *replies) answer(l line, r Report, problem string) (handled bool) {
	if l.Ack == nil && l.Effect == nil {
		return false
	}

	answer := reply{Ack: l.Ack}
	var err error
	switch {
	case l.Effect != nil:
		if p.job.Reporter != nil && problem == "" { // it is committed with the act
			p.job.Reporter.Report(r)
		}
		answer.Effect, err = p.act(*l.Effect, l)
	case problem != "":
		err = errors.New(problem)
	case p.job.Reporter != nil:
		err = p.job.Reporter.Commit(p.ctx, r)
	}
	if err != nil {
		answer.Error = strings.TrimPrefix(err.Error(), "orchestrator: ")
	}
	switch {
	case l.Ack != nil:
		p.send(answer)
	case err != nil && p.job.Reporter != nil:
		p.job.Reporter.Invalid("an act could not be recorded")
	}
	return true
}

// send sends a line to the program, which may have exited or closed the file. An act whose go does
// not arrive is not done.
func (p *replies) send(answer reply) {
	line, _ := json.Marshal(answer)
	_, err := p.file.Write(append(line, '\n'))
	if err != nil && answer.Effect != nil && answer.Effect.State == "go" {
		_ = p.job.End(p.ctx, answer.Effect.name, false, nil) // else it is uncertain
	}
}

// act begins or ends the act of a line.
func (p *replies) act(name string, l line) (*effectReply, error) {
	done := l.Done != nil
	if l.NotDone != nil && (done || !*l.NotDone) {
		return nil, errors.New("an act ends with either done, or not_done that is true")
	}
	if done || l.NotDone != nil {
		err := p.job.End(p.ctx, name, done, l.Done)
		if err == nil {
			delete(p.uncertain, name)
		}
		return nil, err
	}
	if l.Ack == nil {
		return nil, errors.New("an act cannot begin without an ack")
	}

	switch effect, err := p.job.Begin(p.ctx, name, false); {
	case err != nil:
		return nil, err
	case effect == nil:
		return &effectReply{name: name, State: "go", Key: p.job.Key(name)}, nil
	case effect.Done:
		return &effectReply{State: "done", Result: effect.Result}, nil
	default:
		p.uncertain[name] = effect
		return &effectReply{State: "uncertain", Key: p.job.Key(name), Since: effect.Since, Token: effect.Token}, nil
	}
}

// unanswered returns err, with an UncertainError if the program has failed without an answer to
// an uncertain act.
func (p *replies) unanswered(err error) error {
	for name, effect := range p.uncertain {
		if err != nil && p.ctx.Err() == nil {
			return errors.Join(err, p.job.Uncertain(name, effect))
		}
	}
	return err
}
