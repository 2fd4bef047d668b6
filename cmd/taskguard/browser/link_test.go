package browser

import (
	"net"
	"sync"
	"testing"
)

// link is the only connection to a server. It can be cut, and it can stall.
type link struct {
	t       *testing.T
	to      string
	address string

	mu      sync.Mutex
	l       net.Listener
	conns   []net.Conn
	running sync.WaitGroup
	flow    sync.RWMutex // locked: it stalls
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	k := &link{t: t, to: to, address: "127.0.0.1:0"}
	k.restore()
	t.Cleanup(k.cut)
	return k
}

// restore connects again, at the same address.
func (k *link) restore() {
	k.t.Helper()
	l := listen(k.t, k.address)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.l, k.address = l, l.Addr().String()
	k.running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return // it is cut
			}
			far, err := net.Dial("tcp", k.to)
			if err != nil {
				_ = near.Close()
				continue
			}
			k.mu.Lock()
			k.conns = append(k.conns, near, far)
			k.mu.Unlock()
			k.running.Go(func() { k.carry(near, far) })
			k.running.Go(func() { k.carry(far, near) })
		}
	})
}

// carry copies until either connection is closed.
func (k *link) carry(from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		k.flow.RLock()
		_, failed := to.Write(buffer[:n])
		k.flow.RUnlock()
		if err != nil || failed != nil {
			_ = to.Close()
			return
		}
	}
}

// cut ends all connections and refuses others.
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
