package main

import (
	"context"
	"testing"
)

func TestACallerThatHangsUpDoesNotEndTheRun(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.create(t, "y")
	p := c.start(t, "ANALYZER=exec:sleep 1")
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _, _ = p.deliver(ctx, "y")
	}()
	c.until(t, "y", "running", running)
	hangUp()
	<-gone
	c.until(t, "y", "finished", ready)
}
