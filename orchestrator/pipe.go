//go:build linux || darwin

package orchestrator

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"time"
)

// pipe reads what a program writes. It can be closed while another process still holds
// the writing end. Only one goroutine may call its methods.
type pipe struct {
	file *os.File
	take func([]byte)
	done chan struct{} // closed when the reading goroutine has ended
}

// read starts a goroutine that reads and passes the bytes to take. interrupt ends it.
func (p *pipe) read(take func([]byte)) {
	p.take, p.done = take, make(chan struct{})
	go func() {
		defer close(p.done)
		buffer := make([]byte, readBytes)
		for {
			n, err := p.file.Read(buffer)
			p.take(buffer[:n])
			if err != nil {
				return
			}
		}
	}()
}

// interrupt ends the goroutine and waits for it.
func (p *pipe) interrupt() {
	_ = p.file.SetReadDeadline(time.Unix(1, 0)) // pipes support deadlines
	<-p.done
}

// collect passes the present contents of the pipe to take, and drops later input.
func (p *pipe) collect() {
	p.interrupt()
	_ = p.file.SetReadDeadline(time.Time{})
	p.drain()
	p.read(func([]byte) {})
}

// maxPipeBytes is the largest size of a pipe that fcntl(F_SETPIPE_SZ) grants without
// privilege. It bounds what an endless writer can add while drain reads.
const maxPipeBytes = 1 << 20

// drain reads until the pipe is empty, without waiting. Read on the file itself
// cannot do that: once the deadline has passed, it returns no data at all.
func (p *pipe) drain() {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return // closed
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
			p.take(buffer[:n])
			total += n
		}
		return true // do not wait for more
	})
}

// close stops reading and closes the pipe.
func (p *pipe) close() {
	p.interrupt()
	closeAll(p.file)
}

// tail keeps the end of the bytes that are added to it.
type tail struct{ kept []byte }

func (t *tail) add(b []byte) {
	const limit = 2 * messageBytes // more than one message, because a cut may fall inside a rune
	t.kept = append(t.kept, b...)
	t.kept = slices.Delete(t.kept, 0, max(0, len(t.kept)-limit))
}

// String returns the end as a message.
func (t *tail) String() string { return legible(cutTail(string(t.kept), messageBytes)) }
