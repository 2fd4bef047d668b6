package main

import (
	"io"
	"sync"
)

// output is a Writer that remembers that something did not arrive, so that a
// command does not exit 0 after output that nobody got. It is safe for
// concurrent use as far as the Writer beneath is.
type output struct {
	to io.Writer

	mu  sync.Mutex
	err error
}

// Write passes p on.
func (o *output) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
		}
	}
	return n, err
}

// lost is why something did not arrive.
func (o *output) lost() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
