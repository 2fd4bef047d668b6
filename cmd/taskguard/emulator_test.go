package main

import (
	"net"
	"strings"
	"sync"
	"testing"
)

func TestAnEmulatorsAddressIsHostAndPort(t *testing.T) {
	for address, want := range map[string]string{
		"": "", "127.0.0.1:8080": "", "[::1]:8080": "", "localhost:1": "",
		"localhost": "is not host:port", ":8080": "is not host:port", "h:": "is not host:port", "h:0": "is not host:port",
		"h:65536": "is not host:port", "h:http": "is not host:port", "::1:80": "is not host:port",
		"http://h:80/": "drop the scheme: h:80",
	} {
		err := checkEmulator("X", address)
		if (err == nil) != (want == "") || err != nil && (!strings.HasPrefix(err.Error(), "X: ") || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", address, err, want)
		}
	}
	good := vars{"GOOGLE_CLOUD_PROJECT": "p", "TASK_QUEUE": demoQueue, "TASK_TARGET_URL": "http://127.0.0.1:1", firestoreEmulator: "127.0.0.1:1", tasksEmulator: "127.0.0.1:1"}
	for _, args := range []string{"status", "submit main.go", "unlock x", "requeue x", "recover", "demo", "local --port 0"} {
		env := without(good)
		env[firestoreEmulator] = "http://127.0.0.1:1"
		taskguard(t, env, strings.Fields(args)...).want(t, exitUsage, firestoreEmulator+": ", "drop the scheme: 127.0.0.1:1")
	}
	for _, args := range []string{"submit main.go", "unlock x", "requeue x", "recover"} {
		env := without(good)
		env[tasksEmulator] = "127.0.0.1"
		taskguard(t, env, strings.Fields(args)...).want(t, exitUsage, tasksEmulator+": ", "is not host:port")
	}
}

// closedPort is an address at which nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestADeadEmulatorIsNamedWithItsVariable(t *testing.T) {
	dead := closedPort(t)
	env := vars{"GOOGLE_CLOUD_PROJECT": "p", "TASK_QUEUE": demoQueue, "TASK_TARGET_URL": "http://127.0.0.1:1", firestoreEmulator: dead, tasksEmulator: dead}
	refused := "nothing answers at " + dead + ": connection refused; "
	for _, args := range []string{"demo", "local --port 0"} {
		o := taskguard(t, env, strings.Fields(args)...).want(t, exitFailed, refused+"unset FIRESTORE_EMULATOR_HOST to use the embedded Firestore")
		if first, _, _ := strings.Cut(o.out, "\n"); !strings.HasSuffix(first, "using the emulator at "+dead+", from FIRESTORE_EMULATOR_HOST") {
			t.Errorf("%s begins with %q", args, first)
		}
		if strings.Count(o.err, "\n") != 1 {
			t.Errorf("want one line on standard error: %s", o.err)
		}
	}
	for _, args := range []string{"status", "status x", "submit main.go", "unlock x", "requeue x", "recover"} {
		taskguard(t, env, strings.Fields(args)...).want(t, exitFailed, refused+"FIRESTORE_EMULATOR_HOST names it")
	}
	env[firestoreEmulator] = store(t)[firestoreEmulator]
	for _, args := range []string{"submit main.go", "unlock x", "requeue x", "recover"} {
		taskguard(t, env, strings.Fields(args)...).want(t, exitFailed, refused+"CLOUD_TASKS_EMULATOR_HOST names it")
	}
}

func TestWhatIsNoFirestoreIsTold(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close() // as something else would that got no sense of it
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	o := taskguard(t, vars{firestoreEmulator: l.Addr().String()}, "local", "--port", "0").
		want(t, exitFailed, "no Firestore answers at "+l.Addr().String(), "unset FIRESTORE_EMULATOR_HOST")
	if strings.Count(o.err, "\n") != 1 {
		t.Errorf("want one line on standard error: %s", o.err)
	}
}
