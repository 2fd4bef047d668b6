package firestore_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "cloud.google.com/go/firestore"

	"taskguard/emulator/emulatortest"
	"taskguard/emulator/firestore"
)

// clientHost makes the test binary a client process of the server there.
const clientHost = "TEST_CLIENT_OF"

func TestMain(m *testing.M) {
	if host := os.Getenv(clientHost); host != "" {
		os.Exit(contend(host))
	}
	os.Exit(emulatortest.Main(m))
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	return l
}

func TestSeveralProcessesShareTheServerOverTCP(t *testing.T) {
	server, l := firestore.NewServer(firestore.Options{}), listen(t)
	var served sync.WaitGroup
	served.Go(func() {
		if err := server.Serve(l); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() { server.Close(); served.Wait() })
	host := l.Addr().String()
	t.Setenv("FIRESTORE_EMULATOR_HOST", host)
	c := must[*client.Client](t)(client.NewClient(t.Context(), "shared"))
	defer func() { _ = c.Close() }()
	must[*client.WriteResult](t)(c.Doc("c/d").Set(t.Context(), object{"n": 0}))

	var won atomic.Int32
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), clientHost+"="+host)
			if out, err := cmd.CombinedOutput(); err == nil {
				won.Add(1)
			} else if cmd.ProcessState.ExitCode() != 3 {
				t.Errorf("client process: %v\n%s", err, out)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		t.Errorf("%d processes created the document, want 1", won.Load())
	}
	snap := must[*client.DocumentSnapshot](t)(c.Doc("c/d").Get(t.Context()))
	wantData(t, snap, object{"n": int64(30)})
}

// contend is one client process: ten increments of one shared
// document, then a race to create another. It exits 0 for the winner, 3 for the
// others.
func contend(host string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.NewClient(ctx, "shared") // by FIRESTORE_EMULATOR_HOST
	if err != nil {
		fmt.Fprintln(os.Stderr, host, err)
		return 1
	}
	defer func() { _ = c.Close() }()
	for range 10 {
		if _, err := c.Doc("c/d").Update(ctx, []client.Update{{Path: "n", Value: client.Increment(1)}}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if _, err := c.Doc("c/prize").Create(ctx, object{"pid": os.Getpid()}); err != nil {
		return 3
	}
	return 0
}
