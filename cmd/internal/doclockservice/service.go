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
	"os"
	"regexp"
	"time"

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
// progress. It returns the error of the listener or of opening a part. The end
// of ctx is no error.
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
		Authorize: cfg.Authorize, SessionLocks: cfg.Locks, SessionSockets: cfg.Sockets, Log: log,
	}

	cfg.Tasks.Warn(ctx, log)
	cfg.variables.WarnOfMisspelt(ctx, log, os.Environ())
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

	work, stop := context.WithCancel(context.WithoutCancel(ctx)) // ends all sockets
	feed := document.NewFeed(locks, rooms, log)
	doclock := server.NewServer(work, locks, feed, sessions, o)
	s.Handler = doclock
	s.Drain = func(ctx context.Context) {
		stop()
		if open := doclock.Drain(ctx); open > 0 {
			log.WarnContext(ctx, "sockets and requests are cut off", "open", open)
		}
	}

	s.Background = append(s.Background, feed.Run, func(ctx context.Context) { doclock.AwaitReady(ctx, rooms.Ping) })
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

// How sessions are proved: SESSION_AUTH.
const (
	authCookie      = "cookie"
	authApplication = "application" // cookies that only the application makes
	authOIDC        = "oidc"
)

// Config is the document lock's environment, read and checked.
type Config struct {
	service.Process
	Collection string
	TTL        time.Duration
	Sweep      time.Duration    // the interval of sweeps; 0: only Cloud Scheduler sweeps
	Sessions   string           // cookie, application or oidc
	Secret     string           // signs cookies; empty with oidc
	Token      taskauth.Options // checks people's tokens; only with oidc
	Pusher     server.Pusher    // the zero value: not enabled
	Origins    []string         // other origins whose pages may call
	Authorize  string           // the application's URL that permits a room; empty: any session may
	Locks      int              // the limit for one session
	Sockets    int              // the limit for one session
	Tasks      env.TaskAuth     // who may call POST /internal/sweep

	variables *env.Environment
}

// ParseConfig reads the environment through lookup. Its error has one line for each
// problem, which names the variable.
//
// TASK_AUTH is always required, because POST /internal/sweep is always served. Only with an
// emulator it has a default: none.
func ParseConfig(lookup func(string) (string, bool)) (Config, error) {
	e := env.NewEnvironment(lookup)
	c := Config{
		Process:    service.ReadProcess(e, "taskguard-doclock", false),
		Collection: e.Checked("DOCUMENT_LOCKS_COLLECTION", "documentLocks", repo.CheckCollection),
		TTL:        e.Duration("DOCUMENT_LOCK_TTL", document.DefaultTTL),
		Sweep:      e.DurationOrZero("SWEEP_INTERVAL", time.Minute),
		Locks:      e.Integer("LOCKS_PER_SESSION", 100, 1, 1_000_000),
		Sockets:    e.Integer("SOCKETS_PER_SESSION", 100, 1, 1_000_000),
		Authorize:  e.URL("AUTHORIZE_URL"),
		Sessions:   e.OneOf("SESSION_AUTH", authCookie, authApplication, authOIDC),
	}
	_, err := document.New(nil, c.TTL)
	e.Add(env.Named("DOCUMENT_LOCK_TTL", err))

	fallback := ""
	if c.Emulator != "" {
		fallback = "none"
	}
	c.Tasks = e.TaskAuth(c.Emulator, fallback, c.Sessions == authOIDC)
	c.sessions(e)
	c.browsers(e)
	c.variables = e
	return c, e.Err()
}

// sessions reads how sessions are proved.
func (c *Config) sessions(e *env.Environment) {
	if c.Sessions == authOIDC {
		e.Unused("belongs to SESSION_AUTH=cookie and application", "SESSION_SECRET")
		c.Token = taskauth.Options{
			AnyAccount: true, NameClaim: e.Text("SESSION_NAME_CLAIM", ""), UserClaim: e.Text("SESSION_USER_CLAIM", ""),
			Audience: e.Text("SESSION_AUDIENCE", ""), KeySource: taskauth.KeySource{KeysURL: e.KeysURL()},
		}
		e.Refuse(c.Token.Audience == "", "SESSION_AUDIENCE",
			"must be set with SESSION_AUTH=oidc, to the audience of people's tokens")
		return
	}

	e.Unused("belongs to SESSION_AUTH=oidc", "SESSION_AUDIENCE", "SESSION_NAME_CLAIM", "SESSION_USER_CLAIM")
	c.Secret = e.Text("SESSION_SECRET", "")
	e.Refuse(len(c.Secret) < server.MinSecret, "SESSION_SECRET",
		"must be set, to at least %d random bytes that every instance shares, such as `openssl rand -base64 33`; "+
			"it has %d", server.MinSecret, len(c.Secret))
}

var (
	pusherKey   = regexp.MustCompile(`^[A-Za-z0-9_-]*$`)
	origin      = regexp.MustCompile(`^https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?$`)
	channel     = regexp.MustCompile(`^[A-Za-z0-9_=@,.;-]+\{room\}[A-Za-z0-9_=@,.;-]*$`)
	otherKind   = regexp.MustCompile(`^(private|presence|encrypted)-`)
	namespace   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\\[A-Za-z_][A-Za-z0-9_]*)*$`)
	separators  = regexp.MustCompile(`[.\\]+`)
	defaultPort = regexp.MustCompile(`^(http://.*:80|https://.*:443)$`)
)

// browsers reads what pages other than this server's own need.
func (c *Config) browsers(e *env.Environment) {
	c.Origins = e.List("ALLOWED_ORIGINS")
	for _, text := range c.Origins {
		e.Refuse(!origin.MatchString(text) || defaultPort.MatchString(text), "ALLOWED_ORIGINS",
			"%q is not an origin as a browser sends it, such as https://app.example: in lower case, "+
				"other letters as xn--…, no slash after the host, no :80 with http or :443 with https", text)
	}

	c.Pusher = server.Pusher{
		Key: e.Text("PUSHER_APP_KEY", ""), Secret: e.Text("PUSHER_APP_SECRET", ""),
		Channel:   e.Text("PUSHER_CHANNEL", server.DefaultChannel),
		Namespace: separators.ReplaceAllString(e.Text("PUSHER_EVENT_NAMESPACE", ""), `\`), // Laravel Echo does the same
	}
	if c.Pusher.Key == "" {
		e.Unused("is used only with PUSHER_APP_KEY", "PUSHER_CHANNEL", "PUSHER_EVENT_NAMESPACE")
	}
	e.Refuse(!channel.MatchString(c.Pusher.Channel) || otherKind.MatchString(c.Pusher.Channel), "PUSHER_CHANNEL",
		"%q is not the name of a public channel with {room} once and not first, such as %s",
		c.Pusher.Channel, server.DefaultChannel)
	e.Refuse(c.Pusher.Namespace != "" && !namespace.MatchString(c.Pusher.Namespace), "PUSHER_EVENT_NAMESPACE",
		"%q is not a namespace such as %s", c.Pusher.Namespace, `App\Events`)

	key, secret := c.Pusher.Key, c.Pusher.Secret
	e.Refuse(key == "" && secret != "", "PUSHER_APP_KEY", "must be set with PUSHER_APP_SECRET")
	e.Refuse(key != "" && secret == "", "PUSHER_APP_SECRET",
		"must be set with PUSHER_APP_KEY, to random text such as `openssl rand -hex 20`")
	e.Refuse(!pusherKey.MatchString(key), "PUSHER_APP_KEY", "has a character that is not a letter, a digit, _ or -")
}

// attrs returns the configuration for the log.
func (c Config) attrs() []slog.Attr {
	return []slog.Attr{
		slog.String("session_auth", c.Sessions), slog.String("task_auth", c.Tasks.Mode),
		slog.String("project", c.Project), slog.String("database", c.Database),
		slog.String("collection", c.Collection), slog.String("emulator", c.Emulator),
		slog.String("lock_ttl", c.TTL.String()), slog.String("sweep_interval", c.Sweep.String()),
		slog.Bool("pusher", c.Pusher.Key != ""), slog.Any("allowed_origins", c.Origins),
		slog.Bool("authorize", c.Authorize != ""),
		slog.Int("locks_per_session", c.Locks), slog.Int("sockets_per_session", c.Sockets), c.Telemetry.Attr(),
	}
}
