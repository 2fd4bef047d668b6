package browser

import (
	"net"
	"sync"
	"testing"
)

// link is a proxy in front of a server. A test can cut and stall its connections.
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

// restore accepts connections again, at the same address.
func (k *link) restore() {
	k.t.Helper()
	l := listen(k.t, k.address)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.l, k.address = l, l.Addr().String()
	k.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // cut was called
			}
			server, err := net.Dial("tcp", k.to)
			if err != nil {
				_ = client.Close()
				continue
			}
			k.mu.Lock()
			k.conns = append(k.conns, client, server)
			k.mu.Unlock()
			k.running.Go(func() { k.carry(client, server) })
			k.running.Go(func() { k.carry(server, client) })
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

// cut closes all connections and refuses new ones.
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
