package orchestrator

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"taskguard/internal/text"
)

// acts are the acts of one run of a program or an endpoint, which begin and end with its lines.
type acts struct {
	job Job
	// No act begins after the end of runCtx, which ends with the run. Until lineCtx ends, the ends of acts are
	// committed.
	runCtx, lineCtx context.Context //nolint:containedctx // they live as long as the goroutine that reads
	uncertain       map[string]*Act // the acts that were told uncertain, and have no answer
	begun           map[string]bool // the acts that were told go, and whose end is not recorded
	acting          *atomic.Int32   // how many these are, with the one that begins now
	idle            func()          // called when an act has ended
}

func newActs(runCtx, lineCtx context.Context, job Job) acts {
	return acts{
		job: job, runCtx: runCtx, lineCtx: lineCtx,
		uncertain: map[string]*Act{}, begun: map[string]bool{}, acting: new(atomic.Int32), idle: func() {},
	}
}

// report passes on the report in a line with an act. problem is why it is none, or "".
func (a *acts) report(l line, r Report, problem string) {
	switch {
	case a.job.Reporter == nil:
	case problem == "" && l.reports():
		a.job.Reporter.Report(r)
	case l.reports():
		a.job.Reporter.Invalid(problem)
	}
}

// unrecorded logs that the end of an act is not recorded, for an analyzer that gets no reply.
func (a *acts) unrecorded() {
	if a.job.Reporter != nil {
		a.job.Reporter.Invalid("an act could not be recorded")
	}
}

// begin begins an act, unless the run has ended.
func (a *acts) begin(name string) (reply *actReply, err error) {
	a.acting.Add(1) // before the commit: a stop meanwhile sees either the act, or that it did not begin
	defer func() {
		if err != nil || reply.State != "go" {
			a.acting.Add(-1)
		}
	}()

	var act *Act
	err = a.runCtx.Err()
	if err == nil {
		act, err = a.job.Begin(a.runCtx, name, false)
	}

	switch {
	case a.runCtx.Err() != nil && act == nil:
		if err == nil { // the marker was committed
			_ = a.job.End(a.lineCtx, name, false, nil)
		}
		return nil, errors.New("the run is stopping: no act begins")
	case err != nil:
		return nil, err
	case act == nil:
		a.begun[name] = true
		return &actReply{name: name, State: "go", Key: a.job.Key(name)}, nil
	case act.Done():
		return &actReply{State: "done", Result: act.Result, ResultError: act.ResultError}, nil
	default:
		a.uncertain[name] = act
		return &actReply{State: "uncertain", Key: a.job.Key(name), Since: act.At, Token: act.Token}, nil
	}
}

// end ends the act of a line. The reply is not nil if the act is recorded as done without its result.
func (a *acts) end(l line) (*actReply, error) {
	name, done := *l.Act, l.Done != nil
	switch {
	case !l.ends(), l.NotDone != nil && (done || !*l.NotDone): // a result or an error says nothing about the act
		return nil, errors.New("an act ends with either done, or not_done that is true")
	}
	err := a.job.End(a.lineCtx, name, done, l.Done)
	lost, recorded := errors.AsType[*NoResultError](err)
	if err == nil || recorded || errors.Is(err, ErrUnknown) { // the commit that ends the run also ends the act
		a.ended(name)
	}
	if recorded { // an error would mean that the act is not recorded
		return &actReply{State: "done", ResultError: lost.Reason}, nil
	}
	return nil, err
}

// undo removes the marker of an act whose go did not arrive. Otherwise the act would be uncertain.
func (a *acts) undo(name string) {
	_ = a.job.End(a.lineCtx, name, false, nil)
	a.ended(name)
}

// ended notes that the end of an act is recorded.
func (a *acts) ended(name string) {
	delete(a.uncertain, name)
	if a.begun[name] {
		delete(a.begun, name)
		a.acting.Add(-1)
		a.idle()
	}
}

// unanswered returns err, with an UncertainError if the analyzer has failed without an answer to
// an uncertain act.
func (a *acts) unanswered(ctx context.Context, err error) error {
	for name, act := range a.uncertain {
		if err != nil && ctx.Err() == nil {
			return errors.Join(err, a.job.Uncertain(name, act))
		}
	}
	return err
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
	// End records the Result or the ResultError of an act that is done; nil removes the record of one
	// that was not done.
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
