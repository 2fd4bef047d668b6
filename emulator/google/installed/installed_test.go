package installed

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"taskguard/emulator/google"
	"taskguard/internal/testing/emulatortest"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	_, err := google.Find()
	switch {
	case err == nil:
		return emulatortest.Main(m)
	case !errors.Is(err, google.ErrNotFound):
		fmt.Fprintln(os.Stderr, err)
		return 1
	case emulatortest.Required():
		fmt.Fprintf(os.Stderr, "REQUIRE_GOOGLE_EMULATOR is set, but %v\n", err)
		return 1
	}
	fmt.Printf("Skipped: the tests that start Google's Firestore emulator and,"+
		" unless FIRESTORE_EMULATOR_HOST names a running one, the conformance suites on it: %v\n", err)
	// The words that make go test print [no tests to run] after this package's ok.
	// Without them it hides the output of packages that pass.
	fmt.Println("testing: warning: no tests to run")
	return 0
}

func TestTheEmulatorKeepsADocumentAndStops(t *testing.T) {
	e, err := google.Start(t.Context(), "256m")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(e.Host(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client, err := firestore.NewClient(t.Context(), emulatortest.Project(), option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	doc := client.Doc("notes/one")
	if _, err := doc.Set(t.Context(), map[string]any{"text": "kept"}); err != nil {
		t.Fatal(err)
	}
	if snap, err := doc.Get(t.Context()); err != nil || snap.Data()["text"] != "kept" {
		t.Errorf("the document holds %v (%v), want kept", snap.Data(), err)
	}
}
