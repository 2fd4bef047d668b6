package repo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"time"

	"cloud.google.com/go/firestore"
	firestoreapi "cloud.google.com/go/firestore/apiv1"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"golang.org/x/sync/semaphore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// A value of one byte takes many bytes of memory once it is decoded, and a hundred as a protocol
// buffer. So the database decodes large documents, and encodes large results, one at a time.
const (
	largeAnswer = 64 << 10 // bytes
	largeResult = 4 << 10  // values
)

// Database is a connection to one Firestore database, for any number of Analyses. It is
// safe for concurrent use.
type Database struct {
	client *firestore.Client
	conn   *grpc.ClientConn
	api    firestorepb.FirestoreClient // uses conn, for calls that client cannot make, or makes more slowly
	name   string                      // projects/P/databases/D
	// routing is the value of the header by which Google routes calls.
	routing string
	// decoders and encoders limit the large documents that are in memory as protocol
	// buffers; see largeAnswer. With one limit for both, a commit that waits for the
	// network would delay the reading of an input.
	decoders, encoders *semaphore.Weighted
}

// Connect prepares a connection to Firestore or to an emulator, without a call. Of o it uses
// Database and Emulator. Close closes it.
func Connect(ctx context.Context, project string, o Options, opts ...option.ClientOption) (*Database, error) {
	o.Database = cmp.Or(o.Database, firestore.DefaultDatabaseID)
	db, err := connect(ctx, project, o.Database, o.Emulator, opts)
	if err != nil {
		return nil, fmt.Errorf("repo: open database %s of project %s: %w", o.Database, project, err)
	}
	return db, nil
}

// connect opens the connection, and Google's client on it. If FIRESTORE_EMULATOR_HOST is set, Google's
// client ignores the connection it is given and opens its own to that host.
func connect(ctx context.Context, project, name, emulator string, opts []option.ClientOption) (*Database, error) {
	conn, err := dial(ctx, emulator, opts)
	if err != nil {
		return nil, err
	}
	if os.Getenv(emulatorHost) == "" {
		opts = []option.ClientOption{option.WithGRPCConn(conn)}
	}
	client, err := firestore.NewClientWithDatabase(ctx, project, name, opts...)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}

	return &Database{
		client: client, conn: conn, api: firestorepb.NewFirestoreClient(conn),
		name:     "projects/" + project + "/databases/" + name,
		routing:  url.Values{"project_id": {project}, "database_id": {name}}.Encode(),
		decoders: semaphore.NewWeighted(1), encoders: semaphore.NewWeighted(1),
	}, nil
}

// emulatorHost is the variable by which Google's clients find an emulator.
const emulatorHost = "FIRESTORE_EMULATOR_HOST"

// dial opens the connection, to an emulator if there is one. opts win over its own options.
//
// If a call waits and the connection has received nothing for 30 s, gRPC sends a ping. It replaces the
// connection if no answer arrives within 10 s. Without pings, gRPC would keep a connection that the
// network has dropped: its watch would receive nothing, and each call on it would fail. A server that
// gets too many pings closes the connection, and gRPC then sends half as many.
//
// The windows bound what a large answer sends before a read refuses it; gRPC's own would grow
// to megabytes.
func dial(ctx context.Context, emulator string, opts []option.ClientOption) (*grpc.ClientConn, error) {
	tuning := []grpc.DialOption{
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithInitialWindowSize(4 * largeAnswer), grpc.WithInitialConnWindowSize(64 * largeAnswer),
	}
	var own []option.ClientOption
	if host := cmp.Or(os.Getenv(emulatorHost), emulator); host == "" {
		for _, o := range tuning {
			own = append(own, option.WithGRPCDialOption(o))
		}
	} else { // Google's client connects to an emulator in the same way
		sizes := grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32))
		conn, err := grpc.NewClient("passthrough:///"+host, append(tuning, sizes, grpc.WithNoProxy(),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(emulatorOwner{}))...)
		if err != nil {
			return nil, err
		}
		own = append(own, option.WithGRPCConn(conn))
	}

	api, err := firestoreapi.NewClient(ctx, append(own, opts...)...)
	if err != nil {
		return nil, err
	}
	return api.Connection(), nil //nolint:staticcheck // the only one: no pool is asked for
}

// Close ends the connections.
func (d *Database) Close() error {
	err := d.client.Close()
	_ = d.conn.Close() // closed already, unless the client opened another connection
	return err
}

// emulatorOwner lets calls pass an emulator's security rules.
type emulatorOwner struct{}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (emulatorOwner) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer owner"}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (emulatorOwner) RequireTransportSecurity() bool { return false }
