package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	"taskguard/internal/text"
)

// maxWaiting is how many lines of a program may wait for their replies. Then its next line waits.
const maxWaiting = 1000

// replies answers the lines of a program that ask for it: those with ack. A report is answered when
// its commit is made, while the next lines are read, so that lines that wait share a commit. An act is
// committed at once, with what waits.
type replies struct {
	acts            // lineCtx ends when the program has exited: after the run's end it may still report, until SIGKILL
	file   *os.File // the writing end of the program's REPLY_FD
	cancel func()
	// Each reply in the queue has a place, so that putting it there does not block.
	queue  chan reply
	places chan struct{}
}

func newReplies(ctx context.Context, job Job) *replies {
	begin, stop := context.WithCancel(ctx)
	lineCtx, end := context.WithCancel(context.WithoutCancel(ctx))
	return &replies{
		acts: newActs(begin, lineCtx, job), cancel: func() { stop(); end() },
		queue: make(chan reply, maxWaiting), places: make(chan struct{}, maxWaiting),
	}
}

// close ends replying: the program has exited.
func (p *replies) close() {
	p.cancel()
	closeAll(p.file)
}

// serve sends what is in the queue until the program has exited.
func (p *replies) serve() {
	for {
		select {
		case answer := <-p.queue:
			p.send(answer)
			<-p.places
		case <-p.lineCtx.Done():
			return
		}
	}
}

// reply is a line for the program.
type reply struct {
	Ack     json.RawMessage `json:"ack,omitempty"` // empty: the ack of the line cannot be read
	Act     *actReply       `json:"effect,omitempty"`
	Unknown bool            `json:"unknown,omitempty"` // the line may have been committed
	Error   string          `json:"error,omitempty"`   // without unknown: the line was not committed
}

func newReply(ack json.RawMessage, err error) reply {
	answer := reply{Ack: ack, Unknown: errors.Is(err, ErrUnknown)}
	if err != nil {
		answer.Error = text.Error(err)
	}
	return answer
}

// answer handles a line whose reply the program waits for: an act, or the commit of the report r.
// problem is why r is no report. handled is false for a line that only reports, or cannot be used.
func (p *replies) answer(l line, r Report, problem string) (handled bool) {
	switch {
	case l.Act != nil:
		p.actLine(l, r, problem)
		return true
	case p.lineCtx.Err() != nil: // the program has ended: the next commit includes the report
		return false
	case l.unreadable:
		select {
		case p.places <- struct{}{}:
			p.queue <- reply{Error: problem}
		default: // the queue is full, as the program does not read its replies: it may not wait for this one
		}
		return false
	case l.Ack == nil:
		return false
	}

	select {
	case p.places <- struct{}{}:
	case <-p.lineCtx.Done():
		return false
	}
	if problem != "" {
		p.queue <- reply{Ack: l.Ack, Error: problem}
		return false
	}
	p.job.commitSoon(p.lineCtx, r, func(err error) { p.queue <- newReply(l.Ack, err) })
	return true
}

// actLine handles a line with an act, and answers it if the line has an ack. The commit of the act includes
// a report in the same line.
func (p *replies) actLine(l line, r Report, problem string) {
	p.report(l, r, problem)
	var act *actReply
	err := errors.New("an act cannot begin without an ack")
	switch {
	case l.ends():
		act, err = p.end(l)
	case l.Ack != nil:
		act, err = p.begin(*l.Act)
	}
	answer := newReply(l.Ack, err)
	switch {
	case l.Ack != nil && p.lineCtx.Err() == nil:
		answer.Act = act
		p.send(answer)
	case err != nil && !answer.Unknown:
		p.unrecorded()
	}
}

// send sends a line to the program, which may have exited or closed the file. An act whose go does
// not arrive is not done.
func (p *replies) send(answer reply) {
	line, _ := json.Marshal(answer)
	_, err := p.file.Write(append(line, '\n'))
	if err != nil && answer.Act != nil && answer.Act.State == "go" {
		p.undo(answer.Act.name)
	}
}
