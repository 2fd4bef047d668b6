package browser

import (
	"io"
	"net"
	"sync"
	"testing"
)

// link is the only way to a server; it can be cut.
type link struct {
	t       *testing.T
	to      string
	address string

	mu      sync.Mutex
	l       net.Listener
	conns   []net.Conn
	running sync.WaitGroup
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	k := &link{t: t, to: to, address: "127.0.0.1:0"}
	k.mend()
	t.Cleanup(k.cut)
	return k
}

// mend makes the way again, at the address that it had.
func (k *link) mend() {
	k.t.Helper()
	l := listen(k.t, k.address)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.l, k.address = l, l.Addr().String()
	k.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // it is cut
			}
			k.carry(conn)
		}
	})
}

// carry connects one more.
func (k *link) carry(near net.Conn) {
	far, err := net.Dial("tcp", k.to)
	if err != nil {
		_ = near.Close()
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conns = append(k.conns, near, far)
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		k.running.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // until either is closed
			_ = way[0].Close()
		})
	}
}

// cut ends the way, and all that is under way on it.
func (k *link) cut() {
	k.mu.Lock()
	_ = k.l.Close()
	for _, c := range k.conns {
		_ = c.Close()
	}
	k.conns = nil
	k.mu.Unlock()
	k.running.Wait()
}
