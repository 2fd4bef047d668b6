package firestore_test

import (
	"context"
	"fmt"

	fs "cloud.google.com/go/firestore"
	"google.golang.org/api/option"

	"taskguard/emulator/firestore"
)

// Google's client in the same process, as in a test of one's own code.
func Example() {
	if err := countVisits(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 2 visits; 1 read and 2 writes are billed
}

func countVisits(ctx context.Context) error {
	server := firestore.NewServer(firestore.Options{})
	defer server.Close()
	conn, err := server.Dial() // another program: Serve, and FIRESTORE_EMULATOR_HOST
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client, err := fs.NewClient(ctx, "my-project", option.WithGRPCConn(conn))
	if err != nil {
		return err
	}

	doc := client.Doc("pages/home")
	for range 2 {
		if _, err := doc.Set(ctx, map[string]any{"visits": fs.Increment(1)}, fs.MergeAll); err != nil {
			return err
		}
	}
	snap, err := doc.Get(ctx)
	if err != nil {
		return err
	}
	usage := server.Usage()
	fmt.Printf("%v visits; %d read and %d writes are billed\n", snap.Data()["visits"], usage.Reads, usage.Writes)
	return nil
}
