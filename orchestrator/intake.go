//go:build linux || darwin

package orchestrator

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// intake reads a pipe until it is told to stop, whoever still holds its other
// end. begin, settle and end are for one goroutine.
type intake struct {
	pipe *os.File
	take func([]byte)
	done chan struct{}
}

// begin reads in a goroutine, which interrupt ends.
func (i *intake) begin() {
	i.done = make(chan struct{})
	go func() {
		defer close(i.done)
		buffer := make([]byte, readBytes)
		for {
			n, err := i.pipe.Read(buffer)
			i.take(buffer[:n])
			if err != nil {
				return
			}
		}
	}()
}

// interrupt returns when the goroutine has ended.
func (i *intake) interrupt() {
	_ = i.pipe.SetReadDeadline(time.Unix(1, 0)) // a pipe knows deadlines; without one, this would only wait for its end
	<-i.done
}

// settle gives take what is in the pipe by now, and drops what comes later.
func (i *intake) settle() {
	i.interrupt()
	_ = i.pipe.SetReadDeadline(time.Time{})
	i.drain()
	i.take = func([]byte) {}
	i.begin()
}

// maxPipeBytes is the most that a pipe holds: fcntl(F_SETPIPE_SZ) gives no more
// without privilege. It bounds what an endless writer can add while drain reads.
const maxPipeBytes = 1 << 20

// drain reads until the pipe is empty, without waiting. Read on the file itself
// cannot do that: once its deadline has passed, it returns nothing at all.
func (i *intake) drain() {
	raw, err := i.pipe.SyscallConn()
	if err != nil {
		return // closed: there is nothing to read
	}
	buffer := make([]byte, readBytes)
	_ = raw.Read(func(fd uintptr) bool {
		for total := 0; total < maxPipeBytes; {
			n, err := syscall.Read(int(fd), buffer)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if n <= 0 {
				break
			}
			i.take(buffer[:n])
			total += n
		}
		return true // empty is enough: do not wait for more
	})
}

// end stops reading and closes the pipe.
func (i *intake) end() {
	i.interrupt()
	closeAll(i.pipe)
}

// tail keeps the end of what was written to it.
type tail struct{ kept []byte }

func (t *tail) add(b []byte) {
	const most = 2 * messageBytes // what is cut for a message may begin inside of a rune
	b = b[max(0, len(b)-most):]
	if over := len(t.kept) + len(b) - most; over > 0 {
		t.kept = t.kept[:copy(t.kept, t.kept[over:])]
	}
	t.kept = append(t.kept, b...)
}

// String is the last of it, fit for a message.
func (t *tail) String() string { return legible(cutTail(string(t.kept), messageBytes)) }
