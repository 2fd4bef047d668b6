package main

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"

	"taskguard/cmd/doclock/service"
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
	if cfg.Client, err = l.place.client(); err != nil {
		_ = listener.Close()
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
