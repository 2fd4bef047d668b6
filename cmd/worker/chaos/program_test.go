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
	"strconv"
	"syscall"
	"time"
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
	At       time.Time
}

// program is the analyzer that a worker runs, in a process of its own.
type program struct {
	job
	journal, reports *os.File
	replies          *json.Decoder
	order            // the last
}

// analyze does the units that the analyzer at url orders. SIGTERM makes it finish one
// more unit, report it and exit.
func analyze(url, journal string) (code int, err error) {
	stop, orders := make(chan os.Signal, 1), make(chan order)
	signal.Notify(stop, syscall.SIGTERM)
	text, err := io.ReadAll(os.Stdin)
	fd, badFD := strconv.Atoi(os.Getenv("REPORT_FD"))
	replies, noReplies := strconv.Atoi(os.Getenv("REPLY_FD"))
	p := program{reports: os.NewFile(uintptr(fd), "reports"), replies: json.NewDecoder(os.NewFile(uintptr(replies), "replies"))}
	if err = errors.Join(err, badFD, noReplies, json.Unmarshal(text, &p.job)); err != nil {
		return 1, err
	}
	if err := p.charge(url + "/charge"); err != nil {
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
	line, err := json.Marshal(entry{p.Analysis, p.Token, next.Unit, time.Now()})
	if err != nil {
		return err
	}
	if _, err := p.journal.Write(append(line, '\n')); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.reports, `{"progress":%g,"checkpoint":{"unit":%d,"token":%d}}`+"\n",
		float64(next.Unit)/float64(next.Of), next.Unit, p.Token)
	return err
}
