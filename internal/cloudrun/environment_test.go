package cloudrun

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestAWrongValueIsAProblemAndTheDefaultIsUsed(t *testing.T) {
	e := environment("ONE=c", "INTEGER=9", "DURATION=-1s", "ADDRESS=http://h:1", "NAME=a~b!")
	if e.OneOf("ONE", "a", "b") != "a" || e.Integer("INTEGER", 2, 1, 8) != 2 || e.Duration("DURATION", time.Hour) != time.Hour || e.Address("ADDRESS") != "http://h:1" {
		t.Error("another value")
	}
	if lines := strings.Count(e.Err().Error(), "\n") + 1; lines != 4 || e.Name("NAME", "") != "a~b!" || strings.Count(e.Err().Error(), "\n") != 3 {
		t.Errorf("%v", e.Err())
	}
	if unset := NewEnvironment(func(string) (string, bool) { return "x", false }); unset.Text("TEXT", "default") != "default" {
		t.Error("an unset variable has a value")
	}
}

type failing struct{ closed bool }

func (*failing) Write([]byte) (int, error) { return 0, errors.New("full") }
func (*failing) Read([]byte) (int, error)  { return 0, io.EOF }
func (f *failing) Close() error            { f.closed = true; return nil }

func TestAFailureIsReturnedOrLogged(t *testing.T) {
	body := &failing{}
	if err := NewLogger(body, "json", 0).Handler().Handle(t.Context(), slog.Record{}); err == nil {
		t.Error("a line that is not written is no error")
	}
	a := account{find: func() (http.RoundTripper, error) { return nil, errors.New("none") }}
	for _, b := range []io.ReadCloser{nil, body} {
		if _, err := a.RoundTrip(&http.Request{Body: b}); err == nil || (b != nil) != body.closed { //nolint:bodyclose // there is no response
			t.Errorf("%v, closed %v", err, body.closed)
		}
	}
	var log bytes.Buffer
	until, end := context.WithCancel(t.Context())
	end()
	s := &sink{until: until, log: NewLogger(&log, "json", 0), signal: "traces"}
	var exporting context.Context
	s.export(t.Context(), func(ctx context.Context) error { exporting = ctx; return errors.New("gone") })
	if !strings.Contains(log.String(), errNoTime.Error()) || exporting.Err() == nil {
		t.Errorf("log: %s", &log)
	}
	var lines bytes.Buffer
	r := slog.NewRecord(time.Now(), 0, "m", 0)
	r.Add("a", 1, "b", 2, "c", 3, "d", 4, "e", 5, "f", 6, "g", 7, "h", 8)
	r.Add("i", 9) // there is room for the trace's fields in what copies of r share
	h := NewLogger(&lines, "json", 0).Handler()
	if err := errors.Join(h.Handle(traced(t, "X-Cloud-Trace-Context: "+someTrace), r), h.Handle(traced(t, "X-Cloud-Trace-Context: "+someTrace), r)); err != nil || strings.Contains(lines.String(), "BUG") {
		t.Errorf("a record that two handlers get: %s, %v", &lines, err)
	}
}
