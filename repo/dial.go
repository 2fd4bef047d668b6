package repo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/firestore"
	firestoreapi "cloud.google.com/go/firestore/apiv1"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"golang.org/x/sync/semaphore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"taskguard/lease/analysislock"
)

// database is a connection to one Firestore database.
type database struct {
	*firestore.Client
	conn *grpc.ClientConn
	api  firestorepb.FirestoreClient // on conn, for reads with a field mask
	name string                      // projects/P/databases/D
	// routing is the value of the header by which Google routes calls.
	routing string
	// Large documents that are held as protocol buffers; see largeAnswer. A commit that
	// waits for the network holds up no input.
	decoders, encoders *semaphore.Weighted
}

// dial opens a database for the documents of collection, without a call yet; Close
// closes it. name "" is (default). emulator is host:port of one, if
// FIRESTORE_EMULATOR_HOST names no other.
func dial(ctx context.Context, project, name, collection, emulator string, opts []option.ClientOption) (*database, error) {
	if err := CheckCollection(collection); err != nil {
		return nil, fmt.Errorf("repo: %w", err)
	}
	name = cmp.Or(name, firestore.DefaultDatabaseID)
	db, err := connect(ctx, project, name, emulator, opts)
	if err != nil {
		return nil, fmt.Errorf("repo: open database %s of project %s: %w", name, project, err)
	}
	return db, nil
}

// connect opens the connection. A connection on which a call waits and nothing has come
// for 30 s is pinged, and replaced where no answer comes in 10 s: else one that a
// network has forgotten would be kept, its watch silent and each call on it failing. A
// server that is pinged too often closes the connection, and gRPC then pings half as
// often.
//
// Where FIRESTORE_EMULATOR_HOST is set, Google's client makes a connection of its own to
// it, whatever it is given.
func connect(ctx context.Context, project, name, emulator string, opts []option.ClientOption) (*database, error) {
	alive := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second})
	first := option.WithGRPCDialOption(alive)
	named := os.Getenv("FIRESTORE_EMULATOR_HOST")
	if host := cmp.Or(named, emulator); host != "" { // as Google's client connects to it
		conn, err := grpc.NewClient("passthrough:///"+host, alive, grpc.WithNoProxy(),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(emulatorOwner{}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
		if err != nil {
			return nil, err
		}
		first = option.WithGRPCConn(conn)
	}
	api, err := firestoreapi.NewClient(ctx, append([]option.ClientOption{first}, opts...)...)
	if err != nil {
		return nil, err
	}
	conn := api.Connection() //nolint:staticcheck // the only one: no pool is asked for
	if named == "" {
		opts = []option.ClientOption{option.WithGRPCConn(conn)}
	}
	client, err := firestore.NewClientWithDatabase(ctx, project, name, opts...)
	if err != nil {
		return nil, errors.Join(err, api.Close())
	}
	return &database{
		Client: client, conn: conn, api: firestorepb.NewFirestoreClient(conn), name: "projects/" + project + "/databases/" + name,
		routing:  url.Values{"project_id": {project}, "database_id": {name}}.Encode(),
		decoders: semaphore.NewWeighted(1), encoders: semaphore.NewWeighted(1),
	}, nil
}

// Close ends the connections.
func (d *database) Close() error {
	err := d.Client.Close()
	_ = d.conn.Close() // closed already, unless Client has one of its own
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

// CheckCollection refuses a path that is not a collection's, such as
// analyses or tenants/a/analyses.
func CheckCollection(path string) error {
	segments := strings.Split(path, "/")
	if len(segments)%2 == 0 || slices.ContainsFunc(segments, func(s string) bool { return analysislock.CheckID(s) != nil }) {
		return fmt.Errorf("%q is not the path of a collection", path)
	}
	return nil
}
