package main

import (
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/emulator/cloudtasks"
	"taskguard/lease/iso8601"
)

// shelf is a store, and a queue on a port whose deliveries reach nobody, so
// that what is booked stays.
func shelf(t *testing.T) (vars, *emulated) {
	t.Helper()
	env, e := store(t), &emulated{}
	t.Cleanup(e.close)
	if _, err := e.serveKeys(loopback); err != nil {
		t.Fatal(err)
	}
	if err := e.startTasks(t.Context(), cloudtasks.Options{}); err != nil {
		t.Fatal(err)
	}
	address, err := e.serveTasks(loopback)
	if err != nil {
		t.Fatal(err)
	}
	env["TASK_QUEUE"], env["TASK_TARGET_URL"], env[tasksEmulator] = demoQueue, "http://"+closedPort(t), address
	return env, e
}

// tasks are what stands in the queue.
func (e *emulated) list(t *testing.T) (all []*cloudtaskspb.Task) {
	t.Helper()
	client, err := e.tasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close() //nolint:errcheck // what was asked was answered
	request := &cloudtaskspb.ListTasksRequest{Parent: demoQueue, ResponseView: cloudtaskspb.Task_FULL}
	for task, err := range client.ListTasks(t.Context(), request).All() {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, task)
	}
	return all
}

// orphaned writes analyses whose last update was long ago.
func orphaned(t *testing.T, env vars, ids ...string) {
	t.Helper()
	for _, id := range ids {
		put(t, env, id, map[string]any{"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z", "input": map[string]any{"text": "x"}})
	}
}

// sameHour makes sure that this hour lasts a little longer: bookings of
// recovery have names for an hour, of UTC's.
func sameHour() {
	if left := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)); left < 30*time.Second {
		time.Sleep(left)
	}
}

func TestRecoverBooksWhatNobodyWorksOnOnceAnHour(t *testing.T) {
	env, e := shelf(t)
	sameHour()
	taskguard(t, env, "recover").want(t, exitDone, "found 0, booked 0\n")
	orphaned(t, env, "a", "b")
	locked(t, analyses(t, env), "held")
	if o := taskguard(t, env, "recover", "--json").want(t, exitDone); o.out != `{"found":2,"booked":2}`+"\n" || o.err != "" {
		t.Errorf("stdout %q, stderr %q", o.out, o.err)
	}
	taskguard(t, env, "recover").want(t, exitDone, "found 2, booked 0; 2 booked already this hour, which --now books again\n")
	orphaned(t, env, "c", "d")
	taskguard(t, env, "recover").want(t, exitDone, "found 4, booked 2; 2 booked already this hour, which --now books again\n")
	if n := len(e.list(t)); n != 4 {
		t.Errorf("%d tasks, want 4", n)
	}
	orphaned(t, env, "malformed")
	put(t, env, "malformed", map[string]any{"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z", "lockToken": "7"})
	taskguard(t, env, "recover", "--json").want(t, exitDone, `{"found":4,"booked":0}`, "analysis not recovered", "analysis_id=malformed")
}

// The names of what was purged stay taken.
func TestRecoverNowBooksWhatWasPurged(t *testing.T) {
	env, e := shelf(t)
	sameHour()
	orphaned(t, env, "a")
	taskguard(t, env, "recover", "--json").want(t, exitDone, `{"found":1,"booked":1}`)
	client, err := e.tasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close() //nolint:errcheck // what was asked was answered
	if _, err := client.PurgeQueue(t.Context(), &cloudtaskspb.PurgeQueueRequest{Name: demoQueue}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the queue is empty", func() bool { return len(e.list(t)) == 0 })
	taskguard(t, env, "recover", "--json").want(t, exitDone, `{"found":1,"booked":0}`)
	taskguard(t, env, "recover", "--now", "--json").want(t, exitDone, `{"found":1,"booked":1}`)
	if n := len(e.list(t)); n != 1 {
		t.Errorf("%d tasks, want 1", n)
	}
}

func TestRecoverReportsWhatHasAnUnknownStatus(t *testing.T) {
	env, _ := shelf(t)
	for i, status := range []any{"queued", "PENDING", 7, "archived", "READY", "QUEUED"} {
		put(t, env, strconv.Itoa(i), map[string]any{"status": status})
	}
	put(t, env, "ours", map[string]any{"status": "ANALYZING", "lockToken": 1})
	o := taskguard(t, env, "recover", "--json").want(t, exitDone)
	const want = `taskguard recover: 4 never run and not found by recovery, as the status is none of QUEUED, PROCESSING, READY, FAILED (of at most 1000 read): "2" ("(the number 7)"), "1" ("PENDING"), "3" ("archived"); to run one: taskguard requeue ID` + "\n"
	if o.err != want || o.out != `{"found":0,"booked":0}`+"\n" {
		t.Errorf("stdout %q, stderr %q", o.out, o.err)
	}
	taskguard(t, env, "requeue", "0").want(t, exitDone)
	taskguard(t, env, "recover").want(t, exitDone, "3 never run")
}

// LOCK_TTL is how old an analysis must be.
func TestRecoverLeavesWhatIsYoungerThanATTL(t *testing.T) {
	env, _ := shelf(t)
	put(t, env, "x", map[string]any{"status": "QUEUED", "updatedAt": iso8601.Format(time.Now().Add(-time.Hour))})
	env["LOCK_TTL"] = "2h"
	taskguard(t, env, "recover", "--json").want(t, exitDone, `{"found":0,"booked":0}`)
	env["LOCK_TTL"] = "50m"
	taskguard(t, env, "recover", "--json").want(t, exitDone, `{"found":1,"booked":1}`)
}

func TestARecoveryThatFailsTellsWhatItHasDone(t *testing.T) {
	env, _ := shelf(t)
	orphaned(t, env, "a")
	env["TASK_QUEUE"] += "-missing"
	taskguard(t, env, "recover").want(t, exitFailed, "found 1, booked 0; then it failed\n", "taskguard recover: worker: recover: ", "NotFound")
	if o := taskguard(t, env, "recover", "--json").want(t, exitFailed, "NotFound"); o.out != `{"found":1,"booked":0}`+"\n" {
		t.Errorf("stdout %q", o.out)
	}
}

// indexless is a Firestore that lacks the index of recovery's query.
type indexless struct {
	firestorepb.UnimplementedFirestoreServer
	words string
}

func (indexless) BatchGetDocuments(r *firestorepb.BatchGetDocumentsRequest, s firestorepb.Firestore_BatchGetDocumentsServer) error {
	return s.Send(&firestorepb.BatchGetDocumentsResponse{
		Result: &firestorepb.BatchGetDocumentsResponse_Missing{Missing: r.GetDocuments()[0]}, ReadTime: timestamppb.Now(),
	})
}

func (f indexless) RunQuery(*firestorepb.RunQueryRequest, firestorepb.Firestore_RunQueryServer) error {
	return status.Error(codes.FailedPrecondition, f.words)
}

func TestAMissingIndexIsExplainedInOneSentence(t *testing.T) {
	const link = "https://console.firebase.google.com/v1/r/project/p/firestore/indexes?create_composite=Cg"
	for words, want := range map[string][]string{
		"The query requires an index. You can create it here: " + link: {"taskguard recover: recovery's query needs an index", "make it at " + link + " or with gcloud firestore indexes composite create --project=demo-test --database=other --collection-group=analyses --field-config"},
		"That index is currently building and cannot be used yet.":     {"make it with gcloud"},
		"This database is in Datastore mode.":                          {"FailedPrecondition", "Datastore mode"},
	} {
		l, err := net.Listen("tcp", loopback)
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		firestorepb.RegisterFirestoreServer(s, indexless{words: words})
		var serving sync.WaitGroup
		serving.Go(func() { _ = s.Serve(l) })
		env, _ := shelf(t)
		env[firestoreEmulator], env["FIRESTORE_DATABASE"], env["ANALYSES_COLLECTION"] = l.Addr().String(), "other", "tenants/t/analyses"
		o := taskguard(t, env, "recover").want(t, exitFailed, want...)
		if o.out != "" || strings.Count(o.err, "\n") != 1 {
			t.Errorf("want one line on standard error alone\nstdout: %s\nstderr: %s", o.out, o.err)
		}
		s.Stop()
		serving.Wait()
	}
}

// Each booking leaves a run its time, and carries the token that the worker
// expects.
func TestBookingsCarryTheWorkersDeadlineAndAudience(t *testing.T) {
	base, e := shelf(t)
	base["TASK_CALLER"] = demoCaller
	a := analyses(t, base)
	locked(t, a, "locked")
	orphaned(t, base, "old")
	for _, tc := range []struct {
		runTimeout, audience string
		deadline             time.Duration
	}{{"", "", 26 * time.Minute}, {"40s", "https://audience.example", 100 * time.Second}, {"10h", "", 30 * time.Minute}} {
		env := maps.Clone(base)
		env["RUN_TIMEOUT"], env["TASK_AUDIENCE"] = tc.runTimeout, tc.audience
		want := tc.audience
		if want == "" {
			want = base["TASK_TARGET_URL"]
		}
		for _, args := range []string{"submit --input {} --id s" + tc.runTimeout, "unlock locked", "requeue locked", "recover"} {
			before := map[string]bool{}
			for _, task := range e.list(t) {
				before[task.GetName()] = true
			}
			if args == "recover" { // its names last for an hour
				put(t, env, "old"+tc.runTimeout, map[string]any{"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z"})
			}
			taskguard(t, env, strings.Fields(args)...).want(t, exitDone)
			for _, task := range e.list(t) {
				if before[task.GetName()] {
					continue
				}
				before["new"] = true
				token := task.GetHttpRequest().GetOidcToken()
				if got := task.GetDispatchDeadline().AsDuration(); got != tc.deadline || token.GetAudience() != want || token.GetServiceAccountEmail() != demoCaller {
					t.Errorf("%s with RUN_TIMEOUT=%s: deadline %v, token %v, want %v, %s", args, tc.runTimeout, got, token, tc.deadline, want)
				}
			}
			if !before["new"] {
				t.Errorf("%s booked nothing", args)
			}
		}
	}
}
