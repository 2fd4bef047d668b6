// Package local has emulator, local and demo: an emulated cloud on this machine, alone or with
// worker processes on it.
package local

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/firestore"
	"taskguard/emulator/oidc"
)

// Emulator keeps an embedded Firestore and Cloud Tasks up until Ctrl-C. Its standard output is
// for a shell to evaluate, so deliveries are printed on standard error.
func Emulator(lookup cli.Lookup) *cobra.Command {
	var o emulatorOptions
	cmd := &cobra.Command{
		Use: "emulator", GroupID: cli.TryIt, Args: cli.Args(0, 0),
		Short: "Run an embedded Firestore and Cloud Tasks for your tests",
		Long: "It prints exports for your shell, and runs until Ctrl-C. Data stays in memory. " +
			"Programs in any language can use it.",
		Example:     "taskguard emulator --queue projects/p/locations/l/queues/q",
		Annotations: cli.Reads("TASK_QUEUE: the queue without --queue"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.serve(cmd.Context(), cli.NewCall(cmd, lookup))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.host, "listen", "127.0.0.1", "the IP `address` to listen on; in a container 0.0.0.0")
	flags.IntVar(&o.port, "port", 8680, "Firestore's `port`; the next two serve Cloud Tasks and /health; "+
		"0: any free ones")
	flags.StringVar(&o.queue, "queue", "", "the `name` of the queue that exists from the start "+
		"(default TASK_QUEUE, or projects/"+project+"/locations/local/queues/tasks)")
	flags.BoolVar(&o.documented, "as-documented", false, "throttle each queue as Cloud Tasks does: "+
		"a new or idle one is slow at first, and 429, 503 or many errors slow it down")
	cli.TakesJSON(cmd, "print the environment as one JSON document")
	return cmd
}

// emulatorOptions are the flags of emulator.
type emulatorOptions struct {
	host, queue string
	port        int
	documented  bool
}

// serve serves the emulator until ctx ends.
func (o *emulatorOptions) serve(ctx context.Context, c *cli.Call) error {
	if err := checkPort(o.port, 3); err != nil {
		return err
	}
	name := cmp.Or(o.queue, c.Value("TASK_QUEUE"), "projects/"+project+"/locations/local/queues/tasks")

	show := cli.NewProgress(c.Err)
	options := cloudtasks.Options{Observe: func(d cloudtasks.Delivery) {
		if ctx.Err() == nil { // deliveries fail while the emulator stops
			show.Print("task %s, attempt %d: %s", d.Task, d.Attempt+1, outcome(d))
		}
	}}
	if o.documented {
		options.Throttling = cloudtasks.AsDocumented
	}
	emulated := &cloud{}
	defer emulated.close()
	addressOf := func(i int) string { return address(o.host, o.port, i) }
	err := emulated.start(addressOf(0), addressOf(1), addressOf(2), &cloudtaskspb.Queue{Name: name}, options)
	if status.Code(err) == codes.InvalidArgument {
		return cli.UsageError("--queue or TASK_QUEUE: " + status.Convert(err).Message())
	}
	if err != nil {
		return err
	}

	health := "http://" + emulated.page + "/health"
	vars := map[string]string{
		"GOOGLE_CLOUD_PROJECT": strings.Split(name, "/")[1], cli.FirestoreEmulator: emulated.firestore,
		"TASK_QUEUE": name, cli.TasksEmulator: emulated.tasks,
	}
	if c.JSON {
		err = c.PrintJSON(map[string]any{"environment": vars, "health": health})
	} else {
		const ready = "%s\n# Ready: %s answers 200. Ctrl-C ends it and deletes its data.\n"
		_, err = fmt.Fprintf(c.Out, ready, cli.Exports(vars), health)
	}
	if err == nil {
		<-ctx.Done()
	}
	return err
}

// outcome describes the end of a delivery.
func outcome(d cloudtasks.Delivery) string {
	if d.Status == 0 {
		return fmt.Sprintf("no answer: %v", d.Err)
	}
	return fmt.Sprint("answered ", d.Status)
}

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

// everywhere makes the address of a listener on all interfaces an address for clients.
var everywhere = strings.NewReplacer("[::]:", "127.0.0.1:", "0.0.0.0:", "127.0.0.1:")

// serve runs serve with a listener at address until close calls stop. If it cannot listen, it calls
// stop. It returns the address for clients.
func (c *cloud) serve(title, address string, serve func(net.Listener) error, stop func()) (at string, err error) {
	l, err := cli.Listen(title, address)
	if err != nil {
		stop()
		return "", err
	}
	c.serving.Go(func() { _ = serve(l) }) // it ends by stop
	c.stops = append(c.stops, stop)
	return everywhere.Replace(l.Addr().String()), nil
}

func (c *cloud) serveHTTP(title, address string, handler http.Handler) (at string, err error) {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	return c.serve(title, address, server.Serve, func() { _ = server.Close() })
}

// close stops all servers, the last first, and waits for them.
func (c *cloud) close() {
	for _, stop := range slices.Backward(c.stops) {
		stop()
	}
	c.serving.Wait()
}
