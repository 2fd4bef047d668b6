package examplestest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"taskguard/internal/testing/must"
)

// REST serves three calls of Google's REST interfaces until the test ends: a commit, the reading of a document, and the
// creation of a task. It passes them to the emulators of env, which speak gRPC alone. protojson refuses
// unknown fields. REST returns env with its own address for both services.
func REST(t *testing.T, env []string) []string {
	t.Helper()
	g := &gateway{
		documents: firestorepb.NewFirestoreClient(dial(t, env, firestoreHost)),
		tasks:     cloudtaskspb.NewCloudTasksClient(dial(t, env, tasksHost)),
	}
	return Served(t, env, g)
}

// Served serves a handler until the test ends. It returns env with its address for Firestore and Cloud Tasks.
func Served(t *testing.T, env []string, h http.Handler) []string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	return append(slices.Clone(env), firestoreHost+host, tasksHost+host)
}

// Tasks returns a function that reads a task of the queue of env, by its short name.
func Tasks(t *testing.T, env []string) func(name string) *cloudtaskspb.Task {
	t.Helper()
	tasks := cloudtaskspb.NewCloudTasksClient(dial(t, env, tasksHost))
	queue := value(t, env, "TASK_QUEUE=")
	return func(name string) *cloudtaskspb.Task {
		t.Helper()
		request := &cloudtaskspb.GetTaskRequest{Name: queue + "/tasks/" + name, ResponseView: cloudtaskspb.Task_FULL}
		return must.Get(tasks.GetTask(t.Context(), request))(t)
	}
}

const firestoreHost, tasksHost = "FIRESTORE_EMULATOR_HOST=", "CLOUD_TASKS_EMULATOR_HOST="

// value returns the value of a variable, whose name has the = at its end.
func value(t *testing.T, env []string, variable string) string {
	t.Helper()
	i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, variable) })
	if i < 0 {
		t.Fatalf("the environment has no %s", variable)
	}
	return strings.TrimPrefix(env[i], variable)
}

// dial returns a connection to the address of a variable.
func dial(t *testing.T, env []string, variable string) *grpc.ClientConn {
	t.Helper()
	insecurely := grpc.WithTransportCredentials(insecure.NewCredentials())
	conn := must.Get(grpc.NewClient(value(t, env, variable), insecurely))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

type gateway struct {
	documents firestorepb.FirestoreClient
	tasks     cloudtaskspb.CloudTasksClient
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := g.call(r)
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		code, known := map[codes.Code]int{
			codes.AlreadyExists: http.StatusConflict, codes.NotFound: http.StatusNotFound,
			codes.InvalidArgument: http.StatusBadRequest,
		}[status.Code(err)]
		if !known {
			code = http.StatusServiceUnavailable
		}
		w.WriteHeader(code)
		answer = status.Convert(err).Proto()
	}
	text, _ := protojson.Marshal(answer)
	_, _ = w.Write(text)
}

func (g *gateway) call(r *http.Request) (proto.Message, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	parse := func(m proto.Message) error {
		if err := protojson.Unmarshal(body, m); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		return nil
	}

	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/v1/"), "/v2/")
	if database, ok := strings.CutSuffix(name, "/documents:commit"); ok {
		request := &firestorepb.CommitRequest{}
		if err := parse(request); err != nil {
			return nil, err
		}
		request.Database = database
		return g.documents.Commit(r.Context(), request)
	}
	if queue, ok := strings.CutSuffix(name, "/tasks"); ok {
		request := &cloudtaskspb.CreateTaskRequest{}
		if err := parse(request); err != nil {
			return nil, err
		}
		request.Parent = queue
		return g.tasks.CreateTask(r.Context(), request)
	}
	return g.read(r.Context(), name)
}

func (g *gateway) read(ctx context.Context, document string) (proto.Message, error) {
	database, _, _ := strings.Cut(document, "/documents/")
	request := &firestorepb.BatchGetDocumentsRequest{Database: database, Documents: []string{document}}
	stream, err := g.documents.BatchGetDocuments(ctx, request)
	if err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	switch {
	case err != nil:
		return nil, err
	case answer.GetFound() == nil:
		return nil, status.Error(codes.NotFound, document)
	}
	return answer.GetFound(), nil
}
