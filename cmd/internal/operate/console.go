package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/service"
	"taskguard/internal/taskauth"
	"taskguard/internal/telemetry"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// consolePort is the console's default port.
const consolePort = 8590

// maxListed bounds what a page of the console lists, as each analysis is read every 8 s.
const maxListed = 200

// ConsoleOptions are the flags of the console.
type ConsoleOptions struct {
	Write    bool   // allow unlock, requeue and cancel
	Limit    int    // how many analyses are listed; 0: console.DefaultLimit
	Audience string // of Identity-Aware Proxy's tokens; empty: no proxy is required
	KeysURL  string // of the proxy's keys; empty: Google's
	Log      *slog.Logger
}

// Console serves the page for operators until Ctrl-C.
func Console(ctx context.Context, c *cli.Call) (err error) {
	var o ConsoleOptions
	c.TakesKind("all, and a page for each")
	port := c.Flags.Int("port", consolePort, "the `port`; 0: any free one. With --listen and without --port it is the one of PORT, as on Cloud Run")
	host := c.Flags.String("listen", "127.0.0.1", "the IP `address` to listen on. Any but a loopback one needs --iap-audience; without that, every user of this machine sees everything, inputs and results too")
	c.Flags.BoolVar(&o.Write, "write", false, "allow unlock, requeue and cancel. Every user of this machine then acts in your name, unless --iap-audience is set")
	c.Flags.IntVar(&o.Limit, "limit", console.DefaultLimit, "`how many` analyses are on a page, in addition to up to as many of those that run, of those that wait for their next attempt, and of those that are stuck. While a page is open and visible, Firestore bills a read for each of them every 8 seconds")
	c.Flags.StringVar(&o.Audience, "iap-audience", "", "admit only users whose token Identity-Aware Proxy has signed for this `audience`, such as /projects/NUMBER/locations/REGION/services/NAME")
	if _, err := c.Parse(0, 0); err != nil {
		return err
	}
	address, err := consoleAddress(c, o, *host, *port)
	if err != nil {
		return err
	}
	o.KeysURL = c.Value("TASK_JWKS_URL")
	o.Log = telemetry.NewLogger(c.Err, cmp.Or(c.Value("LOG_FORMAT"), "text"), slog.LevelInfo)
	page, err := NewConsole(ctx, c, o)
	if err != nil {
		return err
	}
	l, err := cli.Listen("the console", address)
	if err != nil {
		return errors.Join(err, page.clients[0].close())
	}
	cli.Print(c.Err, "the console: http://%s/ (Ctrl-C ends it)\n", l.Addr())
	return page.Serve(ctx, l)
}

// consoleAddress checks the flags and returns where the console listens: on the
// loopback interface, or behind the identity proxy.
func consoleAddress(c *cli.Call, o ConsoleOptions, host string, port int) (string, error) {
	ip, err := netip.ParseAddr(cmp.Or(map[string]string{"localhost": "127.0.0.1"}[host], host))
	switch {
	case err != nil:
		return "", cli.UsageError(fmt.Sprintf("--listen %q: want an IP address such as 127.0.0.1 or 0.0.0.0", host))
	case c.Given("iap-audience") && o.Audience == "":
		return "", cli.UsageError("--iap-audience is empty")
	case !ip.IsLoopback() && o.Audience == "":
		return "", cli.UsageError(fmt.Sprintf("--listen %s is reached from other machines: it needs --iap-audience and the identity proxy in front", host))
	case o.Limit < 1 || o.Limit > maxListed:
		return "", cli.UsageError(fmt.Sprintf("--limit %d: want 1 to %d", o.Limit, maxListed))
	case c.Given("listen") && !c.Given("port"):
		e := c.Environment()
		port = e.Integer("PORT", port, 0, 65535)
		if err := cli.Check(e); err != nil {
			return "", err
		}
	case port < 0 || port > 65535:
		return "", cli.UsageError(fmt.Sprintf("--port %d: want 0 to 65535", port))
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(port)), nil
}

// ConsoleServer serves the console of one database.
type ConsoleServer struct {
	clients    []*Client       // of each kind
	options    console.Options // of all kinds
	write      bool
	background []func(context.Context)
}

// NewConsole connects to what c's environment names. Serve closes the connections.
func NewConsole(ctx context.Context, c *cli.Call, o ConsoleOptions) (*ConsoleServer, error) {
	policy, err := lockPolicy(c)
	if err != nil {
		return nil, err
	}
	all, err := connectAll(ctx, c, optionalQueue, repo.Options{Policy: policy}) // without a log: each poll would report the same unreadable lock
	if err != nil {
		return nil, err
	}
	s := &ConsoleServer{clients: all, write: o.Write, options: console.Options{
		Limit: cmp.Or(o.Limit, console.DefaultLimit), Identity: console.Everybody(operator()),
		Books: all[0].queue != nil, TTL: all[0].analyses.TTL(), Log: o.Log,
	}}
	for i, cl := range all {
		kind := console.Kind{Name: cl.place.Name}
		if i > 0 { // the first is at /, as the only one is
			kind.Root = "/kind/" + kind.Name
		}
		s.options.Kinds = append(s.options.Kinds, kind)
	}
	if o.Audience == "" {
		return s, nil
	}
	proxy, err := taskauth.NewIAP(o.Audience, taskauth.KeySource{KeysURL: o.KeysURL, Log: o.Log})
	if err != nil {
		return nil, errors.Join(cli.UsageError("--iap-audience: "+err.Error()), all[0].close())
	}
	s.options.Identity, s.options.AnyHost = proxy, true
	s.background = append(s.background, proxy.Run)
	return s, nil
}

// Serve serves on l until ctx ends.
func (s *ConsoleServer) Serve(ctx context.Context, l net.Listener) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var pages []*console.Server
	kinds := s.options.Kinds
	for i, cl := range s.clients {
		o := s.options
		o.Place, o.Root = cl.place.String(), kinds[i].Root
		if s.write {
			o.Operator = consoleOperator{cl, o.Log}
		}
		pages = append(pages, console.NewServer(work, consoleSource{cl}, o))
	}
	handler := func(w http.ResponseWriter, r *http.Request) {
		i := slices.IndexFunc(kinds[1:], func(k console.Kind) bool { return strings.HasPrefix(r.URL.Path, k.Root+"/") }) + 1
		http.StripPrefix(kinds[i].Root, pages[i]).ServeHTTP(w, r)
	}
	err := service.Service{
		Handler: http.HandlerFunc(handler), Limits: service.DefaultLimits(), Background: s.background, Stop: stop,
		Drain: func(ctx context.Context) {
			for _, page := range pages {
				page.Drain(ctx)
			}
		}, Log: s.options.Log,
	}.Serve(ctx, l)
	return errors.Join(err, s.clients[0].close())
}

// consoleOperator makes the console's changes as the commands do.
type consoleOperator struct {
	*Client
	log *slog.Logger
}

// Change implements console.Operator.
func (o consoleOperator) Change(ctx context.Context, what console.Change, id, who string, seen analysislock.Seen) (console.Delivery, error) {
	done, err := o.change(ctx, what, id, &seen, who, o.log)
	if err != nil && done == (changed{}) {
		return "", err
	}
	if err != nil {
		o.log.WarnContext(ctx, "no delivery is booked", "command", what, "analysis_id", id, "by", who, "error", err)
		return console.Failed, nil
	}
	return done.Delivery, nil
}

// ChangeAll implements console.Operator.
func (o consoleOperator) ChangeAll(
	ctx context.Context, what console.Change, f func(now time.Time) repo.Filter, who string,
	last console.Bulk, limit int, dryRun bool,
) (result console.Bulk, err error) {
	result.Before, result.After = last.Before, last.After
	if last.Before.IsZero() {
		if result.Before, err = o.analyses.Now(ctx); err != nil {
			return result, refusal(err)
		}
	}
	selected := f(result.Before)
	if selected.Before.IsZero() || selected.Before.After(result.Before) {
		selected.Before = result.Before
	}
	if result.Matched, err = o.analyses.Count(ctx, selected); err != nil {
		return result, refusal(err)
	}
	found, err := o.analyses.Find(ctx, selected, last.After, limit)
	if err != nil {
		return result, refusal(err)
	}
	if len(found) < limit { // without those before last.After
		result.Matched = int64(len(found))
	}

	b, uninterrupted := bulk{filter: filter{status: selected.Status}, dryRun: dryRun, who: who}, context.WithoutCancel(ctx)
	var mu sync.Mutex
	n := map[string]*int64{didChange: &result.Changed, wouldChange: &result.Changed, skipped: &result.Skipped, failed: &result.Failed}
	_ = b.each(ctx, found, func(d *analysislock.Analysis) error {
		outcome, _, err := b.change(uninterrupted, o.Client, what, d, o.log)
		if err != nil {
			o.log.WarnContext(uninterrupted, "no delivery is booked, or nothing is changed",
				"command", what, "analysis_id", d.ID, "by", who, "error", err)
		}
		mu.Lock()
		defer mu.Unlock()
		*n[outcome]++
		return queueRefuses(err) // it is logged
	})
	if handled := result.Changed + result.Skipped + result.Failed; handled > 0 { // in the order of found
		result.After = o.analyses.Position(&found[handled-1])
	}
	if !dryRun {
		o.log.InfoContext(uninterrupted, "all that a filter selects changed by an operator",
			"command", what, "status", selected.Status, "code", selected.Code, "since", selected.Since, "before", selected.Before, "by", who,
			"matched", result.Matched, "changed", result.Changed, "skipped", result.Skipped, "failed", result.Failed)
	}
	return result, nil
}
