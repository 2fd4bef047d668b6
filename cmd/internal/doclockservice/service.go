// Package doclockservice runs the document lock as a process: it reads the environment, assembles the
// server and serves it. cmd/doclock runs only this package; taskguard local starts it too.
package doclockservice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"taskguard/cmd/internal/service"
	"taskguard/internal/env"
	"taskguard/internal/taskauth"
	"taskguard/internal/telemetry"
	"taskguard/locks/document"
	"taskguard/locks/document/server"
	"taskguard/repo"
)

// Main serves until SIGTERM or SIGINT and returns the exit code: 0, 2 for a
// configuration error, 1 for any other.
func Main(ctx context.Context, lookup func(string) (string, bool), stdout io.Writer) (int, error) {
	cfg, err := ParseConfig(lookup)
	if err != nil {
		return 2, err
	}
	return cfg.Main(ctx, stdout, func(ctx context.Context, l net.Listener, log *slog.Logger) error {
		return Serve(ctx, cfg, l, log)
	})
}

// Serve serves on l until ctx ends or l fails. Then it closes the sockets, so that
// their clients connect elsewhere, and waits up to 8 s for them and for requests in
// progress. It returns the listener's error, or that of opening its parts; the end of
// ctx is no error.
func Serve(ctx context.Context, cfg Config, l net.Listener, log *slog.Logger) error {
	defer func() { _ = l.Close() }() // where nothing was served
	rooms, err := repo.OpenRooms(ctx, cfg.Project, repo.Options{
		Database: cfg.Database, Collection: cfg.Collection, Emulator: cfg.Emulator, Log: log,
	})
	if err != nil {
		return err
	}
	running, err := assemble(ctx, cfg, rooms, log)
	if err == nil {
		err = running.Serve(ctx, l, cfg.attrs()...)
	}
	return errors.Join(err, rooms.Close())
}

// assemble returns the service that cfg describes, without a call to any of its parts.
func assemble(ctx context.Context, cfg Config, rooms *repo.Rooms, log *slog.Logger) (s service.Service, err error) {
	s.Limits, s.Log = cfg.Limits, log
	locks, err := document.New(rooms, cfg.TTL)
	if err != nil {
		return s, fmt.Errorf("DOCUMENT_LOCK_TTL: %w", err)
	}
	o := server.Options{
		Finder: rooms, Pusher: cfg.Pusher, Origins: cfg.Origins,
		SessionLocks: cfg.Locks, SessionSockets: cfg.Sockets, Log: log,
	}

	cfg.Tasks.Warn(ctx, log)
	if cfg.Tasks.Mode == "oidc" {
		cfg.Tasks.Token.Log = log
		if o.Tasks, err = taskauth.New(cfg.Tasks.Token); err != nil {
			return s, err
		}
	}
	sessions, err := cfg.identify(log)
	if err != nil {
		return s, err
	}
	exports, err := cfg.Telemetry.Export(ctx, log) // last of all, so that only the service has to stop it
	if err != nil {
		return s, err
	}
	if s.Flush = exports.Stop; exports.Tracers != nil {
		o.Tracer = exports.Tracers.Tracer(telemetry.Scope)
	}

	work, stop := context.WithCancel(context.WithoutCancel(ctx)) // of all sockets
	feed := document.NewFeed(locks, rooms, log)
	doclock := server.NewServer(work, locks, feed, sessions, o)
	s.Handler = doclock
	s.Drain = func(ctx context.Context) {
		stop()
		if left := doclock.Drain(ctx); left > 0 {
			log.WarnContext(ctx, "sockets and requests are cut off", "open", left)
		}
	}

	ping := func(ctx context.Context) error { return env.Located(cfg.Emulator, rooms.Ping(ctx)) }
	s.Background = append(s.Background, feed.Run, func(ctx context.Context) { doclock.AwaitReady(ctx, ping) })
	if cfg.Sweep > 0 {
		s.Background = append(s.Background, func(ctx context.Context) { doclock.SweepEvery(ctx, cfg.Sweep) })
	}
	return s, nil
}

// identify returns how sessions are proved.
func (c Config) identify(log *slog.Logger) (server.Sessions, error) {
	if c.Sessions == authOIDC {
		c.Token.Log = log
		people, err := taskauth.New(c.Token)
		if err != nil {
			return nil, err
		}
		return server.Accounts{Verifier: people}, nil
	}
	cookies, err := server.NewCookies([]byte(c.Secret))
	if err != nil {
		return nil, err
	}
	cookies.Application = c.Sessions == authApplication
	return cookies, nil
}
