// Command go submits one analysis and waits for its result:
//
//	go run ./docs/examples/go ID TEXT
//
// with the variables that `taskguard local` or `terraform output -raw environment` prints.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: go run ./docs/examples/go ID TEXT")
	}
	ctx, id, text, worker := context.Background(), os.Args[1], os.Args[2], os.Getenv("TASK_TARGET_URL")

	db, err := firestore.NewClient(ctx, os.Getenv("GOOGLE_CLOUD_PROJECT")) // reads FIRESTORE_EMULATOR_HOST
	check(err)
	// The client for Cloud Tasks does not read CLOUD_TASKS_EMULATOR_HOST.
	var options []option.ClientOption
	if host := os.Getenv("CLOUD_TASKS_EMULATOR_HOST"); host != "" {
		options = append(options, option.WithEndpoint(host), option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	}
	tasks, err := cloudtasks.NewClient(ctx, options...)
	check(err)

	// 1. Create the document, only if there is none.
	doc, now := db.Collection("analyses").Doc(id), firestore.ServerTimestamp
	_, err = doc.Create(ctx, map[string]any{"status": "QUEUED", "input": map[string]any{"text": text}, "createdAt": now, "updatedAt": now})
	if status.Code(err) != codes.AlreadyExists {
		check(err)
	}

	// 2. Create the task that delivers it.
	body, err := json.Marshal(map[string]string{"analysis_id": id})
	check(err)
	_, err = tasks.CreateTask(ctx, &pb.CreateTaskRequest{Parent: os.Getenv("TASK_QUEUE"), Task: &pb.Task{
		DispatchDeadline: durationpb.New(26 * time.Minute), // the worker's RUN_TIMEOUT (25m) + 1 min
		MessageType: &pb.Task_HttpRequest{HttpRequest: &pb.HttpRequest{
			HttpMethod:          pb.HttpMethod_POST,
			Url:                 worker + "/internal/tasks/analysis",
			Body:                body,
			AuthorizationHeader: &pb.HttpRequest_OidcToken{OidcToken: &pb.OidcToken{ServiceAccountEmail: os.Getenv("TASK_CALLER"), Audience: worker}},
		}},
	}})
	check(err)

	// 3. Watch the document until it is READY or FAILED.
	for snapshots := doc.Snapshots(ctx); ; {
		snapshot, err := snapshots.Next()
		check(err)
		analysis := snapshot.Data()
		fmt.Println(analysis["status"])
		switch analysis["status"] {
		case "READY":
			check(json.NewEncoder(os.Stdout).Encode(analysis["result"]))
			return
		case "FAILED":
			check(json.NewEncoder(os.Stdout).Encode(analysis["error"]))
			os.Exit(1)
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
