package examplestest

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// lossy is a Cloud Tasks in front of another one. Its first CreateTask fails, and the reply to the
// second is lost.
type lossy struct {
	cloudtaskspb.UnimplementedCloudTasksServer
	t      *testing.T
	behind cloudtaskspb.CloudTasksClient
	calls  atomic.Int32
}

// CreateTask implements cloudtaskspb.CloudTasksServer.
func (l *lossy) CreateTask(ctx context.Context, r *cloudtaskspb.CreateTaskRequest) (*cloudtaskspb.Task, error) {
	n := l.calls.Add(1)
	if n == 1 {
		return nil, status.Error(codes.Unavailable, "not yet")
	}
	task, err := l.behind.CreateTask(ctx, r)
	if n == 3 && status.Code(err) != codes.AlreadyExists {
		l.t.Errorf("the third call of CreateTask has another name: %v", err)
	}
	if n == 2 {
		return nil, status.Error(codes.Unavailable, "the reply is lost")
	}
	return task, err
}

// newLossy runs a lossy in front of the Cloud Tasks that env names, and puts its address into env.
func newLossy(t *testing.T, env []string) *lossy {
	t.Helper()
	const variable = "CLOUD_TASKS_EMULATOR_HOST="
	i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, variable) })
	conn, err := grpc.NewClient(strings.TrimPrefix(env[i], variable),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })

	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, server := &lossy{t: t, behind: cloudtaskspb.NewCloudTasksClient(conn)}, grpc.NewServer()
	cloudtaskspb.RegisterCloudTasksServer(server, l)
	go func() { _ = server.Serve(listener) }() // until Stop
	t.Cleanup(server.Stop)
	env[i] = variable + listener.Addr().String()
	return l
}
