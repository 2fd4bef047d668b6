package chaos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"taskguard/lease/leasetest"
)

// unitTime is how long a unit of work takes.
const unitTime = 100 * time.Millisecond

// checkpoint is what a run reports: the last unit that it has done, and its token.
type checkpoint struct {
	Unit  int   `json:"unit"`
	Token int64 `json:"token"`
}

// job is the part of a job that the program uses.
type job struct {
	Analysis   string     `json:"analysis_id"`
	Token      int64      `json:"lock_token"`
	Checkpoint checkpoint `json:"checkpoint"`
}

// order is a line from the analyzer to the program: a unit to do, or the result.
type order struct {
	Unit   int              `json:"unit,omitempty"`
	Of     int              `json:"of,omitempty"` // units of the analysis
	Result map[string]int64 `json:"result,omitempty"`
}

// entry is a line of the journal: a unit that was done.
type entry struct {
	Analysis string
	Token    int64
	Unit     int
}

// run is one run of an analysis, as the analyzer sees it.
type run struct {
	analysis     string
	token        int64
	worker       int
	resumed      checkpoint // that it was given
	due          time.Time  // when it is to end
	began, ended time.Time  // ended is zero while it is live
	answered     bool       // and its program had not ended
}

// live reports whether the program of r is to continue. The caller holds the mutex.
func (r *run) live() bool { return r.ended.IsZero() && time.Now().Before(r.due) }

// matching returns copies of the runs that match, by token.
func (c *chaos) matching(matches func(*run) bool) (all []run) {
	c.locked(func() {
		for _, r := range c.runs {
			if matches(r) {
				all = append(all, *r)
			}
		}
	})
	slices.SortStableFunc(all, func(a, b run) int { return int(a.token - b.token) })
	return all
}

// of returns the runs of an analysis so far.
func (c *chaos) of(id string) []run {
	return c.matching(func(r *run) bool { return r.analysis == id })
}

// prolong makes a live run continue until its program has ended, at most for that
// long. It reports false if the run has ended.
func (c *chaos) prolong(victim run, most time.Duration) (live bool) {
	c.locked(func() {
		for _, r := range c.runs {
			same := r.analysis == victim.analysis && r.token == victim.token
			if same && r.live() {
				r.due, live = time.Now().Add(most), true
			}
		}
	})
	return live
}

// units returns how many units of work an analysis has. They take at least two
// RUN_TIMEOUTs for one analysis of ten, longer than a TTL for half of the others, and less
// for the rest.
func (c *chaos) units(id string) int {
	r := c.random(id)
	takes := between(r, unitTime, c.ttl/3)
	switch last := id[len(id)-1:]; {
	case last == "0":
		takes = between(r, c.runTimeout*2, c.runTimeout*3)
	case last == "3" || last == "6" || last == "9", r.IntN(3) == 0:
		takes = between(r, c.ttl*5/4, c.ttl*5/2)
	}
	return int(takes / unitTime)
}

// ServeHTTP is the analyzer, which sets the pace of the programs: it answers a program with a line
// for each unit, and with the run's token as its result if the run succeeds. One run of eight
// fails after half of the units that are left. The path is the number of the worker. It serves
// charges too.
func (c *chaos) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var got job
	body, err := io.ReadAll(r.Body) // read in full, or the end of its connection would not be noticed
	number, what, _ := strings.Cut(r.URL.Path[1:], "/")
	worker, noWorker := strconv.Atoi(number)
	if err = errors.Join(err, noWorker, json.Unmarshal(body, &got)); err != nil {
		c.check(err)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if what == "charge" {
		c.charge(w, got)
		return
	}

	this := &run{analysis: got.Analysis, token: got.Token, worker: worker, resumed: got.Checkpoint, began: time.Now()}
	unit, all := got.Checkpoint.Unit, c.units(got.Analysis)
	takes, succeeds := time.Duration(all-unit)*unitTime, true
	if c.random(fmt.Sprint(got.Analysis, got.Token)).IntN(8) == 0 {
		takes, succeeds = takes/2, false
	}
	c.locked(func() {
		this.due = this.began.Add(takes)
		c.runs = append(c.runs, this)
	})

	lines := json.NewEncoder(w)
	for more := true; more; {
		pause(r.Context(), unitTime/10)
		c.locked(func() { more = this.live() && r.Context().Err() == nil })
		for unit < all && time.Since(this.began) >= time.Duration(unit+1-got.Checkpoint.Unit)*unitTime {
			unit++
			_ = lines.Encode(order{Unit: unit, Of: all}) // a program that has ended does no unit
			_ = http.NewResponseController(w).Flush()
		}
	}
	c.locked(func() { this.ended, this.answered = time.Now(), r.Context().Err() == nil })
	if succeeds {
		_ = lines.Encode(order{Result: map[string]int64{"token": got.Token}})
	}
}

// charge charges at the provider, which knows no keys. It may take longer than the TTL, also if the
// program has ended. For four analyses of ten the first reply is lost, to a charge that was made or
// not.
func (c *chaos) charge(w http.ResponseWriter, p job) {
	random := c.random(fmt.Sprint("charge ", p.Analysis, p.Token))
	takes := between(random, 0, c.ttl/4)
	if random.IntN(8) == 0 {
		takes = c.ttl * 5 / 4
	}
	time.Sleep(takes)

	digit, lost := p.Analysis[len(p.Analysis)-1], false
	c.locked(func() {
		lost = digit >= '6' && !c.charged[p.Analysis]
		c.charged[p.Analysis] = true
		if !lost || digit >= '8' {
			c.charges[p.Analysis]++
		}
	})
	if lost {
		c.add(leasetest.ReplyLost.At("charge"))
		w.WriteHeader(http.StatusBadGateway)
	}
}

// program is the analyzer that a worker runs, in a process of its own.
type program struct {
	job
	journal, reports *os.File
	replies          *json.Decoder
	order            // the last
}

// analyze charges, and does the units that the analyzer at url orders. SIGTERM makes it finish
// one more unit, report it and exit.
func analyze(url, journal string) (code int, err error) {
	stop, orders := make(chan os.Signal, 1), make(chan order)
	signal.Notify(stop, syscall.SIGTERM)
	text, err := io.ReadAll(os.Stdin)
	fd, badFD := strconv.Atoi(os.Getenv("REPORT_FD"))
	replies, noReplies := strconv.Atoi(os.Getenv("REPLY_FD"))
	p := program{reports: os.NewFile(uintptr(fd), "reports")}
	p.replies = json.NewDecoder(os.NewFile(uintptr(replies), "replies"))
	if err = errors.Join(err, badFD, noReplies, json.Unmarshal(text, &p.job)); err != nil {
		return 1, err
	}
	if err := p.charge(url+"/charge", text); err != nil {
		return 1, err
	}

	p.Unit = p.Checkpoint.Unit
	if p.journal, err = os.OpenFile(journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return 1, err
	}
	response, err := http.Post(url, "application/json", bytes.NewReader(text))
	if err != nil {
		return 1, err
	}
	defer func() { _ = response.Body.Close() }()
	go func() {
		defer close(orders)
		for lines := json.NewDecoder(response.Body); ; {
			var next order
			if lines.Decode(&next) != nil {
				return
			}
			orders <- next
		}
	}()

	for {
		select {
		case <-stop:
			if p.Unit < p.Of {
				err = p.do(order{Unit: p.Unit + 1, Of: p.Of})
			}
			return 128 + int(syscall.SIGTERM), err
		case next, more := <-orders:
			switch {
			case !more:
				return 1, errors.New("no result")
			case next.Result != nil:
				return 0, json.NewEncoder(os.Stdout).Encode(next.Result)
			}
			if err := p.do(next); err != nil {
				return 1, err
			}
		}
	}
}

// do writes a unit to the journal, and reports it.
func (p *program) do(next order) error {
	p.order = next
	if err := json.NewEncoder(p.journal).Encode(entry{p.Analysis, p.Token, next.Unit}); err != nil {
		return err
	}
	_, err := fmt.Fprintf(p.reports, `{"progress":%g,"checkpoint":{"unit":%d,"token":%d}}`+"\n",
		float64(next.Unit)/float64(next.Of), next.Unit, p.Token)
	return err
}

// charge charges once, as a marked act.
func (p *program) charge(url string, request []byte) error {
	state, err := p.mark(`"ack":1`)
	if err != nil || state == "done" {
		return err
	}
	if state == "uncertain" {
		return errors.New("an earlier attempt may have charged")
	}
	if err := post(url, request); err != nil {
		return err
	}
	_, err = p.mark(`"done":true,"ack":2`)
	return err
}

// post sends a request to the test.
func post(url string, request []byte) error {
	response, err := http.Post(url, "application/json", bytes.NewReader(request))
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusOK {
		return errors.Join(err, errors.New(url+": "+response.Status))
	}
	return nil
}

// mark writes a line about the act, and returns the reply to it.
func (p *program) mark(what string) (state string, err error) {
	if _, err := fmt.Fprintln(p.reports, `{"effect":"charge",`+what+`}`); err != nil {
		return "", err
	}
	var reply struct {
		Error string
		Act   struct{ State string } `json:"effect"`
	}
	if err := p.replies.Decode(&reply); err != nil {
		return "", err
	}
	if reply.Error != "" {
		return "", errors.New(reply.Error)
	}
	return reply.Act.State, nil
}
