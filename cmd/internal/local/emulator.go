package local

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/emulator/cloudtasks"
)

// Emulator keeps an embedded Firestore and Cloud Tasks up until Ctrl-C. Its standard output is
// for a shell to evaluate, so deliveries are printed on standard error.
func Emulator(ctx context.Context, c *cli.Call) error {
	host := c.Flags.String("listen", "127.0.0.1", "the IP `address` to listen on; in a container 0.0.0.0")
	port := c.Flags.Int("port", 8680, "Firestore's `port`; the next two are those of Cloud Tasks and of /health; "+
		"0: any free ones")
	name := c.Flags.String("queue", cmp.Or(c.Value("TASK_QUEUE"), "projects/"+project+"/locations/local/queues/tasks"),
		"the `name` of the queue that exists from the start")
	documented := c.Flags.Bool("as-documented", false, "throttle each queue as Cloud Tasks does: "+
		"a new or idle one is slow at first, and 429, 503 or many errors slow it down")
	c.TakesJSON("print the environment as one JSON document")
	if _, err := c.Parse(0, 0); err != nil {
		return err
	}
	if err := checkPort(*port, 3); err != nil {
		return err
	}

	show := cli.NewProgress(c.Err)
	options := cloudtasks.Options{Observe: func(d cloudtasks.Delivery) {
		if ctx.Err() == nil { // deliveries fail while the emulator stops
			show.Print("task %s, attempt %d: %s", d.Task, d.Attempt+1, outcome(d))
		}
	}}
	if *documented {
		options.Throttling = cloudtasks.AsDocumented
	}
	emulated := &cloud{}
	defer emulated.close()
	at := func(i int) string { return address(*host, *port, i) }
	err := emulated.start(at(0), at(1), at(2), &cloudtaskspb.Queue{Name: *name}, options)
	if status.Code(err) == codes.InvalidArgument {
		return cli.UsageError("--queue or TASK_QUEUE: " + status.Convert(err).Message())
	}
	if err != nil {
		return err
	}

	health := "http://" + emulated.page + "/health"
	vars := map[string]string{
		"GOOGLE_CLOUD_PROJECT": strings.Split(*name, "/")[1], cli.FirestoreEmulator: emulated.firestore,
		"TASK_QUEUE": *name, cli.TasksEmulator: emulated.tasks,
	}
	if c.JSON {
		err = c.PrintJSON(map[string]any{"environment": vars, "health": health})
	} else {
		const ready = "%s\n# Ready: %s answers 200. Ctrl-C ends it and deletes its data.\n"
		_, err = fmt.Fprintf(c.Out, ready, exports(vars), health)
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
