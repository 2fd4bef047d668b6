package orchestrator

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"taskguard/internal/text"
)

// maxWaiting is how many lines of a program may wait for their replies. Then its next line waits.
const maxWaiting = 1000

// replies answers the lines of a program that ask for it: those with ack. A report is answered when
// its commit is made, while the next lines are read, so that lines that wait share a commit. An act is
// committed at once, with what waits.
type replies struct {
	job  Job
	file *os.File // the writing end of the program's REPLY_FD
	// No act begins after the end of runCtx, which ends with the run. Until programCtx ends, because the
	// program has exited, lines are committed and answered, also between the run's end and SIGKILL.
	runCtx, programCtx context.Context //nolint:containedctx // they live as long as the goroutine that reads
	cancel             func()
	// Each reply in the queue has a place, so that putting it there does not block.
	queue  chan reply
	places chan struct{}
	// uncertain has the acts of the replies "uncertain" that the program has not answered.
	uncertain map[string]*Act
	begun     map[string]bool // the acts that were told go, and whose end is not recorded
	acting    atomic.Int32    // the number of begun acts, including an act that begins now
}

func newReplies(ctx context.Context, job Job) *replies {
	begin, stop := context.WithCancel(ctx)
	programCtx, end := context.WithCancel(context.WithoutCancel(ctx))
	return &replies{
		job: job, runCtx: begin, programCtx: programCtx, cancel: func() { stop(); end() },
		queue: make(chan reply, maxWaiting), places: make(chan struct{}, maxWaiting), uncertain: map[string]*Act{},
		begun: map[string]bool{},
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
		case <-p.programCtx.Done():
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

// actReply is the state of an act.
type actReply struct {
	name   string
	State  string          `json:"state"`         // go, done or uncertain
	Key    string          `json:"key,omitempty"` // Job.Key; only with go and uncertain
	Result json.RawMessage `json:"result,omitempty"`
	// ResultError tells why an act that is done has no result.
	ResultError string    `json:"result_error,omitempty"`
	Since       time.Time `json:"since,omitzero"`
	Token       int64     `json:"token,omitempty"`
}

// answer handles a line whose reply the program waits for: an act, or the commit of the report r.
// problem is why r is no report. handled is false for a line that only reports, or cannot be used.
func (p *replies) answer(l line, r Report, problem string) (handled bool) {
	switch {
	case l.Act != nil:
		p.actLine(l, r, problem)
		return true
	case p.programCtx.Err() != nil: // the program has ended: the next commit includes the report
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
	case <-p.programCtx.Done():
		return false
	}
	if problem != "" {
		p.queue <- reply{Ack: l.Ack, Error: problem}
		return false
	}
	p.job.commitSoon(p.programCtx, r, func(err error) { p.queue <- newReply(l.Ack, err) })
	return true
}

// actLine handles a line with an act, and answers it if the line has an ack. The commit of the act includes
// a report in the same line.
func (p *replies) actLine(l line, r Report, problem string) {
	switch {
	case p.job.Reporter == nil:
	case problem == "":
		p.job.Reporter.Report(r)
	case l.reports():
		p.job.Reporter.Invalid(problem)
	}

	act, err := p.act(*l.Act, l)
	answer := newReply(l.Ack, err)
	switch {
	case l.Ack != nil && p.programCtx.Err() == nil:
		answer.Act = act
		p.send(answer)
	case err != nil && !answer.Unknown && p.job.Reporter != nil:
		p.job.Reporter.Invalid("an act could not be recorded")
	}
}

// send sends a line to the program, which may have exited or closed the file. An act whose go does
// not arrive is not done.
func (p *replies) send(answer reply) {
	line, _ := json.Marshal(answer)
	_, err := p.file.Write(append(line, '\n'))
	if err != nil && answer.Act != nil && answer.Act.State == "go" {
		_ = p.job.End(p.programCtx, answer.Act.name, false, nil) // otherwise the act would be uncertain
		p.ended(answer.Act.name)
	}
}

// ended notes that the end of an act is recorded.
func (p *replies) ended(name string) {
	delete(p.uncertain, name)
	if p.begun[name] {
		delete(p.begun, name)
		p.acting.Add(-1)
	}
}

// act begins or ends the act of a line.
func (p *replies) act(name string, l line) (*actReply, error) {
	done := l.Done != nil
	if l.NotDone != nil && (done || !*l.NotDone) {
		return nil, errors.New("an act ends with either done, or not_done that is true")
	}
	if done || l.NotDone != nil {
		err := p.job.End(p.programCtx, name, done, l.Done)
		lost, recorded := errors.AsType[*NoResultError](err)
		if err == nil || recorded || errors.Is(err, ErrUnknown) { // the commit that ends the run also ends the act
			p.ended(name)
		}
		if recorded { // an error would mean that the act is not recorded
			return &actReply{State: "done", ResultError: lost.Reason}, nil
		}
		return nil, err
	}
	if l.Ack == nil {
		return nil, errors.New("an act cannot begin without an ack")
	}
	return p.beginAct(name)
}

// beginAct begins an act, unless the run has ended.
func (p *replies) beginAct(name string) (reply *actReply, err error) {
	p.acting.Add(1) // before the commit: a stop meanwhile sees either the act, or that it did not begin
	defer func() {
		if err != nil || reply.State != "go" {
			p.acting.Add(-1)
		}
	}()

	var act *Act
	err = p.runCtx.Err()
	if err == nil {
		act, err = p.job.Begin(p.runCtx, name, false)
	}

	switch {
	case p.runCtx.Err() != nil && act == nil:
		if err == nil { // the marker was committed
			_ = p.job.End(p.programCtx, name, false, nil)
		}
		return nil, errors.New("the run is stopping: no act begins")
	case err != nil:
		return nil, err
	case act == nil:
		p.begun[name] = true
		return &actReply{name: name, State: "go", Key: p.job.Key(name)}, nil
	case act.Done():
		return &actReply{State: "done", Result: act.Result, ResultError: act.ResultError}, nil
	default:
		p.uncertain[name] = act
		return &actReply{State: "uncertain", Key: p.job.Key(name), Since: act.At, Token: act.Token}, nil
	}
}

// unanswered returns err, with an UncertainError if the program has failed without an answer to
// an uncertain act.
func (p *replies) unanswered(ctx context.Context, err error) error {
	for name, act := range p.uncertain {
		if err != nil && ctx.Err() == nil {
			return errors.Join(err, p.job.Uncertain(name, act))
		}
	}
	return err
}

// Act is the record of a marked act: a side effect elsewhere that must not be repeated.
type Act struct {
	State       string          // "done"; otherwise the act has begun, and may have been done
	Token       int64           // the LockToken of the attempt that has written the record
	At          time.Time       // the time of the record, by the store's clock
	Result      json.RawMessage // only if the act is done
	ResultError string          // why an act that is done has no Result
}

// Done reports whether the act is done.
func (e *Act) Done() bool { return e.State == "done" }

// Marker is a Reporter that also records acts. Both methods return when the record is
// committed. They return an error if that is impossible, or when ctx ends.
type Marker interface {
	// Begin records that the act begins. If an earlier attempt has recorded the act, Begin
	// changes nothing and returns that record; with again, only if the act is done. It returns
	// a PermanentError, with which the run must end, if this attempt has recorded the act
	// (CodeActReused), or if there is no room for the act or its result (CodeActsFull).
	Begin(ctx context.Context, name string, again bool) (*Act, error)
	// End records the Result or the ResultError of an act that is done. If done is nil, the act was
	// not done, and End removes its record.
	// If ctx ends first, the record is committed with the lock's release. An act that is done
	// stays so, with its first result. ErrNoRoom: the result is too large; the act is still open.
	End(ctx context.Context, name string, done *Act) error
}

// Errors of acts.
var (
	// ErrNoGuard reports that no guard made the job, so that nothing can be recorded.
	ErrNoGuard = errors.New("orchestrator: no guard made this job, so its acts could be repeated: " +
		"check the ok of JobFromContext; in a unit test, use workertest.Job")
	// ErrNoRoom reports that there is no room for the result of an act.
	ErrNoRoom = errors.New("orchestrator: there is no room for the result")
)

// NoResultError reports that an act is recorded as done, but without its result.
type NoResultError struct {
	Reason string // why its result cannot be stored
}

func (e *NoResultError) Error() string {
	return "recorded as done without its result: " + e.Reason
}

// UncertainError reports an act that an attempt has begun and may have done. A run that returns it
// is not repeated.
type UncertainError struct {
	Key   string    // the id of the document
	Name  string    // the name of the act
	Token int64     // the LockToken of the attempt that began it
	Since time.Time // the time when it began, by the store's clock
}

func (e *UncertainError) Error() string {
	if e.Since.IsZero() && e.Token == 0 { // the guard always writes both
		return fmt.Sprintf("the act %q of %q may have been done: the document's field effects has no record that can "+
			"be read. The field belongs to the guard: if your application writes one of this name, rename yours",
			e.Name, e.Key)
	}
	return fmt.Sprintf("the act %q of %q may have been done: an attempt began it at %s, with lock token %d",
		e.Name, e.Key, e.Since.UTC().Format(time.RFC3339), e.Token)
}

// Key returns an idempotency key for an act of the job: the same for all attempts, and another for
// each job and act. A provider that gets it with each request does the act once. Key panics with
// ErrNoGuard if no guard made the job: all such jobs would have one key.
func (j Job) Key(act string) string {
	if j.Reporter == nil {
		panic(ErrNoGuard)
	}
	return ActKey(j.Scope, j.AnalysisID, act)
}

// ActKey returns the Key of an act of a job with this Scope and AnalysisID.
func ActKey(scope, analysisID, act string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{scope, analysisID, act}, "\x00")))
	return fmt.Sprintf("%x", sum[:16])
}

// CheckAct returns an error if name cannot be the name of an act.
func CheckAct(name string) error {
	if !validCode.MatchString(name) || strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") {
		return errors.New("orchestrator: an act's name has 1 to 64 letters, digits, _ and -, and is not like __x__")
	}
	return nil
}

// marker returns the Marker of the job for an act of this name.
func (j Job) marker(name string) (Marker, error) {
	m, ok := j.Reporter.(Marker)
	if !ok {
		return nil, ErrNoGuard
	}
	return m, CheckAct(name)
}

// Begin calls the Marker of the job. name has up to 64 letters, digits, "_" and "-". ErrNoGuard: the job
// has no Marker.
func (j Job) Begin(ctx context.Context, name string, again bool) (*Act, error) {
	m, err := j.marker(name)
	if err != nil {
		return nil, err
	}
	return m.Begin(ctx, name, again)
}

// End calls the Marker of the job. The result is stored as encoding/json encodes it. If that fails, or
// if there is no room for it, the act is recorded as done without it, and End returns a *NoResultError.
func (j Job) End(ctx context.Context, name string, done bool, result any) error {
	m, err := j.marker(name)
	if err != nil {
		return err
	}
	if !done {
		return m.End(ctx, name, nil)
	}

	line, problem := encodeLine(result)
	if problem == nil {
		problem = m.End(ctx, name, &Act{Result: line})
		if !errors.Is(problem, ErrNoRoom) {
			return problem
		}
		problem = ErrNoRoom // without the store's text
	}

	reason := legible(text.Error(problem), text.Head, maxResultError)
	if err := m.End(ctx, name, &Act{ResultError: reason}); err != nil {
		return err
	}
	return &NoResultError{reason}
}

// maxResultError is the longest ResultError, in bytes.
const maxResultError = 256

// Uncertain returns the UncertainError of an act with the record e.
func (j Job) Uncertain(name string, e *Act) *UncertainError {
	return &UncertainError{Key: j.AnalysisID, Name: name, Token: e.Token, Since: e.At}
}
