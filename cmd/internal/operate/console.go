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

	"github.com/spf13/cobra"

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
	Write    bool          // allow changes
	Limit    int           // how many analyses are listed; 0: console.DefaultLimit
	Audience string        // the audience of Identity-Aware Proxy's tokens; empty: no proxy is required
	KeysURL  string        // where the proxy's keys are; empty: Google's page
	Every    time.Duration // see console.Options
	Log      *slog.Logger
}

// Console serves the page for operators until Ctrl-C.
func Console(lookup cli.Lookup) *cobra.Command {
	var o ConsoleOptions
	var host string
	var port int
	cmd := &cobra.Command{
		Use: "console", GroupID: cli.Look, Args: cli.Args(0, 0),
		Short: "Serve a live page for operators; it only reads without --write",
		Long: "While a page is open and visible, Firestore bills a read every 8 seconds for each analysis on it. " +
			"On Cloud Run use a TCP probe: every HTTP request needs the proxy.",
		Example: "taskguard console\ntaskguard console --write --port 8080",
		Annotations: cli.Reads(queueVariables + "; PORT with --listen; LOG_FORMAT (text); " +
			"TASK_JWKS_URL, for tests: the address of the proxy's public keys."),
		RunE: cli.Bind(lookup, func(ctx context.Context, c *cli.Call, _ []string) error {
			address, err := consoleAddress(c, o, host, port)
			if err != nil {
				return err
			}
			return serveConsole(ctx, c, o, address)
		}),
	}

	flags := cmd.Flags()
	flags.IntVar(&port, "port", consolePort, "the `port`; 0: any free one. "+
		"With --listen and without --port it is the one of PORT, as on Cloud Run")
	flags.StringVar(&host, "listen", "127.0.0.1", "the IP `address` to listen on. Any but a loopback one needs "+
		"--iap-audience; without that, every user of this machine sees everything, inputs and results too")
	flags.BoolVar(&o.Write, "write", false, "allow unlock, requeue, cancel and resolve. "+
		"Every user of this machine then acts in your name, unless --iap-audience is set")
	flags.IntVar(&o.Limit, "limit", console.DefaultLimit, "`how many` analyses are on a page, in addition to up to "+
		"as many each that run, wait for a retry, or are stuck")
	flags.StringVar(&o.Audience, "iap-audience", "", "admit only users whose token Identity-Aware Proxy has signed "+
		"for this `audience`, such as /projects/NUMBER/locations/REGION/services/NAME")
	cli.TakesKind(cmd, lookup, "all, and a page for each")
	return cmd
}

// serveConsole serves the console at address until ctx ends.
func serveConsole(ctx context.Context, c *cli.Call, o ConsoleOptions, address string) error {

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
	if host == "localhost" {
		host = "127.0.0.1"
	}
	usage := func(format string, args ...any) (string, error) {
		return "", cli.UsageError(fmt.Sprintf(format, args...))
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return usage("--listen %q: want an IP address such as 127.0.0.1 or 0.0.0.0", host)
	case port < 0 || port > 65535:
		return usage("--port %d: want 0 to 65535", port)
	case c.Flags.Changed("iap-audience") && o.Audience == "":
		return usage("--iap-audience is empty")
	case !ip.IsLoopback() && o.Audience == "":
		return usage("--listen %s is reached from other machines: it needs --iap-audience and the proxy in front", host)
	case o.Limit < 1 || o.Limit > maxListed:
		return usage("--limit %d: want 1 to %d", o.Limit, maxListed)
	}

	e := c.Environment()
	if c.Flags.Changed("listen") && !c.Flags.Changed("port") {
		port = e.Integer("PORT", port, 0, 65535)
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(port)), cli.Check(e)
}

// ConsoleServer serves the console of one database.
type ConsoleServer struct {
	clients []*Client       // one for each kind
	options console.Options // what all kinds share
	write   bool
}

// NewConsole connects to what c's environment names. Serve closes the connections.
func NewConsole(ctx context.Context, c *cli.Call, o ConsoleOptions) (*ConsoleServer, error) {
	// Without a log: each poll would report the same unreadable lock.
	all, err := connectAll(ctx, c, optionalQueue, nil)
	if err != nil {
		return nil, err
	}

	s := &ConsoleServer{clients: all, write: o.Write, options: console.Options{
		Limit: o.Limit, User: operator(), Books: all[0].books, Every: o.Every, Log: o.Log,
		Lock: all[0].lock,
	}}
	for i, cl := range all {
		kind := console.Kind{Name: cl.place.Name}
		if i > 0 { // the first is at /, as the only one is
			kind.Root = "/kind/" + kind.Name
		}
		s.options.Kinds = append(s.options.Kinds, kind)
	}

	if o.Audience == "" { // its users are on this machine
		s.options.Program = cli.Program()
		return s, nil
	}
	proxy, err := taskauth.NewIAP(o.Audience, taskauth.KeySource{KeysURL: o.KeysURL, Log: o.Log})
	if err != nil {
		return nil, errors.Join(cli.UsageError("--iap-audience: "+err.Error()), all[0].close())
	}
	s.options.Identity = proxy
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
		o.Place, o.Root, o.Fields = cl.place.String(), kinds[i].Root, cl.place.Fields
		o.Called = cl.place.Called()
		if cl.place.Emulator == "" {
			o.Project = cl.place.Project
		}
		if s.write {
			o.Operator = consoleOperator{cl, o.Log}
		}
		pages = append(pages, console.NewServer(work, cl, o))
	}

	handler := func(w http.ResponseWriter, r *http.Request) {
		named := func(k console.Kind) bool { return k.Root != "" && strings.HasPrefix(r.URL.Path, k.Root+"/") }
		i := max(0, slices.IndexFunc(kinds, named)) // the first kind has the other paths
		http.StripPrefix(kinds[i].Root, pages[i]).ServeHTTP(w, r)
	}
	drain := func(ctx context.Context) {
		stop()
		for _, page := range pages {
			page.Drain(ctx)
		}
	}
	err := service.Service{
		Handler: http.HandlerFunc(handler), Limits: service.DefaultLimits(), Drain: drain, Log: s.options.Log,
	}.Serve(ctx, l)
	return errors.Join(err, s.clients[0].close())
}

// consoleOperator makes the console's changes as the commands do.
type consoleOperator struct {
	*Client
	log *slog.Logger
}

// Change implements console.Operator.
func (o consoleOperator) Change(ctx context.Context, c console.Change) (console.Delivery, error) {
	done, err := o.change(ctx, c, o.log)
	if errors.Is(err, console.ErrNotBooked) {
		o.warn(ctx, c, err)
	}
	return done.Delivery, err
}

// warn logs why a change is not made, or its delivery not booked. change has logged one that may have been made.
func (o consoleOperator) warn(ctx context.Context, c console.Change, err error) {
	if errors.Is(err, console.ErrUnconfirmed) {
		return
	}
	o.log.WarnContext(ctx, "changed nothing, or could not enqueue",
		"command", c.Verb, "analysis_id", c.ID, "by", c.Who, "error", err)
}

// which returns up to limit analyses that selected finds and match accepts, and how many there are.
func (o consoleOperator) which(
	ctx context.Context, selected repo.Filter, match func(*analysislock.Analysis) bool, limit int,
) (found []analysislock.Analysis, matched int64, err error) {
	if match != nil {
		found, err = o.Find(ctx, selected, "", console.MaxBulk)
		found = slices.DeleteFunc(found, func(a analysislock.Analysis) bool { return !match(&a) })
		return found[:min(len(found), limit)], int64(len(found)), err
	}
	if matched, err = o.Count(ctx, selected); err != nil {
		return nil, 0, err
	}
	found, err = o.Find(ctx, selected, "", limit)
	if len(found) < limit { // the count may have some that Find leaves out
		matched = int64(len(found))
	}
	return found, matched, err
}

// ChangeAll implements console.Operator.
func (o consoleOperator) ChangeAll(
	ctx context.Context, verb console.Verb, w console.Which, who string,
	updatedBefore time.Time, limit int, dryRun bool,
) (result console.Bulk, err error) {
	if result.Before = updatedBefore; updatedBefore.IsZero() {
		if result.Before, err = o.Now(ctx); err != nil {
			return result, err
		}
	}
	selected := w.Filter(result.Before)
	if selected.Before.IsZero() || selected.Before.After(result.Before) {
		selected.Before = result.Before
	}
	found, matched, err := o.which(ctx, selected, w.Match, limit)
	if err != nil {
		return result, err
	}
	result.Matched = matched

	b := bulk{filter: filter{status: selected.Status}, dryRun: dryRun}
	uninterrupted := context.WithoutCancel(ctx)
	var mu sync.Mutex
	n := map[string]int64{} // the number of each outcome
	_ = b.each(ctx, found, func(d *analysislock.Analysis) error {
		c := console.Change{Verb: verb, ID: d.ID, Who: who}
		outcome, reason, err := b.change(uninterrupted, o.Client, c, d, o.log)
		if err != nil {
			o.warn(uninterrupted, c, err)
		}
		mu.Lock()
		defer mu.Unlock()
		n[outcome]++
		if reason == notConfirmed {
			result.Unconfirmed++
		}
		return queueRefuses(err)
	})

	result.Changed, result.Skipped, result.Failed = n[didChange]+n[wouldChange], n[skipped], n[failed]
	if !dryRun {
		o.log.InfoContext(uninterrupted, "all that a filter selects changed by an operator",
			"command", verb, "status", selected.Status, "code", selected.Code,
			"since", selected.Since, "before", selected.Before, "by", who, "matched", result.Matched,
			"changed", result.Changed, "skipped", result.Skipped, "failed", result.Failed,
			"not_confirmed", result.Unconfirmed)
	}
	return result, nil
}
