// Package local has emulator, local and demo: an emulated cloud on this machine, alone or with
// worker processes on it.
package local

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/cmd/internal/cli"
	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/firestore"
	"taskguard/emulator/oidc"
)

// cloud is an embedded Firestore and Cloud Tasks, and a page with the public keys of the tokens
// that the tasks carry. The zero value runs nothing.
type cloud struct {
	firestore, tasks, page string // addresses: host:port

	issuer  *oidc.Issuer
	stops   []func()
	serving sync.WaitGroup
}

// address returns an address of host, with the port base + i, or with any free one if base is 0.
func address(host string, base, i int) string {
	if base != 0 {
		base += i
	}
	return net.JoinHostPort(host, strconv.Itoa(base))
}

// checkPort checks the value of --port, the first of n ports.
func checkPort(port, n int) error {
	if port < 0 || port > 65536-n {
		return cli.UsageError(fmt.Sprintf("--port %d: want 0 to %d", port, 65536-n))
	}
	return nil
}

// start starts Firestore, Cloud Tasks with the queue, and the page at these addresses.
func (c *cloud) start(
	firestoreAt, tasksAt, pageAt string, queue *cloudtaskspb.Queue, o cloudtasks.Options,
) (err error) {
	store := firestore.NewServer(firestore.Options{})
	if c.firestore, err = c.serve("the embedded Firestore", firestoreAt, store.Serve, store.Close); err != nil {
		return err
	}

	c.issuer = oidc.NewIssuer()
	o.Token = c.issuer.Token
	tasks := cloudtasks.NewServer(o)
	if c.tasks, err = c.serve("the embedded Cloud Tasks", tasksAt, tasks.Serve, tasks.Close); err != nil {
		return err
	}
	if err := tasks.CreateQueue(queue); err != nil {
		return err
	}

	page := http.NewServeMux()
	page.Handle("GET /oauth2/v3/certs", c.issuer)
	page.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	c.page, err = c.serveHTTP("the page of the tokens' keys", pageAt, page)
	return err
}

// everywhere replaces the address of a listener on all interfaces by one that a client can use.
var everywhere = strings.NewReplacer("[::]:", "127.0.0.1:", "0.0.0.0:", "127.0.0.1:")

// serve runs serve with a listener at address until close calls stop. If it cannot listen, it calls
// stop. It returns the address for clients.
func (c *cloud) serve(what, address string, serve func(net.Listener) error, stop func()) (at string, err error) {
	l, err := cli.Listen(what, address)
	if err != nil {
		stop()
		return "", err
	}
	c.serving.Go(func() { _ = serve(l) }) // it ends by stop
	c.stops = append(c.stops, stop)
	return everywhere.Replace(l.Addr().String()), nil
}

func (c *cloud) serveHTTP(what, address string, handler http.Handler) (at string, err error) {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	return c.serve(what, address, server.Serve, func() { _ = server.Close() })
}

// close stops all servers, the last first, and waits for them.
func (c *cloud) close() {
	for _, stop := range slices.Backward(c.stops) {
		stop()
	}
	c.serving.Wait()
}

// exports returns commands for a shell that set variables.
func exports(vars map[string]string) string {
	text := ""
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		text += "export " + name + "=" + quote(vars[name]) + "\n"
	}
	return text
}

// plainWord matches words that a shell does not change.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+,-]+$`)

// quote returns text as one word of a POSIX shell.
func quote(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
