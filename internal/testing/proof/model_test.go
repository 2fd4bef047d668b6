package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
)

type (
	analysis = analysislock.Analysis
	cell     = lease.Cell[analysis]
)

// model is a store and a queue, and checks what the workers do to them. Its mutex
// guards all of it, and is never held while time passes.
type model struct {
	limits
	policy        lease.Policy
	skew          time.Duration // of the store's clock, against the workers'
	queueSkew     time.Duration // of the queue's clock
	skipRevisions bool          // the store does not compare revisions
	single        bool          // one crash is the only fault
	crashedAt     time.Duration // the last crash; zero: none
	traced        bool
	begun         time.Time

	mu      sync.Mutex
	records map[string]*record
	keys    map[string]lease.Cell[analysislock.Key] // by KeyID, as last written

	keyRevisions int64
	served       int // calls
	tasks        []*task
	owners       map[string]*caller
	trace        []line
	figures      figures
	repeats      bool        // an earlier execution has counted the current step
	wrong        []string    // the violations
	onBooking    func(*task) // called with each task; may be nil
}

// limits are the settings of all workers for their runs. Zero: no limit.
type limits struct {
	runTimeout, maxRun, interval, stall, retryMin, retryMax time.Duration

	keySlots int                    // of each key; zero: analyses have no key
	hold     bool                   // a failure for now keeps its slot
	keyOf    func(id string) string // the key of an analysis

	places int // of a worker; zero: it has none, and so knows no suspects
}

// record is one analysis in the store.
type record struct {
	doc      analysis
	rev      int64
	updated  time.Time // by the store's clock
	history  History
	holder   *caller
	states   []state // all states of the lock, the oldest first
	mark     mark    // the checkpoint
	acts     analysislock.Acts
	actSteps []actStep
	attempts int               // acquisitions
	series   int64             // the token at the last requeue
	crashes  int               // of later attempts
	charges  []string          // receipts of the provider
	keys     map[string]string // the receipts by key
	parkings []*caller
	parkedAt int // m.served when it was last parked
}

// state is the lock and the checkpoint after a write.
type state struct {
	lock lease.Lease
	mark mark
	next time.Time // of the next attempt
	at   time.Duration
	by   *caller
}

// caller is a client of the store: a delivery, a recovery or an operator.
type caller struct {
	n        int // in the order of their start
	name     string
	on       *instance
	operates Kind                // of an operator: Unlock, Requeue, Cancel or Resolve; of a recovery: Mark
	fresh    bool                // of a Requeue
	books    string              // the task that an operator books afterwards
	answer   analysislock.Answer // of a Resolve
	seen     *analysislock.Seen  // likewise
	analysis string
	task     *task
	owner    string // set by its first acquisition
	token    int64  // of its acquisition; for an operator, of the lock that it broke
	acquired int    // the number of the record's states before its acquisition
	run      *run
	since    int   // the number of the record's states when it started
	parked   bool  // it has parked its analysis
	lookedAt int   // m.served when it read which analyses are parked; zero: not since it parked its own
	alone    bool  // its acquisition says that its worker runs nothing else
	broken   *Span // from when an operator broke its lock until its trust ends
	answered bool
	busy     bool          // its worker was full
	entered  time.Duration // when it got a place of its worker

	explored
}

// run is one run of the analyzer.
type run struct {
	ctx                     context.Context
	begun, ended, cancelled time.Duration // negative: not yet
	stopped                 bool          // it ended after its process had got SIGTERM
	pauses                  []Span
	result                  chan error
	reports                 chan bool // true: wait for the commit
	work
}

func (p *caller) String() string { return p.name }

func (p *caller) running() bool { return p.run != nil && p.run.ended < 0 }

// instance is one worker process.
type instance struct {
	name     string
	runner   *delivery.Runner
	analyze  orchestrator.AnalyzerFunc
	begun    time.Time // the model
	work     context.Context
	stop     context.CancelCauseFunc
	places   *delivery.Places // nil: it has none
	other    *delivery.Place  // of other work; nil: it does none
	stopping bool
	crashed  bool
	callers  []*caller

	slot   *slot // this and the next three fields are for the simulation
	dead   chan struct{}
	paused time.Duration // until then
	died   time.Duration
}

// task is one task of the queue.
type task struct {
	taskqueue.Task
	alias    string // its name without random parts
	done     bool
	freed    time.Time // when its name may be used again, if it is done
	inFlight int       // dispatches without an answer
	sent     int       // dispatches
	tried    time.Time // of the last dispatch, by the store's clock
}

func newModel(policy lease.Policy) *model {
	keys := map[string]lease.Cell[analysislock.Key]{}
	return &model{
		policy: policy, records: map[string]*record{}, keys: keys, owners: map[string]*caller{}, figures: figures{},
	}
}

// now returns the store's time.
func (m *model) now() time.Time              { return time.Now().Add(m.skew).Round(0) }
func (m *model) since() time.Duration        { return time.Since(m.begun) }
func (m *model) local(t time.Time) time.Time { return t.Add(-m.skew) }

func (m *model) locked(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do()
}

func (m *model) count(name figure) {
	if !m.repeats {
		m.figures[name]++
	}
}

type line struct {
	at   time.Duration
	text string
}

// note adds a line to the trace.
func (m *model) note(format string, args ...any) {
	if m.traced {
		m.trace = append(m.trace, line{m.since(), fmt.Sprintf(format, args...)})
	}
}

// fail records a violation.
func (m *model) fail(format string, args ...any) {
	m.note("WRONG: "+format, args...)
	m.wrong = append(m.wrong, fmt.Sprintf("%v: %s", m.since(), fmt.Sprintf(format, args...)))
}

func (m *model) show(d analysis) string {
	l := d.Lock
	s := fmt.Sprintf("%s token %d attempts %d", d.Status, l.Token, l.Attempts)
	if l.Owner != "" {
		s += fmt.Sprintf(" owner %v until %s", m.owners[l.Owner], l.ExpiresAt.Format("15:04:05.000"))
	}
	if !d.NextAttemptAt.IsZero() {
		s += " next at " + d.NextAttemptAt.Format("15:04:05.000")
	}
	if l.FinishedBy != "" {
		s += fmt.Sprintf(" by %v", m.owners[l.FinishedBy])
	}
	return s
}

// create creates an analysis at this time.
func (m *model) create(id string) *record {
	r := &record{
		doc: analysis{ID: id, Status: analysislock.Queued, Input: id}, rev: 1, updated: m.now(),
		states: []state{{at: m.since()}}, keys: map[string]string{},
	}
	if m.keySlots > 0 {
		r.doc.Key, r.doc.CreatedAt = m.keyOf(id), m.now()
	}
	m.records[id] = r
	m.note("%s: created", id)
	return r
}

// The kinds of calls.
const (
	load     = "load"
	swap     = "swap"
	book     = "book"
	find     = "find"
	readWork = "work" // of an attempt
	list     = "list" // the orphaned analyses
	loadKey  = "load key"
	swapKey  = "swap key"
	parked   = "parked" // the parked analyses of a key
)

// call is one call to the store or the queue.
type call struct {
	kind  string
	by    *caller
	id    string
	prev  cell
	next  analysis
	task  taskqueue.Task // of find, only its name
	key   lease.Cell[analysislock.Key]
	then  analysislock.Key
	limit int // of parked
	asked time.Time
	reply chan reply // for the search
}

type reply struct {
	cell    cell
	already bool
	found   taskqueue.Presence
	orphans []cell
	key     lease.Cell[analysislock.Key]
	parked  []analysis
	err     error
}

// serve serves a call.
func (m *model) serve(c *call) (r reply) {
	m.served++
	switch c.kind {
	case load:
		r.cell = m.load(c.id)
	case swap:
		r.cell, r.err = m.swap(c.by, c.id, c.prev, c.next)
	case book:
		r.already = m.book(c.task, c.by) == nil
	case find:
		r.found = m.find(c.task.Name)
	case readWork:
		r.cell.Rev = revision{work: m.given(c.id)}
	case list:
		r.orphans = m.orphans()
	case loadKey:
		r.key = m.keys[c.id]
		r.key.At = m.now()
	case swapKey:
		r.key, r.err = m.swapKey(c)
	case parked:
		r.parked, c.by.lookedAt = m.parked(c.id, c.limit), m.served
	}
	r.cell.Asked, r.key.Asked = c.asked, c.asked
	return r
}

// given is what an attempt is given.
type given struct {
	mark mark
	acts analysislock.Acts
}

func (m *model) given(id string) *given { return &given{m.records[id].mark, m.records[id].acts} }

// revision is the Rev of a cell.
type revision struct {
	number int64
	work   *given // nil: it was not read
}

// current reports whether c is the newest reading of r.
func (r *record) current(c cell) bool {
	read, ok := c.Rev.(revision)
	return ok && read.number == r.rev
}

// load serves a read.
func (m *model) load(id string) cell {
	r := m.records[id]
	if r == nil {
		return cell{At: m.now()}
	}
	c := cell{Doc: r.doc, Exists: true, Rev: revision{number: r.rev}, At: m.now()}
	c.Doc.ReadAt = c.At
	return c
}

// swap serves a write. The reply to an acquisition has the work, as if it was read with it.
func (m *model) swap(p *caller, id string, prev cell, next analysis) (cell, error) {
	r := m.records[id]
	if current := r != nil && r.current(prev); !current && !m.skipRevisions {
		if held := p.operates == "" && p.token != 0; held && r.holder != p {
			m.count("superseded writes refused")
		}
		if p.operates == Mark {
			m.count("marks refused")
		}
		return cell{}, fmt.Errorf("swap %s: %w", id, lease.ErrConflict)
	}
	if p.operates == Cancel && next.Lock == prev.Doc.Lock { // nothing is written
		return m.load(id), nil
	}
	mark := r.mark
	if c := next.Checkpoint; c != nil && c != prev.Doc.Checkpoint {
		if mark = markOf(c.Value); mark.tooLarge() {
			m.count("checkpoints refused")
			return cell{}, fmt.Errorf("swap %s: %w: too large", id, lease.ErrRefused)
		}
	}

	if next.ParkedAt.After(r.doc.ParkedAt) {
		r.parkings, r.parkedAt, p.lookedAt = append(r.parkings, p), m.served, 0
	}
	m.judge(r, next, mark, p)
	m.judgeRecord(r, next, p)
	acquired := next.Lock.Token != r.doc.Lock.Token
	r.doc, r.mark, r.updated = next, mark, m.now()
	r.doc.Checkpoint, r.doc.Acts = nil, r.acts // a decision reads the acts, and no checkpoint
	r.rev++
	r.states = append(r.states, state{next.Lock, mark, next.NextAttemptAt, m.since(), p})
	c := m.load(id)
	if c.Doc.Checkpoint = next.Checkpoint; acquired {
		c.Rev = revision{r.rev, m.given(id)}
	}
	return c, nil
}

// trust returns the latest time, by the workers' clocks, until which the holder of
// l may rely on it.
func (m *model) trust(l lease.Lease) time.Time { return m.local(l.ExpiresAt).Add(-m.policy.Margin()) }

// result returns the result of the run with that token.
func result(id string, token int64) string { return fmt.Sprintf("%s by %d", id, token) }

// alias returns the name of a task without random parts: the task that replaces or
// continues a run contains the run's owner, which is random.
func alias(t taskqueue.Task, by *caller) string {
	for _, what := range []string{"replace", "continue"} {
		if by != nil && t.Name == taskqueue.Name(what, t.AnalysisID, by.owner) {
			return what + " " + by.name
		}
	}
	return t.Name
}

// book adds a task, unless its name is taken.
func (m *model) book(t taskqueue.Task, by *caller) (made *task) {
	now := time.Now().Add(m.queueSkew)
	for _, old := range m.tasks {
		if free := old.done && !now.Before(old.freed); old.Name == t.Name && !free {
			return nil
		}
	}
	made = &task{Task: t, alias: alias(t, by)}
	m.tasks = append(m.tasks, made)
	m.count("deliveries booked")
	m.note("queue: %s booked for %s in %v", made.alias, t.AnalysisID, max(0, t.At.Sub(now)))
	if m.onBooking != nil {
		m.onBooking(made)
	}
	return made
}

// unanswered is the age of a delivery from which the queue's client reports its task as absent.
const unanswered = 30 * time.Second

// find serves a question for a task.
func (m *model) find(name string) taskqueue.Presence {
	switch t := m.taskNamed(name); {
	case t == nil || t.done || t.inFlight > 0 && m.now().Sub(t.tried) > unanswered:
		return taskqueue.Absent
	case t.inFlight > 0:
		return taskqueue.Underway
	}
	return taskqueue.Waiting
}

func (m *model) taskNamed(name string) *task {
	for _, t := range m.tasks {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// pending counts the tasks of an analysis, or of all, other than one.
func (m *model) pending(id string, but *task) (n int) {
	for _, t := range m.tasks {
		if t.done || t == but {
			continue
		}
		if id == "" || t.AnalysisID == id {
			n++
		}
	}
	return n
}

// orphaned reports whether recovery must find the analysis. It does not use the
// product's function, which is under test.
func (m *model) orphaned(r *record) bool {
	now, l := m.now(), r.doc.Lock
	late := func(t time.Time) bool { return now.Sub(t) >= m.policy.TTL }
	open := r.doc.Status == analysislock.Queued || r.doc.Status == analysislock.Processing
	free := l.Owner == "" || !now.Before(l.ExpiresAt)
	return open && r.doc.ParkedAt.IsZero() && free && late(r.updated) && late(r.doc.NextAttemptAt)
}

// orphans returns readings of all analyses that recovery must find, oldest first.
func (m *model) orphans() (found []cell) {
	for id, r := range m.records {
		if m.orphaned(r) {
			c := m.load(id)
			c.Doc.UpdatedAt, c.Asked = r.updated, time.Now()
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b cell) int {
		return cmp.Or(a.Doc.UpdatedAt.Compare(b.Doc.UpdatedAt), cmp.Compare(a.Doc.ID, b.Doc.ID))
	})
	return found
}

type callerKey struct{}

// callerOf returns the caller of the store or the queue.
func callerOf(ctx context.Context) *caller {
	p, _ := ctx.Value(callerKey{}).(*caller)
	return p
}

func (p *caller) context(ctx context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, p)
}

// operate does an operator's command, but for its booking.
func (p *caller) operate(l *analysislock.Locks) (err error) {
	ctx := p.context(context.Background())
	switch p.operates {
	case Unlock:
		_, err = l.Unlock(ctx, p.analysis, p.name, nil, p.books)
	case Requeue:
		_, err = l.Requeue(ctx, p.analysis, p.name, nil, p.fresh, p.books)
	case Resolve:
		_, err = l.Resolve(ctx, p.analysis, p.name, p.seen, "charge", p.answer, p.books)
	case Cancel:
		_, err = l.Cancel(ctx, p.analysis, p.name, nil)
	}
	return err
}

// client is the store and the queue of a worker or of an operator: a lease.Store, a
// delivery.Queue and a delivery.OrphanFinder.
type client struct {
	*model
	send func(ctx context.Context, c *call) reply // serves the call, or lets it fail
}

func (c *client) call(ctx context.Context, k *call) reply {
	k.by, k.asked = callerOf(ctx), time.Now()
	if err := ctx.Err(); err != nil { // nothing is sent
		return reply{err: err}
	}
	return c.send(ctx, k)
}

func (c *client) Load(ctx context.Context, id string, _ lease.Want) (cell, error) {
	r := c.call(ctx, &call{kind: load, id: id})
	return r.cell, r.err
}

// Swap takes the owner of a delivery from its first write.
func (c *client) Swap(ctx context.Context, id string, prev cell, next analysis) (cell, error) {
	c.locked(func() {
		p := callerOf(ctx)
		if first := p.operates == "" && p.owner == ""; first && next.Lock.Token != prev.Doc.Lock.Token {
			p.owner = cmp.Or(next.Lock.Owner, next.Lock.FinishedBy)
			c.owners[p.owner] = p
		}
	})
	r := c.call(ctx, &call{kind: swap, id: id, prev: prev, next: next})
	return r.cell, r.err
}

func (c *client) Book(ctx context.Context, t taskqueue.Task) (already bool, err error) {
	r := c.call(ctx, &call{kind: book, id: t.AnalysisID, task: t})
	return r.already, r.err
}

func (c *client) Find(ctx context.Context, name string, _ time.Time) (taskqueue.Presence, error) {
	r := c.call(ctx, &call{kind: find, task: taskqueue.Task{Name: name}})
	return r.found, r.err
}

func (c *client) Orphaned(ctx context.Context, _ int) ([]cell, bool, error) {
	r := c.call(ctx, &call{kind: list})
	return r.orphans, false, r.err
}

func (c *client) MarkDue(ctx context.Context, read cell, task func(time.Time) string) (string, error) {
	return c.ledger().MarkDue(ctx, read, task)
}

// ledger returns the locks of this client.
func (c *client) ledger() *analysislock.Locks {
	l, err := analysislock.New(c, c.policy, c.maxRun, c.work)
	if err != nil {
		panic(err)
	}
	if c.keySlots > 0 {
		l.Keys = &analysislock.Keys{Store: keyClient{c}, Parked: c.Parked}
		l.Keys.Limit = func(string) int { return c.keySlots }
	}
	return l
}

// work returns the work that was read with the acquisition, or reads it.
func (c *client) work(ctx context.Context, holding cell) (analysislock.Work, error) {
	id, rev := holding.Doc.ID, holding.Rev.(revision)
	if rev.work == nil {
		r := c.call(ctx, &call{kind: readWork, id: id})
		if r.err != nil {
			return analysislock.Work{}, errors.Join(lease.ErrUnavailable, r.err)
		}
		rev = r.cell.Rev.(revision)
	}
	return rev.work.work(id), nil
}

// start starts a worker process.
func (c *client) start(name string, analyze orchestrator.AnalyzerFunc) *instance {
	i := &instance{name: name, analyze: analyze, begun: c.begun, dead: make(chan struct{})}
	i.work, i.stop = context.WithCancelCause(context.Background())
	i.runner = &delivery.Runner{
		Locks: c.ledger(), Queue: c, Orphans: c,
		Instance: name, RunTimeout: c.runTimeout, CheckpointInterval: c.interval, StallTimeout: c.stall,
		RetryMin: c.retryMin, RetryMax: c.retryMax,
		Log: slog.New(slog.DiscardHandler),
	}
	if i.runner.HoldKeys = c.hold; c.keySlots > 0 {
		i.runner.Keys = keyLedger{c.ledger(), c}
	}
	if c.places > 0 {
		i.places = delivery.NewPlaces(c.places)
	}
	return i
}

// deliver serves one delivery, or does not because the worker is full. The context of all the worker's calls
// for it contains p.
func (i *instance) deliver(p *caller) delivery.Result {
	d := delivery.Delivery{AnalysisID: p.analysis, Task: p.task.Name, Analyzer: i.analyze}
	if i.places != nil {
		place, free := i.places.Enter()
		if p.busy = !free; p.busy {
			return delivery.Result{Reason: delivery.NotClaimed}
		}
		defer place.Leave()
		d.Place, p.entered = place, time.Since(i.begun)
	}
	return i.runner.Deliver(p.context(i.work), d)
}
