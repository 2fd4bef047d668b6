package repo

import (
	"context"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// dial makes a client, without a call yet. A connection on which a call waits and
// nothing has come for 30 s is asked for a sign of life, and replaced where none comes
// in 10 s: else one that a network has forgotten would be kept, its watch silent and
// each call on it failing, for as long as something takes what is written to it. One
// that nothing waits on is not asked. A server that is asked too often for its taste
// closes the connection, and gRPC then asks half as often. With FIRESTORE_EMULATOR_HOST
// the client makes a connection of its own, which is not asked.
func dial(ctx context.Context, project, database string, opts []option.ClientOption) (*firestore.Client, error) {
	alive := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second})
	return firestore.NewClientWithDatabase(ctx, project, database, append([]option.ClientOption{option.WithGRPCDialOption(alive)}, opts...)...)
}
