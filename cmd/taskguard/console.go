package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"

	"taskguard/cmd/cloudrun"
	"taskguard/repo"
	"taskguard/worker/console"
	"taskguard/worker/taskauth"
)

// consolePort is the console's where nothing names another.
const consolePort = 8590

// maxListed bounds what the console lists, as each analysis is read every few seconds.
const maxListed = 200

// consoleFlags are those of `taskguard console`.
type consoleFlags struct {
	port     int
	listen   string
	write    bool
	limit    int
	audience string
	keys     string // where the proxy's are; empty: Google's page
}

// showConsole serves the page for operators until Ctrl-C.
func showConsole(ctx context.Context, c *call) (err error) {
	var f consoleFlags
	c.flags.IntVar(&f.port, "port", consolePort, "the `port`; 0: any free one. With --listen and without --port it is PORT's, as on Cloud Run")
	c.flags.StringVar(&f.listen, "listen", "127.0.0.1", "the IP `address` to listen on. Any but a loopback one needs --iap-audience; without that, every user of this machine sees all of it, inputs and results too")
	c.flags.BoolVar(&f.write, "write", false, "allow unlock and requeue. Every user of this machine then acts in your name, unless --iap-audience is set")
	c.flags.IntVar(&f.limit, "limit", console.DefaultLimit, "`how many` analyses are listed, those updated last, besides up to 50 stuck ones. While a page is open and visible, Firestore bills a read for each of them every 4 seconds")
	c.flags.StringVar(&f.audience, "iap-audience", "", "let only those in whom Identity-Aware Proxy has signed for this `audience`, such as /projects/NUMBER/locations/REGION/services/NAME")
	if _, err := c.parse(0, 0); err != nil {
		return err
	}
	address, err := f.address(c)
	if err != nil {
		return err
	}
	f.keys = c.value("TASK_JWKS_URL")
	log := c.consoleLog()
	policy, err := c.lockPolicy()
	if err != nil {
		return err
	}
	cl, err := c.connect(ctx, mayQueue, repo.Options{Policy: policy}) // without a log: each poll would report the same unreadable lock
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	page, beside, err := f.page(ctx, cl, log)
	if err != nil {
		return err
	}
	l, err := listen("the console", address)
	if err != nil {
		return err
	}
	printTo(c.err, "the console: http://%s/ (Ctrl-C ends it)\n", l.Addr())
	return serveConsole(ctx, cl, page, l, beside...)
}

// address is where f wants the console to listen: on the loopback interface, or
// behind the identity proxy.
func (f *consoleFlags) address(c *call) (string, error) {
	set := map[string]bool{}
	c.flags.Visit(func(f *flag.Flag) { set[f.Name] = true })
	ip, err := netip.ParseAddr(cmp.Or(map[string]string{"localhost": "127.0.0.1"}[f.listen], f.listen))
	port := c.value("PORT")
	switch {
	case err != nil:
		return "", usageError(fmt.Sprintf("--listen %q: want an IP address such as 127.0.0.1 or 0.0.0.0", f.listen))
	case set["iap-audience"] && f.audience == "":
		return "", usageError("--iap-audience is empty")
	case !ip.IsLoopback() && f.audience == "":
		return "", usageError(fmt.Sprintf("--listen %s is reached from other machines: it needs --iap-audience and the identity proxy in front", f.listen))
	case f.limit < 1 || f.limit > maxListed:
		return "", usageError(fmt.Sprintf("--limit %d: want 1 to %d", f.limit, maxListed))
	case set["listen"] && !set["port"] && port != "":
		if f.port, err = strconv.Atoi(port); err != nil || f.port < 0 || f.port > 65535 {
			return "", environmentError{fmt.Errorf("PORT: %q is not a port", port)}
		}
	case f.port < 0 || f.port > 65535:
		return "", usageError(fmt.Sprintf("--port %d: want 0 to 65535", f.port))
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(f.port)), nil
}

// page is what is served as f wants it, and what must run beside it.
func (f *consoleFlags) page(ctx context.Context, cl *client, log *slog.Logger) (o console.Options, beside []func(context.Context), err error) {
	o = console.Options{Limit: f.limit, Place: cl.place.String(), Identity: console.Everybody(operator()), Books: cl.queue != nil, Log: log}
	if f.write {
		o.Operator = changes{cl, log}
	}
	if f.audience == "" {
		return o, nil, nil
	}
	proxy, err := taskauth.NewIAP(taskauth.IAPOptions{Audience: f.audience, KeysURL: f.keys, Log: log})
	if err != nil {
		return o, nil, usageError("--iap-audience: " + err.Error())
	}
	o.Identity, o.AnyHost = behindProxy{proxy}, true
	return o, []func(context.Context){proxy.Run}, nil
}

// consoleLog is for people, unless LOG_FORMAT asks for Cloud Logging's JSON.
func (c *call) consoleLog() *slog.Logger {
	return cloudrun.NewLogger(c.err, cmp.Or(c.value("LOG_FORMAT"), "text"), slog.LevelInfo)
}

// serveConsole serves the console of what cl has on l until ctx ends.
func serveConsole(ctx context.Context, cl *client, o console.Options, l net.Listener, beside ...func(context.Context)) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	page := console.NewServer(work, watched{cl}, o)
	return cloudrun.Service{
		Handler: page, Limits: cloudrun.DefaultLimits(), Background: beside, Stop: stop,
		Drain: func(ctx context.Context) { page.Drain(ctx) }, Log: o.Log,
	}.Serve(ctx, l)
}

// String is for the console's head.
func (p place) String() string {
	return fmt.Sprintf("%s / %s / %s", p.project, cmp.Or(p.database, "(default)"), cmp.Or(p.collection, "analyses"))
}

// behindProxy is who the identity proxy says that asks.
type behindProxy struct{ *taskauth.IAP }

// Identify implements console.Identity.
func (p behindProxy) Identify(r *http.Request) (who string, err error) { return p.Check(r) }
