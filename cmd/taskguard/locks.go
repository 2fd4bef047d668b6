package main

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"

	"taskguard/cmd/doclock/service"
	"taskguard/repo"
	"taskguard/worker/console"
)

// serveLocks serves the document lock on the same Firestore, in this process, with
// sessions that end with it. The function that it returns ends that.
func (l *locality) serveLocks(ctx context.Context, address string) (stop func(), err error) {
	env := map[string]string{
		"GOOGLE_CLOUD_PROJECT": l.place.project, firestoreEmulator: l.place.emulator, "SESSION_SECRET": rand.Text() + rand.Text(),
	}
	for _, name := range []string{"DOCUMENT_LOCK_TTL", "DOCUMENT_LOCKS_COLLECTION"} {
		env[name] = l.c.value(name)
	}
	cfg, err := service.ParseConfig(func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		return nil, environmentError{err}
	}
	listener, err := listen("the document lock", address)
	if err != nil {
		return nil, err
	}
	l.page = "http://" + listener.Addr().String() + "/"
	l.show.note(plain, "the document lock, to be tried in two tabs: %s", l.page)
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := service.Serve(ctx, cfg, listener, slog.New(slog.DiscardHandler)); err != nil {
			l.show.note(bad, "the document lock ended: %v", err)
		}
	})
	return func() { cancel(); serving.Wait() }, nil
}

// serveConsole serves the console of the same Firestore, in which changes hurt
// nobody. The function that it returns ends that.
func (l *locality) serveConsole(ctx context.Context, address string) (stop func(), err error) {
	env := map[string]string{}
	for _, v := range l.variables() {
		env[v.name] = v.value
	}
	log := slog.New(slog.NewTextHandler(l.c.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	c := newCall(command{}, nil, l.c.streams, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	policy, err := c.lockPolicy()
	if err != nil {
		return nil, err
	}
	cl, err := c.connect(ctx, mayQueue, repo.Options{Policy: policy})
	if err != nil {
		return nil, err
	}
	page, _, err := (&consoleFlags{write: true, limit: console.DefaultLimit}).page(ctx, cl, log)
	if err != nil {
		return nil, errors.Join(err, cl.close())
	}
	listener, err := listen("the console", address)
	if err != nil {
		return nil, errors.Join(err, cl.close())
	}
	l.console = "http://" + listener.Addr().String() + "/"
	l.show.note(plain, "the console, with all analyses: %s", l.console)
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := errors.Join(serveConsole(ctx, cl, page, listener), cl.close()); err != nil {
			l.show.note(bad, "the console ended: %v", err)
		}
	})
	return func() { cancel(); serving.Wait() }, nil
}
