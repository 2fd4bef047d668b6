package service

import (
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// slowly is a way to Firestore whose replies take d once slow is set.
func slowly(t *testing.T, target string, d time.Duration, slow *atomic.Bool) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		slow.Store(false)
		_ = l.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				return
			}
			running.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
			running.Go(func() { replies(client, server, d, slow); _ = client.Close() })
		}
	})
	return l.Addr().String()
}

func replies(to io.Writer, from io.Reader, d time.Duration, slow *atomic.Bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if slow.Load() {
			time.Sleep(d)
		}
		if _, failed := to.Write(buf[:n]); failed != nil || err != nil {
			return
		}
	}
}

func TestAStopLetsARequestUnderWayEnd(t *testing.T) {
	b := backend(t)
	var slow atomic.Bool
	setenv(t, slowly(t, os.Getenv("FIRESTORE_EMULATOR_HOST"), 700*time.Millisecond, &slow))
	i := start(t, b.Project)
	c := client(t)
	if status, body := i.ask(t, c, http.MethodPost, lockPath); status != http.StatusOK {
		t.Fatal(status, body)
	}
	before := b.Server.Usage()
	slow.Store(true)
	type answer struct {
		status int
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, i.url+lockPath, http.NoBody)
		if err != nil {
			answered <- answer{err: err}
			return
		}
		resp, err := c.Do(r)
		if err != nil {
			answered <- answer{err: err}
			return
		}
		answered <- answer{status: resp.StatusCode}
		_ = resp.Body.Close()
	}()
	for end := time.Now().Add(hang); b.Server.Usage() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the heartbeat never reaches the store")
		}
	}
	i.stop() // the store's replies are on the way for longer
	if a := <-answered; a.err != nil || a.status != http.StatusOK {
		t.Errorf("a heartbeat under way at the stop: %d, %v; want its answer", a.status, a.err)
	}
}
