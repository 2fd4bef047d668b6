// Package doclockservice runs the document lock as a process: environment → Config → wire
// → serve. It is all of cmd/doclock, and part of taskguard local.
package doclockservice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"taskguard/internal/cloudrun"
	"taskguard/internal/doclock"
	"taskguard/internal/taskauth"
	"taskguard/internal/telemetry"
	"taskguard/lease/documentlock"
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
	w, err := wire(ctx, cfg, log)
	if err != nil {
		return errors.Join(err, w.close(), l.Close())
	}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	server := doclock.NewServer(work, w.locks, w.feed, w.sessions, doclock.Options{
		Finder: w.rooms, Tasks: w.tasks, Pusher: cfg.Pusher, Origins: cfg.Origins, SessionLocks: cfg.Locks, SessionSockets: cfg.Sockets, Tracer: w.exports.Tracers.Tracer(telemetry.Scope), Log: log,
	})
	w.background = append(w.background, w.feed.Run, func(ctx context.Context) {
		server.AwaitReady(ctx, func(ctx context.Context) error { return cloudrun.Located(cfg.Emulator, w.rooms.Ping(ctx)) })
	})
	if cfg.Sweep > 0 {
		w.background = append(w.background, func(ctx context.Context) { server.SweepEvery(ctx, cfg.Sweep) })
	}
	service := cloudrun.Service{
		Handler: server, Limits: cfg.Limits, Background: w.background, Stop: stop, Flush: w.exports.Stop, Log: log,
		Drain: func(ctx context.Context) {
			if left := server.Drain(ctx); left > 0 {
				log.WarnContext(ctx, "sockets and requests are cut off", "open", left)
			}
		},
	}
	return errors.Join(service.Serve(ctx, l, cfg.attrs()...), w.close())
}

// wired holds the parts of the service.
type wired struct {
	exports    *cloudrun.Exports
	rooms      *repo.Rooms
	locks      *documentlock.Locks
	feed       *documentlock.Feed
	sessions   doclock.Sessions
	tasks      doclock.Authenticator   // nil: a proxy in front checks
	background []func(context.Context) // run while the service serves
}

// wire opens the parts that cfg names, without a call to any. Close the result, also
// after an error.
func wire(ctx context.Context, cfg Config, log *slog.Logger) (w wired, err error) {
	w.rooms, err = repo.OpenRooms(ctx, cfg.Project, repo.Options{Database: cfg.Database, Collection: cfg.Collection, Emulator: cfg.Emulator, Log: log})
	if err != nil {
		return w, err
	}
	if w.locks, err = documentlock.New(w.rooms, cfg.TTL); err != nil {
		return w, fmt.Errorf("DOCUMENT_LOCK_TTL: %w", err)
	}
	w.feed = documentlock.NewFeed(w.locks, w.rooms, log)
	verifier, ours, err := cfg.Tasks.Verifier(ctx, log)
	if err != nil {
		return w, err
	}
	if ours {
		w.tasks, w.background = verifier, append(w.background, verifier.Run)
	}
	switch cfg.Sessions {
	case authCookie, authApplication:
		var cookies *doclock.Cookies
		if cookies, err = doclock.NewCookies([]byte(cfg.Secret)); err == nil {
			cookies.Application = cfg.Sessions == authApplication
			w.sessions = cookies
		}
	case authOIDC:
		cfg.Token.Log = log
		var people *taskauth.Verifier
		if people, err = taskauth.New(cfg.Token); err == nil {
			w.sessions, w.background = doclock.Accounts{Verifier: people}, append(w.background, people.Run)
		}
	default:
		err = fmt.Errorf("SESSION_AUTH: %q is not one of %s, %s, %s", cfg.Sessions, authCookie, authApplication, authOIDC)
	}
	if err == nil { // last of all, so that only the service has to stop it
		w.exports, err = cfg.Telemetry.Export(ctx, log)
	}
	return w, err
}

func (w wired) close() error {
	if w.rooms == nil {
		return nil
	}
	return w.rooms.Close()
}
