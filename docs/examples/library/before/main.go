// Command before is a service that docs/from-go.md starts from: a task of Cloud Tasks writes a report, and
// nothing keeps two deliveries from writing it at the same time.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/firestore"
)

type service struct {
	reports *firestore.CollectionRef
	tasks   *cloudtasks.Client
}

func main() {
	ctx := context.Background()
	db, err := firestore.NewClient(ctx, os.Getenv("GOOGLE_CLOUD_PROJECT"))
	check(err)
	tasks, err := cloudtasks.NewClient(ctx)
	check(err)
	s := &service{reports: db.Collection("reports"), tasks: tasks}

	http.HandleFunc("POST /reports/{id}", s.create)
	http.HandleFunc("POST /tasks/report", s.run)
	check(http.ListenAndServe(":"+cmp.Or(os.Getenv("PORT"), "8080"), nil))
}

func (s *service) create(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	var in Input
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, err := s.reports.Doc(id).Set(r.Context(), map[string]any{"state": "queued", "input": in})
	if err == nil {
		_, err = s.tasks.CreateTask(r.Context(), &cloudtaskspb.CreateTaskRequest{
			Parent: os.Getenv("TASK_QUEUE"),
			Task: &cloudtaskspb.Task{MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{
				Url:  os.Getenv("TASK_TARGET_URL") + "/tasks/report",
				Body: []byte(`{"id": "` + id + `"}`),
			}}},
		})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

func (s *service) run(w http.ResponseWriter, r *http.Request) {
	var task struct{ ID string }
	check(json.NewDecoder(r.Body).Decode(&task))
	doc, err := s.reports.Doc(task.ID).Get(r.Context())
	check(err)
	var report struct {
		State string `firestore:"state"`
		Input Input  `firestore:"input"`
	}
	check(doc.DataTo(&report))
	if report.State == "done" {
		return
	}
	_, err = doc.Ref.Update(r.Context(), []firestore.Update{{Path: "state", Value: "running"}})
	check(err)
	result, err := write(r.Context(), report.Input)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError) // the queue delivers again
		return
	}
	_, err = doc.Ref.Update(r.Context(), []firestore.Update{{Path: "state", Value: "done"}, {Path: "result", Value: result}})
	check(err)
}

// Input is what a report is made of.
type Input struct {
	Pages int `firestore:"pages" json:"pages"`
}

// write writes a report.
func write(ctx context.Context, in Input) (sum int, err error) {
	for page := 1; page <= in.Pages; page++ {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond): // the expensive work on one page
			sum += page
		}
	}
	return sum, nil
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
