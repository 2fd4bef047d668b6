package main

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
)

// accept listens, and hands over the connections one after another. At the end
// of the test it closes them all.
func accept(t testing.TB, handle func(net.Conn)) (host string) {
	t.Helper()
	l := listen(t, "127.0.0.1:0")
	var conns []net.Conn
	var done sync.WaitGroup
	done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			conns = append(conns, conn)
			handle(conn)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		done.Wait()
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	return l.Addr().String()
}

// dark is a Firestore that accepts connections and never answers. asked is
// closed when the first has come.
func dark(t testing.TB) (host string, asked <-chan struct{}) {
	t.Helper()
	first := make(chan struct{})
	come := sync.OnceFunc(func() { close(first) })
	return accept(t, func(net.Conn) { come() }), first
}

// curtain stands between a worker and a Firestore, and can be drawn: from then
// on connections stay open and nothing comes through.
type curtain struct {
	host   string
	awaits []byte
	kept   chan struct{} // closed when awaits did not come through
	close  func()

	mu    sync.Mutex
	drawn bool
}

func newCurtain(t testing.TB, firestore, awaits string) *curtain {
	t.Helper()
	c := &curtain{awaits: []byte(awaits), kept: make(chan struct{})}
	c.close = sync.OnceFunc(func() { close(c.kept) })
	var conns []net.Conn
	var done sync.WaitGroup
	t.Cleanup(func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
		done.Wait()
	})
	c.host = accept(t, func(from net.Conn) {
		to, err := net.Dial("tcp", firestore)
		if err != nil {
			t.Error(err)
			return
		}
		conns = append(conns, to)
		done.Go(func() { _, _ = io.Copy(through{c, to}, from) })
		done.Go(func() { _, _ = io.Copy(through{c, from}, to) })
	})
	return c
}

func (c *curtain) draw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drawn = true
}

// through is one direction.
type through struct {
	*curtain
	to io.Writer
}

func (w through) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.drawn {
		return w.to.Write(b)
	}
	if bytes.Contains(b, w.awaits) {
		w.close()
	}
	return len(b), nil
}
